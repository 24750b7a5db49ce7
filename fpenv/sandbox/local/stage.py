"""The launcher's process: forks once for each sandbox, prepares its stage, then becomes bubblewrap.

It is a process of its own because forking it costs the same whatever the host process holds, because one
long-lived thread must be every sandbox's parent (bubblewrap ends with the thread that started it), and
because it ends, and all sandboxes with it, when the host process does. Standard library only.

The stage is one tmpfs in a mount namespace of the sandbox's own: it limits size and number of the sandbox's
files together, holds the files it starts with, and vanishes with the last process. Each step of the child:
enter the control groups, become the sandbox's user for good, make a user and mount namespace, mount and fill
the tmpfs, execute bubblewrap with no environment.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
SECCOMP_FD = 99
DESCRIPTORS = 3  # request, the guest's end of the pipe, stderr
SETUP_FAILED = 71

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    check(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")  # or /proc/self would still be root's


def unshare_mounts() -> None:
    """Enter a user namespace that may mount, with only this user in it."""
    uid, gid = os.getuid(), os.getgid()
    check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare (a user namespace)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_stage(folder: str, size: int, inodes: int) -> None:
    options = f"size={size},nr_inodes={inodes},mode=0755".encode()
    flags = MS_NOSUID | MS_NODEV
    check(_libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options), "mount (a tmpfs)")


def fill_stage(
    folder: str, folders: list[tuple[str, int]], files: list[tuple[str, int, int]], content: memoryview
) -> None:
    """Make folders and files; `files` holds path, size and mode, in the order of `content`."""
    for name, mode in folders:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        os.chmod(os.path.join(folder, name), mode)
    for name, size, mode in files:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        data, content = content[:size], content[size:]
        while data:
            data = data[os.write(fd, data) :]
        os.close(fd)


def pass_filter(program: bytes) -> None:
    read, write = os.pipe()
    os.write(write, program)
    os.close(write)
    os.dup2(read, SECCOMP_FD)


def limit_resources(limits: dict[str, int]) -> None:
    """Set limits, never above what this process may. In a user namespace of its own, so that no one else's count."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def run_child(request: dict[str, Any], content: memoryview, pipe_fd: int, stderr_fd: int) -> None:
    os.dup2(stderr_fd, 2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o022)
    for entry in request["cgroups"]:
        with open(entry, "w") as file:
            file.write("0")
    if request["uid"] is not None:
        become(request["uid"])
    unshare_mounts()
    mount_stage(request["stage"], request["size"], request["inodes"])
    fill_stage(request["stage"], request["folders"], request["files"], content)
    pass_filter(bytes.fromhex(request["filter"]))
    limit_resources(request["limits"])
    os.dup2(pipe_fd, 0)
    os.dup2(pipe_fd, 1)
    os.chdir("/")
    os.execve(request["argv"][0], request["argv"], {})


def start(fds: list[int]) -> dict[str, Any]:
    request_fd, pipe_fd, stderr_fd = fds
    with open(request_fd, "rb", closefd=False) as file:
        data = file.read()
    (length,) = struct.unpack_from("<I", data)
    request = json.loads(data[4 : 4 + length])
    pid = os.fork()
    if pid:
        return {"pid": pid}
    try:
        run_child(request, memoryview(data)[4 + length :], pipe_fd, stderr_fd)
    except BaseException as error:
        os.write(stderr_fd, f"{error}\n".encode())
    os._exit(SETUP_FAILED)


def answer(message: bytes, fds: list[int]) -> dict[str, Any]:
    if fds:
        return start(fds)
    pid, status = os.waitpid(json.loads(message)["reap"], os.WNOHANG)
    return {"status": os.waitstatus_to_exitcode(status) if pid else None}


def main(control_fd: int, parent: int) -> None:
    """Serve start and reap requests until the host process has gone."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    control = socket.socket(fileno=control_fd)
    while True:
        message, ancillary, _, _ = control.recvmsg(4096, socket.CMSG_SPACE(4 * DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        fds = [fd for _, _, data in ancillary for fd in struct.unpack(f"{len(data) // 4}i", data)]
        try:
            reply = answer(message, fds)
        except OSError as error:
            reply = {"error": str(error)}
        for fd in fds:
            os.close(fd)
        control.send(json.dumps(reply).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
