"""The filter as a program: every path of it, by interpreting it."""

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from fpenv.errors import SandboxError
from fpenv.sandbox import seccomp

MACHINES = sorted(seccomp.MACHINES)
ALLOW, KILL = 0x7FFF0000, 0x80000000
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


def interpret(program: bytes, data: bytes) -> int:
    """Run classic BPF over a seccomp_data record."""
    code = list(struct.iter_unpack("HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += if_true if holds else if_false


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", name)))
    return name


def verdict(machine: str, call: str | int, *arguments: int, bounded: bool = True) -> int:
    facts = seccomp.MACHINES[machine]
    number = facts.numbers[call] if isinstance(call, str) else call
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    record = struct.pack("iIQ6Q", number, facts.audit_arch, 0, *padded)
    return interpret(seccomp.build_filter(memory_is_bounded=bounded), record)


def test_denied_calls_get_their_error_and_others_pass(machine: str) -> None:
    assert verdict(machine, "mount") == 0x50000 | errno.EPERM
    assert verdict(machine, "ptrace") == 0x50000 | errno.EPERM
    assert verdict(machine, "clone3") == 0x50000 | errno.ENOSYS
    assert verdict(machine, "bpf") == 0x50000 | errno.ENOSYS
    assert verdict(machine, 63) == ALLOW


def test_memory_outside_of_processes_is_only_for_bounded_sandboxes(machine: str) -> None:
    assert verdict(machine, "memfd_create") == ALLOW
    assert verdict(machine, "memfd_create", bounded=False) == 0x50000 | errno.ENOSYS


@pytest.mark.parametrize(
    ("call", "arguments", "number"),
    [
        ("socket", (1, 1), None),
        ("socket", (2, 2), None),
        ("socket", (10, 1), None),
        ("socket", (16, 3), errno.EAFNOSUPPORT),
        ("socket", (40, 1), errno.EAFNOSUPPORT),
        ("socketpair", (1, 1), None),
        ("socketpair", (2, 1), errno.EAFNOSUPPORT),
        ("ioctl", (0, 0x5401), None),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x5412 | 1 << 32), errno.EPERM),
        ("ioctl", (0, 0x541C), errno.EPERM),
        ("clone", (17,), None),
        ("clone", (0x003D0F00,), None),
        ("clone", (0x10000000 | 17,), errno.EPERM),
        ("clone", (0x00020000 | 17,), errno.EPERM),
        ("prlimit64", (0, 7), None),
        ("prlimit64", (1, 7), errno.EPERM),
    ],
)
def test_arguments_decide(machine: str, call: str, arguments: tuple[int, ...], number: int | None) -> None:
    assert verdict(machine, call, *arguments) == (ALLOW if number is None else 0x50000 | number)


def test_foreign_abis_end_the_process(machine: str) -> None:
    program = seccomp.build_filter(memory_is_bounded=True)
    assert interpret(program, struct.pack("iIQ6Q", 20, 0x40000003, 0, *(0,) * 6)) == KILL


def test_x32_calls_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "x86_64")))
    assert verdict("x86_64", 0x40000000 | 59) == KILL


def test_unknown_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "vax")))
    with pytest.raises(SandboxError, match="vax"):
        seccomp.build_filter(memory_is_bounded=True)


@pytest.mark.parametrize("name", MACHINES)
def test_numbers_agree_with_the_kernels_headers(name: str) -> None:
    header = next((Path(path) for path in HEADERS[name] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"no kernel headers for {name}")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    numbers = seccomp.MACHINES[name].numbers
    assert {call: n for call, n in numbers.items() if call in known} == {
        call: int(known[call]) for call in numbers if call in known
    }
    assert len(set(numbers) & set(known)) > 30
