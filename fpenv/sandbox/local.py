"""The embedded sandbox: Linux namespaces through bubblewrap, without a daemon, as root or as anyone.

How it is isolated:

- Namespaces: user, mount, process, network (loopback only), IPC, UTS and cgroup of its own; no capability, no
  new privileges, further user namespaces disabled, a system-call filter (`seccomp.py` says what and why).
- User: started as root, each sandbox runs under a user id of its own that is dropped to before anything
  else; otherwise under the caller's. Inside it is user 1000, never 0.
- Files: a private root (`mounts.py`): the host's /usr read-only without its Python packages, without fpenv,
  tasks and caches; no host /etc, /home, /sys, /var; what is writable is one size- and inode-limited tmpfs.
- The host's environment, descriptors, terminal and processes are not passed: one launcher process starts
  bubblewrap with none of them.
- Limits: memory, processes and processors by cgroup where one may be made. Elsewhere a watchdog bounds memory
  within a tenth of a second, the kernel's per-namespace process limit holds, and processors are not limited.
- End: `close` kills the first process, and with it the kernel kills all others, before `close` returns. If
  the host process is killed, even by SIGKILL, the kernel kills launcher, bubblewrap and guest in turn; what
  it leaves (empty cgroups, lease files) the next start sweeps.
- The guest is process 1, not dumpable, and treated as hostile by the host: bounds and deadlines on all.

What it does not protect against: errors in the host's kernel; timing and load as a channel between
sandboxes; reading what /proc tells everyone (kernel version, processor, load, names of mounted host folders);
world-readable files in the host's /usr; without a cgroup, kernel memory (pipe and socket buffers).

Who ended it, when a call raises SandboxGone: `by_agent` is True when the kernel killed for the sandbox's own
memory limit, when the guest ended in any other way than by SIGKILL, when it did not answer in time or sent
what no guest sends. It is False when something outside killed the guest (SIGKILL cannot come from inside),
bubblewrap's outer process or the launcher. Until the guest has started, every failure is a SandboxError.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox import isolation, seccomp
from fpenv.sandbox.bwrap import find_bwrap
from fpenv.sandbox.cgroup import Cgroup, make_cgroup, remove_groups
from fpenv.sandbox.channel import ChannelBroken, GuestChannel
from fpenv.sandbox.isolation import Promise, check_isolation, describe_isolation
from fpenv.sandbox.launcher import Launcher, get_launcher
from fpenv.sandbox.lease import Lease, take_lease
from fpenv.sandbox.mounts import default_hidden_paths, plan, stage_request
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Collected, ExecResult, OutputSink, SandboxSpec, ServiceHandler
from fpenv.sandbox.watchdog import get_watchdog

__all__ = ["LocalBackend", "LocalSandbox", "Promise", "check_isolation", "describe_isolation"]

_START_DEADLINE_S = 60.0
_END_DEADLINE_S = 10.0
_CREDENTIALS = struct.Struct("iii")
_RECEIVE = 1 << 18


class LocalBackend:
    """Starts sandboxes on this machine.

    hidden_paths: host folders that no sandbox may see into, beside those that hold fpenv, the tasks and
    fpenv's environment. They only matter where they lie below /usr: nothing else of the host is bound.
    """

    name = "local"

    def __init__(self, *, hidden_paths: Sequence[Path] = ()) -> None:
        self._hidden = (*default_hidden_paths(), *hidden_paths)

    def start(self, spec: SandboxSpec, serve: ServiceHandler | None = None) -> LocalSandbox:
        if spec.services and serve is None:
            raise SandboxError(f"services {', '.join(spec.services)} are named, but nothing serves them")
        bwrap = find_bwrap()
        layout = plan(spec, spec.runtime or provide("").path, self._hidden)
        lease = take_lease(remove_groups)
        cgroup = Cgroup()
        try:
            cgroup = make_cgroup(f"fpenv-{lease.name}", spec.limits)
            lease.record([str(folder) for folder in cgroup.folders])
            bounded = "memory" in cgroup.controllers
            bpf = seccomp.build_filter(memory_is_bounded=bounded)
            request = stage_request(layout, spec, bwrap, bpf, uid=lease.uid, data_limit=not bounded)
            request["cgroups"] = cgroup.entries
            running = _launch(get_launcher(), request, layout.contents)
        except BaseException:
            cgroup.remove()
            lease.release()
            raise
        if not bounded:
            get_watchdog().watch(running.guest_pid, spec.limits.memory_bytes)
        return LocalSandbox(running, lease, cgroup, spec, serve)


@dataclass
class _Running:
    """A started sandbox as the host sees it: bubblewrap's outer process, the guest, and the pipe to it."""

    launcher: Launcher
    outer_pid: int
    outer_fd: int
    link: SocketLink
    stderr_fd: int
    guest_pid: int = -1
    guest_fd: int = -1

    def end(self, *, kill: bool) -> int | None:
        """Wait until everything inside is dead and return how bubblewrap ended, None if that is unknown.

        kill: end it now; otherwise it is ending by itself and gets a moment to tell its own status.
        """
        if self.guest_fd >= 0:
            if kill:
                _kill(self.guest_fd)
            _wait(self.guest_fd, _END_DEADLINE_S)
        elif kill:
            _kill(self.outer_fd)
        if not _wait(self.outer_fd, 1.0):
            _kill(self.outer_fd)
            _wait(self.outer_fd, _END_DEADLINE_S)
        try:
            return self.launcher.reap(self.outer_pid)
        except SandboxError:
            return None

    def release(self) -> None:
        self.link.close()
        for fd in (self.outer_fd, self.guest_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)


