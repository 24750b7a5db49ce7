"""The backends by name."""

from __future__ import annotations

from fpenv.errors import ConfigError
from fpenv.sandbox.sandbox import Backend

BACKENDS = ("local",)


def backend_named(name: str) -> Backend:
    """Return a backend. Raises ConfigError if there is none of that name."""
    if name != "local":
        raise ConfigError(f"sandbox: expected one of {', '.join(BACKENDS)}, or a Backend; got {name!r}")
    from fpenv.sandbox.local import LocalBackend

    return LocalBackend()
