"""Who broke: every failure of fpenv is one of these, and none of them is ever a number.

    FpenvError
    ├── ConfigError      the caller: an argument, a flag or an environment variable
    ├── TaskError        the author of a task package: a file, a key, an instance
    ├── SandboxError     the isolated machine could not be had, or was lost
    │   └── SandboxGone  it ended; `by_agent` says whether the agent ended it itself
    ├── AgentError       the agent's own code (not its actions: a bad action is an observation)
    ├── ProviderError    whoever serves the agent's model, longer than retries last: the episode is ungraded
    ├── VerifierError    the hidden tests could not be run to an outcome
    └── ReviewError      the rubric could not be applied

A message says what was expected, what came, where, and what to do. Errors cross process borders: the
message is the only positional argument, extras are keyword-only attributes with defaults, so pickle works.
"""

from __future__ import annotations


class FpenvError(Exception):
    """Base of all errors that fpenv raises on purpose."""


class ConfigError(FpenvError):
    """The caller asked for something that cannot be."""


class TaskError(FpenvError):
    """A task package is malformed, or its code failed."""


class SandboxError(FpenvError):
    """A sandbox could not be started, or did not answer as the protocol says."""


class SandboxGone(SandboxError):
    """The sandbox has ended. What the agent caused itself (`by_agent`) is its own result, never infrastructure."""

    def __init__(self, message: str, *, by_agent: bool = False) -> None:
        super().__init__(message)
        self.by_agent = by_agent

    def __reduce__(self) -> tuple[object, ...]:
        return (_gone, (str(self), self.by_agent))


class AgentError(FpenvError):
    """An agent's own code raised."""


class ProviderError(FpenvError):
    """A model provider did not answer, or refused to serve. What the model says is never this."""


class VerifierError(FpenvError):
    """The verifier could not be run to an outcome for every expected test."""


class ReviewError(FpenvError):
    """The reviewer gave no valid verdict for every criterion."""


def _gone(message: str, by_agent: bool) -> SandboxGone:
    return SandboxGone(message, by_agent=by_agent)
