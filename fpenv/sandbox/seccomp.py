"""The system-call filter, assembled as classic BPF in plain Python.

It narrows what a hostile program can reach of the kernel, and what it can do to the guest beside it. It is a
deny list: what physicists run calls nearly everything else. Denied calls fail with the error that a kernel
without the feature gives, so that programs take their other path. Calls in a foreign ABI (32-bit, x32) end
the process, since their numbers mean other calls.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from struct import pack

from fpenv.errors import SandboxError

# reason -> system calls
_DENIED_EPERM = {
    "another process's memory, descriptors and state": (
        "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise"
    ),
    "mounts and roots": (
        "mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr "
        "open_tree_attr swapon swapoff quotactl quotactl_fd open_by_handle_at name_to_handle_at fanotify_init "
        "unshare setns"
    ),
    "the machine": (
        "reboot kexec_load kexec_file_load init_module finit_module delete_module acct syslog settimeofday "
        "clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup iopl ioperm"
    ),
    "keys, which the network and process namespaces do not divide": "add_key request_key keyctl",
}
_DENIED_ENOSYS = {
    "wide kernel surface with a record of escapes": (
        "bpf perf_event_open io_uring_setup io_uring_enter io_uring_register userfaultfd memfd_secret "
        "lookup_dcookie nfsservctl vmsplice uselib ustat sysfs modify_ldt map_shadow_stack"
    ),
    "flags in memory that a filter cannot see; callers fall back to clone": "clone3",
}
_DENIED_UNBOUNDED = {
    "memory that belongs to no process, unbounded where there is no memory cgroup": (
        "memfd_create shmget shmat shmctl shmdt"
    ),
}
_NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}; for clone the lowest byte is the exit signal, see below."""

_CLONE_FLAGS = _NAMESPACE_FLAGS & ~0xFF
_SOCKET_FAMILIES = (1, 2, 10)  # unix, inet, inet6: none leaves the network namespace
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into a terminal

_LOAD_NUMBER, _LOAD_ARCH = 0, 4
_LOW_WORD = tuple(16 + 8 * argument for argument in range(6))
_HIGH_WORD = tuple(offset + 4 for offset in _LOW_WORD)
_X32_BIT = 0x40000000

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


@dataclass(frozen=True)
class _Machine:
    audit_arch: int
    numbers: dict[str, int] = field(repr=False)


def build_filter(*, memory_is_bounded: bool) -> bytes:
    """Return the program, as the kernel takes it. Raises SandboxError on an unknown machine.

    memory_is_bounded: a memory control group holds; without one, memory outside of any process is denied.
    """
    name = os.uname().machine
    machine = MACHINES.get(name)
    if machine is None:
        raise SandboxError(f"no system-call filter for {name}; fpenv's local sandbox runs on {', '.join(MACHINES)}")
    denied = {_ERRNO | errno.EPERM: _DENIED_EPERM, _ERRNO | errno.ENOSYS: dict(_DENIED_ENOSYS)}
    if not memory_is_bounded:
        denied[_ERRNO | errno.ENOSYS] |= _DENIED_UNBOUNDED
    return _Program(machine).assemble(denied)


