"""The system-call filter of `seccomp.py` as a profile for the engine, so that both backends deny the same.

It takes the place of the engine's own profile, which lets AF_VSOCK and others through. The engine compares
all 64 bits of an argument where the kernel looks at 32: values are masked, and sockets denied by range.
"""

from __future__ import annotations

import errno
import json

from fpenv.sandbox import seccomp

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_LOW_WORD = 0xFFFFFFFF

Rule = dict[str, object]


def build_profile() -> str:
    """Return the profile. Calls in a foreign ABI end the process: only the native one is listed."""
    rules = [_deny(calls, errno.EPERM) for calls in seccomp._DENIED_EPERM.values()]
    rules += [_deny(calls, errno.ENOSYS) for calls in seccomp._DENIED_ENOSYS.values()]
    rules += _restrict_families("socket", seccomp._SOCKET_FAMILIES)
    rules += _restrict_families("socketpair", seccomp._SOCKET_FAMILIES[:1])
    for bit in range(32):
        if seccomp._CLONE_FLAGS >> bit & 1:
            rules.append(_deny("clone", errno.EPERM, 0, "SCMP_CMP_MASKED_EQ", 1 << bit, 1 << bit))
    for request in (seccomp._TIOCSTI, seccomp._TIOCLINUX):
        rules.append(_deny("ioctl", errno.EPERM, 1, "SCMP_CMP_MASKED_EQ", _LOW_WORD, request))
    rules.append(_deny("prlimit64", errno.EPERM, 0, "SCMP_CMP_NE", 0))
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": list(_ARCHITECTURES.values()), "syscalls": rules}
    )


def _restrict_families(call: str, allowed: tuple[int, ...]) -> list[Rule]:
    """Deny all other families: rules of one call are alternatives, so one for each value and one for the rest."""
    between = [family for family in range(max(allowed)) if family not in allowed]
    rules = [_deny(call, errno.EAFNOSUPPORT, 0, "SCMP_CMP_EQ", family) for family in between]
    return [*rules, _deny(call, errno.EAFNOSUPPORT, 0, "SCMP_CMP_GT", max(allowed))]


def _deny(calls: str, number: int, argument: int = 0, operator: str = "", value: int = 0, second: int = 0) -> Rule:
    rule: Rule = {"names": calls.split(), "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    if operator:
        rule["args"] = [{"index": argument, "op": operator, "value": value, "valueTwo": second}]
    return rule
