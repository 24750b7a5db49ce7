"""The local backend keeps the behaviour that every backend keeps."""

import pytest

from fpenv.sandbox.local import LocalBackend
from fpenv.testing.sandbox_conformance import SandboxConformance


class TestLocalSandbox(SandboxConformance):
    @pytest.fixture
    def backend(self, local_backend: LocalBackend) -> LocalBackend:
        return local_backend