class _Program:
    """Instructions; jumps only go over the next few, so that no labels are needed."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self._code: list[bytes] = []

    def assemble(self, denied: dict[int, dict[str, str]]) -> bytes:
        self._emit(_LD, _LOAD_ARCH)
        self._emit(_JEQ, self._machine.audit_arch, 1, 0)
        self._emit(_RET, _KILL_PROCESS)
        self._emit(_LD, _LOAD_NUMBER)
        if self._machine is MACHINES["x86_64"]:
            self._emit(_JGE, _X32_BIT, 0, 1)
            self._emit(_RET, _KILL_PROCESS)
        for verdict, groups in denied.items():
            for call in " ".join(groups.values()).split():
                if call in self._machine.numbers:
                    self._emit(_JEQ, self._machine.numbers[call], 0, 1)
                    self._emit(_RET, verdict)
        self._restrict_arguments()
        self._emit(_RET, _ALLOW)
        return b"".join(self._code)

    def _restrict_arguments(self) -> None:
        eperm, family = _ERRNO | errno.EPERM, _ERRNO | errno.EAFNOSUPPORT
        self._when("clone", [(_LD, _LOW_WORD[0], 0, 0), (_JSET, _CLONE_FLAGS, 0, 1), (_RET, eperm, 0, 0)])
        self._when("socket", self._unless_equal(0, _SOCKET_FAMILIES, family))
        self._when("socketpair", self._unless_equal(0, _SOCKET_FAMILIES[:1], family))
        self._when("ioctl", self._if_equal(1, (_TIOCSTI, _TIOCLINUX), eperm))
        # Another process's limits: a processor limit on the guest would end it from inside.
        self._when("prlimit64", self._unless_equal(0, (0,), eperm))

    def _when(self, call: str, body: list[tuple[int, int, int, int]]) -> None:
        """Run `body` for one call; it falls through to allow, and to the next check for other calls."""
        self._emit(_JEQ, self._machine.numbers[call], 0, len(body) + 1)
        for instruction in body:
            self._emit(*instruction)
        self._emit(_RET, _ALLOW)

    @staticmethod
    def _unless_equal(argument: int, values: tuple[int, ...], verdict: int) -> list[tuple[int, int, int, int]]:
        checks = [(_JEQ, value, len(values) - place, 0) for place, value in enumerate(values)]
        return [(_LD, _LOW_WORD[argument], 0, 0), *checks, (_RET, verdict, 0, 0)]

    @staticmethod
    def _if_equal(argument: int, values: tuple[int, ...], verdict: int) -> list[tuple[int, int, int, int]]:
        checks: list[tuple[int, int, int, int]] = []
        for value in values:
            checks += [(_JEQ, value, 0, 1), (_RET, verdict, 0, 0)]
        return [(_LD, _LOW_WORD[argument], 0, 0), *checks]

    def _emit(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append(pack("HBBI", code, if_true, if_false, value))


def _numbers(table: str) -> dict[str, int]:
    words = table.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


# Since Linux 5.1 new calls have the same number everywhere.
_COMMON = """
io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430
fsconfig 431 fsmount 432 fspick 433 clone3 435 pidfd_getfd 438 process_madvise 440 mount_setattr 442
quotactl_fd 443 memfd_secret 447 map_shadow_stack 453 open_tree_attr 467
"""
MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        _numbers(
            _COMMON
            + """
ioctl 16 shmget 29 shmat 30 shmctl 31 socket 41 socketpair 53 clone 56 shmdt 67 ptrace 101 syslog 103
uselib 134 ustat 136 sysfs 139 vhangup 153 modify_ldt 154 pivot_root 155 adjtimex 159 chroot 161 acct 163
settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 sethostname 170 setdomainname 171
iopl 172 ioperm 173 init_module 175 delete_module 176 quotactl 179 nfsservctl 180 lookup_dcookie 212
clock_settime 227 kexec_load 246 add_key 248 request_key 249 keyctl 250 unshare 272 vmsplice 278
perf_event_open 298 fanotify_init 300 prlimit64 302 name_to_handle_at 303 open_by_handle_at 304
clock_adjtime 305 setns 308 process_vm_readv 310 process_vm_writev 311 kcmp 312 finit_module 313
memfd_create 319 kexec_file_load 320 bpf 321 userfaultfd 323
"""
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        _numbers(
            _COMMON
            + """
lookup_dcookie 18 ioctl 29 umount2 39 mount 40 pivot_root 41 nfsservctl 42 chroot 51 vhangup 58 quotactl 60
vmsplice 75 acct 89 unshare 97 kexec_load 104 init_module 105 delete_module 106 clock_settime 112 syslog 116
ptrace 117 reboot 142 sethostname 161 setdomainname 162 settimeofday 170 adjtimex 171 shmget 194 shmctl 195
shmat 196 shmdt 197 socket 198 socketpair 199 add_key 217 request_key 218 keyctl 219 clone 220 swapon 224
swapoff 225 perf_event_open 241 prlimit64 261 fanotify_init 262 name_to_handle_at 264 open_by_handle_at 265
clock_adjtime 266 setns 268 process_vm_readv 270 process_vm_writev 271 kcmp 272 finit_module 273
memfd_create 279 bpf 280 userfaultfd 282 kexec_file_load 294
"""
        ),
    ),
}