class LocalSandbox:
    """A sandbox on this machine; see the module for what it promises."""

    def __init__(
        self, running: _Running, lease: Lease, cgroup: Cgroup, spec: SandboxSpec, serve: ServiceHandler | None
    ) -> None:
        self._running, self._lease, self._cgroup = running, lease, cgroup
        self._channel = GuestChannel(running.link, env=spec.env, services=spec.services, serve=serve)
        self._owner = os.getpid()
        self._ended: SandboxGone | None = None
        self._oom_kills = 0
        self._channel.await_ready(time.monotonic() + _START_DEADLINE_S)

    @property
    def pid(self) -> int:
        """Process id of the guest, as the host sees it."""
        return self._running.guest_pid

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "/root",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 64 << 10,
        on_output: OutputSink | None = None,
    ) -> ExecResult:
        self._check()
        try:
            result = self._channel.exec(
                argv,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                output_limit=output_limit,
                on_output=on_output,
            )
        except ChannelBroken as broken:
            raise self._lose(broken) from None
        if result.exit_code != 0:
            # Kills that the sandbox has survived say nothing about what ends it later.
            self._oom_kills = self._cgroup.count_oom_kills()
        return result

    def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[bytes, int]:
        self._check()
        try:
            return self._channel.read(path, offset=offset, limit=limit)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def write(self, path: str, data: bytes) -> None:
        self._check()
        try:
            self._channel.write(path, data)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def collect(self, paths: Sequence[str], *, max_bytes: int = 64 << 20) -> Collected:
        self._check()
        try:
            return self._channel.collect(paths, max_bytes=max_bytes)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def close(self) -> None:
        if self._ended is None:
            self._ended = SandboxGone("the sandbox is closed")
            if self._owner == os.getpid():
                self._end(kill=True)

    def __enter__(self) -> LocalSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._ended is not None:
            raise SandboxGone(str(self._ended), by_agent=self._ended.by_agent)

    def _lose(self, broken: ChannelBroken) -> SandboxGone:
        """End what is left of a sandbox that no longer answers, and say whose doing it was."""
        self._ended = SandboxGone(str(broken))
        starved = self._cgroup.count_oom_kills() > self._oom_kills
        status = self._end(kill=broken.cause != "end")
        if broken.cause != "end":
            self._ended = SandboxGone(f"{broken}: what ran inside is to blame", by_agent=True)
        elif starved:
            self._ended = SandboxGone("the sandbox ran out of its memory and was killed", by_agent=True)
        elif status is None or status < 0 or status == 128 + signal.SIGKILL:
            self._ended = SandboxGone("the sandbox was killed from outside")
        else:
            self._ended = SandboxGone(f"the guest ended with status {status}: {broken}", by_agent=True)
        return self._ended

    def _end(self, *, kill: bool) -> int | None:
        status = None
        with contextlib.suppress(OSError):
            get_watchdog().drop(self._running.guest_pid)
            status = self._running.end(kill=kill)
            self._running.release()
            self._cgroup.remove()
            self._lease.release()
        return status


class SocketLink:
    """A socket to the guest, with deadlines."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._held = b""

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        if self._held:
            data, self._held = self._held, b""
            return data
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        return self._socket.recv(_RECEIVE)

    def identify_peer(self, deadline: float) -> int:
        """Return the sender of the first bytes, as the kernel tells it; they are kept. 0 at the end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._held, ancillary, _, _ = self._socket.recvmsg(_RECEIVE, socket.CMSG_SPACE(_CREDENTIALS.size))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        for _, kind, data in ancillary:
            if self._held and kind == socket.SCM_CREDENTIALS:
                return int(_CREDENTIALS.unpack(data)[0])
        return 0

    def close(self) -> None:
        self._socket.close()


def _launch(launcher: Launcher, request: Mapping[str, object], contents: Sequence[bytes]) -> _Running:
    """Start bubblewrap and wait for the guest's first words. Raises SandboxError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(stderr_write, True)
    try:
        pid = launcher.start(request, contents, theirs.fileno(), stderr_write)
        running = _Running(launcher, pid, os.pidfd_open(pid), SocketLink(ours), stderr_read)
    except BaseException:
        ours.close()
        os.close(stderr_read)
        raise
    finally:
        theirs.close()
        os.close(stderr_write)
    try:
        running.guest_pid = running.link.identify_peer(time.monotonic() + _START_DEADLINE_S)
        if running.guest_pid > 0:
            running.guest_fd = os.pidfd_open(running.guest_pid)
            return running
        status = running.end(kill=False)
        said = _read_all(stderr_read)
        running.release()
        raise SandboxError(isolation.explain_failure(said, status))
    except OSError as error:
        running.end(kill=True)
        said = _read_all(stderr_read)
        running.release()
        raise SandboxError(f"the sandbox did not start: {error} {said}".strip()) from None


def _read_all(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.read(fd, 1 << 16).decode(errors="replace").strip()
    return ""


def _kill(fd: int) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)


def _wait(fd: int, timeout_s: float) -> bool:
    """Wait for the end of a process; say whether it came."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
