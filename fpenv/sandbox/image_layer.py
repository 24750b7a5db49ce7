"""What a task's image adds to a bare sandbox, for a backend that builds no images: files, variables, folders.

A layer changes a `SandboxSpec` before a sandbox starts and finishes the sandbox afterwards (empty folders,
execute bits, the working directory). What lies below /opt is mounted read-only; all else is the agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from fpenv.errors import SandboxError
from fpenv.sandbox.sandbox import Backend, Collected, ExecResult, OutputSink, Sandbox, SandboxSpec, ServiceHandler

HOME = "/root"
_KEEP = ".fpenv-folder"
_FINISH_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ImageLayer:
    """Files by absolute path, which of them may be executed, folders, variables, and where commands run."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    executables: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = HOME

    def under(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with this layer below it: what the spec says itself wins."""
        files = {path: content for path, content in self.files.items() if not _is_optional(path)}
        folders = [*self.folders, self.workdir]
        keeps = {f"{_top(folder)}/{_KEEP}": b"" for folder in folders if _needs_top(folder)}
        return replace(
            spec,
            files={**keeps, **files, **spec.files},
            read_only={**self._optional(), **spec.read_only},
            env={**self.env, **spec.env},
        )

    def start(self, backend: Backend, spec: SandboxSpec, serve: ServiceHandler | None = None) -> Sandbox:
        """Start a sandbox on top of this layer. Raises SandboxError."""
        sandbox = backend.start(self.under(spec), serve)
        try:
            self._finish(sandbox)
        except BaseException:
            sandbox.close()
            raise
        return sandbox if self.workdir == HOME else InWorkdir(sandbox, self.workdir)

    def _optional(self) -> dict[str, dict[str, bytes]]:
        """Files below /opt by the folder that is mounted for them."""
        mounts: dict[str, dict[str, bytes]] = {}
        for path, content in self.files.items():
            if _is_optional(path):
                folder = "/".join(PurePosixPath(path).parts[:3]).replace("//", "/")
                mounts.setdefault(folder, {})[str(PurePosixPath(path).relative_to(folder))] = content
        return mounts

    def _finish(self, sandbox: Sandbox) -> None:
        folders = [f for f in dict.fromkeys([*self.folders, self.workdir]) if f not in ("/", HOME, "/tmp")]
        folders = [folder for folder in folders if not _is_optional(folder)]
        marked = sorted(path for path in self.executables if path in self.files and not _is_optional(path))
        commands = [("/bin/mkdir", "-p", "--", *folders)] if folders else []
        keeps = sorted({f"{_top(folder)}/{_KEEP}" for folder in folders if _needs_top(folder)})
        commands += [("/bin/rm", "-f", "--", *keeps)] if keeps else []
        commands += [("/bin/chmod", "+x", "--", *marked)] if marked else []
        for command in commands:
            done = sandbox.exec(command, timeout_s=_FINISH_TIMEOUT_S, cwd="/")
            if done.exit_code != 0:
                said = done.stderr[-500:].decode("utf-8", "replace").strip()
                raise SandboxError(f"the task's folders could not be laid out: {' '.join(command)[:200]}: {said}")


class InWorkdir:
    """A sandbox whose commands run in another folder than /root unless they say where. All else is the sandbox's."""

    def __init__(self, sandbox: Sandbox, workdir: str) -> None:
        self._sandbox, self._workdir = sandbox, workdir

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 64 << 10,
        on_output: OutputSink | None = None,
    ) -> ExecResult:
        return self._sandbox.exec(
            argv,
            timeout_s=timeout_s,
            cwd=self._workdir if cwd is None else cwd,
            env=env,
            stdin=stdin,
            output_limit=output_limit,
            on_output=on_output,
        )

    def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[bytes, int]:
        return self._sandbox.read(path, offset=offset, limit=limit)

    def write(self, path: str, data: bytes) -> None:
        self._sandbox.write(path, data)

    def collect(self, paths: Sequence[str], *, max_bytes: int = 64 << 20) -> Collected:
        return self._sandbox.collect(paths, max_bytes=max_bytes)

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _top(folder: str) -> str:
    return f"/{PurePosixPath(folder).parts[1]}"


def _needs_top(folder: str) -> bool:
    """Whether a folder lies where nothing is writable unless a file is laid down."""
    return folder != "/" and _top(folder) not in (HOME, "/tmp", "/opt")


def _is_optional(path: str) -> bool:
    return PurePosixPath(path).is_relative_to("/opt")
