"""The embedded sandbox. `backend.py` says how it is isolated, and what it does not protect against."""

from fpenv.sandbox.local.backend import LocalBackend, LocalSandbox
from fpenv.sandbox.local.isolation import Promise, check_isolation, describe_isolation

__all__ = ["LocalBackend", "LocalSandbox", "Promise", "check_isolation", "describe_isolation"]
