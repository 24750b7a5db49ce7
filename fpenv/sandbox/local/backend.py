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
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox import seccomp
from fpenv.sandbox.channel import ChannelBroken, GuestChannel
from fpenv.sandbox.local.bwrap import find_bwrap
from fpenv.sandbox.local.cgroup import Cgroup, make_cgroup, remove_groups
from fpenv.sandbox.local.isolation import Promise, check_isolation, describe_isolation
from fpenv.sandbox.local.launcher import get_launcher
from fpenv.sandbox.local.lease import Lease, take_lease
from fpenv.sandbox.local.mounts import default_hidden_paths, plan, stage_request
from fpenv.sandbox.local.running import START_DEADLINE_S, Running, launch
from fpenv.sandbox.local.watchdog import get_watchdog
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Collected, ExecResult, OutputSink, SandboxSpec, ServiceHandler

__all__ = ["LocalBackend", "LocalSandbox", "Promise", "check_isolation", "describe_isolation"]


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
            running = launch(get_launcher(), request, layout.contents)
        except BaseException:
            cgroup.remove()
            lease.release()
            raise
        if not bounded:
            get_watchdog().watch(running.guest_pid, spec.limits.memory_bytes)
        box = LocalSandbox(running, lease, cgroup, spec, serve)
        box._greet()
        return box


class LocalSandbox:
    """A sandbox on this machine; see the module for what it promises."""

    def __init__(
        self, running: Running, lease: Lease, cgroup: Cgroup, spec: SandboxSpec, serve: ServiceHandler | None
    ) -> None:
        self._running, self._lease, self._cgroup = running, lease, cgroup
        self._channel = GuestChannel(running.link, env=spec.env, services=spec.services, serve=serve)
        self._owner = os.getpid()
        self._ended: SandboxGone | None = None
        self._oom_kills = 0

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

    def __del__(self) -> None:
        # For an environment that was dropped without close(); leases sweep what even this does not reach.
        with contextlib.suppress(Exception):
            self.close()

    def __enter__(self) -> LocalSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _greet(self) -> None:
        try:
            self._channel.await_ready(time.monotonic() + START_DEADLINE_S)
        except ChannelBroken as broken:
            self.close()
            raise SandboxError(f"the sandbox did not start: {broken}") from None

    def _check(self) -> None:
        if self._owner != os.getpid():
            raise SandboxError("this sandbox belongs to the process that started it: start one of your own after fork")
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
