"""Backends by name."""

from __future__ import annotations

from fpenv.errors import ConfigError
from fpenv.sandbox.sandbox import Backend


def backend_named(name: str) -> Backend:
    """Return the backend called `name`. Raises ConfigError. Nothing is started yet."""
    if name == "local":
        from fpenv.sandbox.local import LocalBackend

        return LocalBackend()
    raise ConfigError(f"sandbox: expected 'local' or a Backend, got {name!r}")
