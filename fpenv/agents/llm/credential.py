"""A key that stays in this process: read from the environment, sent in one header, shown nowhere.

Text that the other side sends is passed through `redact` before anything else sees it, so a provider that
echoes the key in an error or a completion does not put it on disk. Keys under 8 characters are not redacted
(they would blot out ordinary words). Pickling carries the variable's name alone.
"""

from __future__ import annotations

import os
import re

from fpenv.errors import ConfigError

REDACTED = "[key]"
SHORTEST_REDACTED = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Credential:
    """The key of one endpoint, or none."""

    __slots__ = ("__key", "_variable")

    def __init__(self, variable: str | None) -> None:
        """Read it. Raises ConfigError where the variable is not set; what came is not shown, it may be a key."""
        self._variable = variable
        self.__key = ""
        if variable is None:
            return
        value = os.environ.get(variable, "").strip() if _NAME.fullmatch(variable) else ""
        if not value:
            raise ConfigError(
                "api_key_env: expected the name of an environment variable that holds the key, got "
                f"{len(variable)} characters that name none that is set (not shown, in case they are the key)"
            )
        if not value.isascii() or not value.isprintable():
            raise ConfigError("api_key_env: expected a key of printable ASCII in the variable, got other characters")
        self.__key = value

    def reveal(self) -> str:
        """The key itself, for the client library alone; a word that is no key where none is needed."""
        return self.__key or "none"

    def redact(self, text: str) -> str:
        return text.replace(self.__key, REDACTED) if len(self.__key) >= SHORTEST_REDACTED else text

    def __repr__(self) -> str:
        return f"Credential({'none' if self._variable is None else 'set'})"

    def __reduce__(self) -> tuple[object, ...]:
        return (Credential, (self._variable,))
