"""What sandbox tests share: the local backend, or a visible skip where the machine cannot isolate."""

import pytest

from fpenv.sandbox.local import LocalBackend, check_isolation


@pytest.fixture(scope="session")
def local_backend() -> LocalBackend:
    failed = [f"{name}: {fix}" for name, ok, fix in check_isolation() if not ok and "(optional)" not in name]
    if failed:
        pytest.skip("; ".join(failed))
    return LocalBackend()
