"""The resident guest: process 1 of a sandbox, which runs commands and moves files for the host.

It reads call frames from its standard input and answers on its standard output. It is one file, uses the
standard library only and imports little, because its start is part of every sandbox's start. The host never
trusts it; it in turn must not be brought down by what runs beside it under the same user:

- it is not dumpable, so that nobody may trace it, read its memory or take its descriptors;
- as process 1 it ignores every signal from inside, and reaps every orphan;
- all it holds is bounded: output, service requests, connections.

A frame is a header (kind, call number, length of the payload) and a payload in a fixed layout; strings are
length-prefixed. `fpenv.sandbox.frames` is the host's side and imports the layout from here.
"""

import _signal  # type: ignore[import-not-found]
import errno
import os
import select
import stat
import time
from _functools import partial  # type: ignore[import-not-found]
from _struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

VERSION = 1

# Frames from the host
EXEC, READ, WRITE, COLLECT, REPLY = 1, 2, 3, 4, 5
# Frames from the guest
READY, STDOUT, STDERR, EXITED, DATA, END, DONE, FAILED, CALL, FILE, REFUSED, FATAL = range(16, 28)

HEADER = Struct("<BII")  # kind, call, payload length
LENGTH = Struct("<I")
EXEC_HEAD = Struct("<dQII")  # timeout_s, output limit, number of arguments, of variables; then cwd, ..., stdin
READ_HEAD = Struct("<QQ")  # offset, limit; then the path
WRITE_HEAD = Struct("<QI")  # offset (0 empties the file), length of the path; then path and data
COLLECT_HEAD = Struct("<Q")  # most bytes in all; then the paths
EXITED_HEAD = Struct("<iBdQQQQ")  # status, timed out, duration_s, head and cut of stdout, of stderr
END_HEAD = Struct("<Q")  # size of the file
FAILED_HEAD = Struct("<i")  # errno; then a text
CALL_HEAD = Struct("<IH")  # connection, length of the service's name; then name and request
FILE_HEAD = Struct("<IQ")  # index in the request, size; DATA frames follow
REFUSED_HEAD = Struct("<I")  # index in the request; then the reason
REQUEST_HEAD = Struct("<HI")  # on the services socket: length of the service's name, of the request
PATH_CODES = ("utf-8", "surrogateescape")

CHUNK = 64 << 10
MESSAGE_LIMIT = 1 << 20
CONNECTIONS = 32
SERVICES_SOCKET = "/run/fpenv/services.sock"
SPARSE_ALLOWANCE = 1 << 20
FOREVER = 1e9

PR_SET_DUMPABLE = 4
SYS_OPENAT2 = 437  # the same number on every architecture
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
COLLECT_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ELOOP: "is a symbolic link, or lies behind one",
    errno.EXDEV: "leads out of its folder",
    errno.ENOTDIR: "lies behind something that is not a folder",
    errno.EACCES: "may not be read",
    errno.ENXIO: "is not a regular file",
    errno.ENAMETOOLONG: "has too long a name",
}


class Stream:
    """One output of a command: its first bytes are passed on at once, its last ones at the end."""

    def __init__(self, kind: int, fd: int, limit: int) -> None:
        self.kind, self.fd = kind, fd
        self.head_room = limit // 2
        self.tail_size = limit - self.head_room
        self.head, self.beyond = 0, 0
        self.tail = bytearray()

    def read(self) -> bool:
        """Take up what is there; False once there is no more."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            return False
        room = self.head_room - self.head
        if room > 0:
            head, data = data[:room], data[room:]
            self.head += len(head)
            send(self.kind, head)
        if data:
            self.beyond += len(data)
            self.tail += data
            if len(self.tail) > 2 * self.tail_size + CHUNK:
                del self.tail[: len(self.tail) - self.tail_size]
        return True

    def finish(self) -> int:
        """Send the tail and return how much was left out before it."""
        if len(self.tail) > self.tail_size:
            del self.tail[: len(self.tail) - self.tail_size]
        for start in range(0, len(self.tail), CHUNK):
            send(self.kind, bytes(self.tail[start : start + CHUNK]))
        return self.beyond - len(self.tail)


class Command:
    """A command that runs: its process, its pipes, its deadline."""

    def __init__(self, pid: int, streams: list[Stream], stdin_fd: int | None, stdin: bytes, timeout_s: float) -> None:
        self.pid, self.streams = pid, streams
        self.stdin_fd, self.stdin = stdin_fd, stdin
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.status: int | None = None
        self.timed_out = False


class Connection:
    """A process's connection to the services socket: one request, then one reply."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.received = bytearray()
        self.to_send = b""
        self.waits = False


class Guest:
    """The event loop: host frames, the running command's pipes, children that end, service connections."""

    def __init__(self, host_fd: int, writable: list[str], services: bool) -> None:
        self.host_fd, self.writable = host_fd, writable
        self.buffer = bytearray()
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[], object]] = {}
        self.command: Command | None = None
        self.collected = False
        self.connections: dict[int, Connection] = {}
        self.queue: list[int] = []
        self.asked: int | None = None
        self.next_connection = 1
        self.listener: _socket.socket | None = None
        self.devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self.watch(host_fd, select.POLLIN, self.on_host)
        self.watch(wake_read, select.POLLIN, lambda: drain(wake_read))
        if services:
            self.listener = listen(SERVICES_SOCKET)

    def watch(self, fd: int, events: int, handler: "Callable[[], object]") -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def forget(self, fd: int) -> None:
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def run(self) -> None:
        send(READY, LENGTH.pack(VERSION))
        while True:
            for fd, _ in self.poll.poll(self.timeout_ms()):
                handler = self.handlers.get(fd)
                if handler:
                    handler()
            self.reap()
            if self.command:
                self.advance(self.command)

    def timeout_ms(self) -> float | None:
        if not self.command or self.command.timed_out:
            return None
        return max(0.0, min(FOREVER, (self.command.deadline - time.monotonic()) * 1000))

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self.command and pid == self.command.pid:
                self.command.status = os.waitstatus_to_exitcode(status)

    # Frames from the host

    def on_host(self) -> None:
        data = os.read(self.host_fd, CHUNK)
        if not data:
            os._exit(0)
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            kind, call, length = HEADER.unpack_from(self.buffer)
            if len(self.buffer) < HEADER.size + length:
                return
            payload = bytes(self.buffer[HEADER.size : HEADER.size + length])
            del self.buffer[: HEADER.size + length]
            self.on_frame(kind, call, payload)

    def on_frame(self, kind: int, call: int, payload: bytes) -> None:
        global current_call
        if kind == REPLY:
            self.on_reply(call, payload)
            return
        current_call = call
        try:
            if kind == EXEC:
                self.start(payload)
            elif kind == READ:
                read_file(payload)
            elif kind == WRITE:
                write_file(payload)
            elif kind == COLLECT:
                self.collect(payload)
        except OSError as error:
            send(FAILED, FAILED_HEAD.pack(error.errno or errno.EIO) + str(error.strerror).encode())

    # Commands

    def start(self, payload: bytes) -> None:
        if self.collected:
            raise OSError(errno.ESHUTDOWN, "the deliverables are collected, nothing runs any more")
        if self.command:
            self.abandon(self.command)
        timeout_s, limit, arguments, variables = EXEC_HEAD.unpack_from(payload)
        strings = unpack_strings(payload, EXEC_HEAD.size)
        cwd, stdin = strings[0], strings[-1]
        argv = strings[1 : 1 + arguments]
        env = dict(pair.split(b"=", 1) for pair in strings[1 + arguments : 1 + arguments + variables])
        files = [os.pipe2(os.O_CLOEXEC) for _ in range(3 if stdin else 2)]
        try:
            pid = spawn(argv, env, cwd, files[2][0] if stdin else self.devnull, files[0][1], files[1][1])
        except OSError as error:
            for fd in (fd for pair in files for fd in pair):
                os.close(fd)
            report_failed_start(argv, cwd, error)
            return
        for fd in (files[0][1], files[1][1], *(files[2][:1] if stdin else ())):
            os.close(fd)
        streams = [Stream(STDOUT, files[0][0], limit), Stream(STDERR, files[1][0], limit)]
        self.command = Command(pid, streams, files[2][1] if stdin else None, stdin, timeout_s)
        self.watch_command(self.command)
        self.accept_more()

    def watch_command(self, command: Command) -> None:
        for stream in command.streams:
            os.set_blocking(stream.fd, False)
            self.watch(stream.fd, select.POLLIN, partial(self.on_output, stream))
        if command.stdin_fd is not None:
            os.set_blocking(command.stdin_fd, False)
            self.watch(command.stdin_fd, select.POLLOUT, partial(self.on_stdin, command, command.stdin_fd))

    def on_output(self, stream: Stream) -> None:
        if not stream.read():
            self.forget(stream.fd)

    def on_stdin(self, command: Command, fd: int) -> None:
        try:
            command.stdin = command.stdin[os.write(fd, command.stdin[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            command.stdin = b""
        if not command.stdin:
            self.close_stdin(command)

    def close_stdin(self, command: Command) -> None:
        if command.stdin_fd is not None:
            self.forget(command.stdin_fd)
            os.close(command.stdin_fd)
            command.stdin_fd = None

    def abandon(self, command: Command) -> None:
        """End a command whose end nobody waits for any more."""
        kill(os.killpg, command.pid)
        self.close_stdin(command)
        for stream in command.streams:
            self.forget(stream.fd)
            os.close(stream.fd)
        self.command = None

    def advance(self, command: Command) -> None:
        """End the command if it has ended or its time is up."""
        if command.status is None:
            if not command.timed_out and time.monotonic() >= command.deadline:
                command.timed_out = True
                kill(os.killpg, command.pid)
            return
        kill(os.killpg, command.pid)
        duration_s = time.monotonic() - command.started
        self.close_stdin(command)
        self.command = None
        if self.listener is not None:
            self.forget(self.listener.fileno())
        cuts = []
        for stream in command.streams:
            # A process that left the group may hold the pipe open and write on: never wait for its end.
            for _ in range(MESSAGE_LIMIT // CHUNK + 1):
                if not stream.read():
                    break
            self.forget(stream.fd)
            os.close(stream.fd)
            cuts += [stream.head, stream.finish()]
        send(EXITED, EXITED_HEAD.pack(command.status, command.timed_out, duration_s, *cuts))

    # Services

    def accept_more(self) -> None:
        if self.listener is not None and self.command and len(self.connections) < CONNECTIONS:
            self.watch(self.listener.fileno(), select.POLLIN, partial(self.on_connect, self.listener))
            self.ask_next()

    def on_connect(self, listener: "_socket.socket") -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        os.set_blocking(fd, False)
        number, self.next_connection = self.next_connection, self.next_connection % 0xFFFFFFFF + 1
        self.connections[number] = Connection(fd)
        self.watch(fd, select.POLLIN, partial(self.on_connection, number))
        if len(self.connections) >= CONNECTIONS:
            self.forget(listener.fileno())

    def on_connection(self, number: int) -> None:
        connection = self.connections[number]
        if connection.to_send:
            self.send_reply(number)
            return
        try:
            data = os.read(connection.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or connection.waits:
            self.drop(number)
            return
        connection.received += data
        self.check_request(number)

    def check_request(self, number: int) -> None:
        connection = self.connections[number]
        if len(connection.received) < REQUEST_HEAD.size:
            return
        name, body = REQUEST_HEAD.unpack_from(connection.received)
        if body > MESSAGE_LIMIT or name > 255:
            self.answer(number, b'{"error": "a request may have 1 MiB"}')
        elif len(connection.received) >= REQUEST_HEAD.size + name + body:
            connection.waits = True
            del connection.received[REQUEST_HEAD.size + name + body :]
            self.queue.append(number)
            self.ask_next()

    def ask_next(self) -> None:
        while self.asked is None and self.queue and self.command:
            number = self.queue.pop(0)
            connection = self.connections.get(number)
            if connection is None:
                continue
            name, _ = REQUEST_HEAD.unpack_from(connection.received)
            request = bytes(connection.received[REQUEST_HEAD.size :])
            connection.received = bytearray()
            self.asked = number
            send(CALL, CALL_HEAD.pack(number, name) + request)

    def on_reply(self, number: int, payload: bytes) -> None:
        if number == self.asked:
            self.asked = None
        if number in self.connections:
            self.answer(number, payload)
        self.ask_next()

    def answer(self, number: int, payload: bytes) -> None:
        connection = self.connections[number]
        connection.to_send = LENGTH.pack(len(payload)) + payload
        self.poll.modify(connection.fd, select.POLLOUT)
        self.send_reply(number)

    def send_reply(self, number: int) -> None:
        connection = self.connections[number]
        try:
            connection.to_send = connection.to_send[os.write(connection.fd, connection.to_send) :]
        except BlockingIOError:
            return
        except OSError:
            connection.to_send = b""
        if not connection.to_send:
            self.drop(number)

    def drop(self, number: int) -> None:
        connection = self.connections.pop(number)
        self.forget(connection.fd)
        os.close(connection.fd)
        if self.command:
            self.accept_more()

    # Deliverables

    def collect(self, payload: bytes) -> None:
        self.collected = True
        kill_everything()
        (budget,) = COLLECT_HEAD.unpack_from(payload)
        for index, path in enumerate(unpack_strings(payload, COLLECT_HEAD.size)):
            content = collect_file(path.decode(*PATH_CODES), budget, self.writable)
            if isinstance(content, str):
                send(REFUSED, REFUSED_HEAD.pack(index) + content.encode())
                continue
            budget -= len(content)
            send(FILE, FILE_HEAD.pack(index, len(content)))
            send_data(content)
        send(DONE, b"")


current_call = 0
out_fd = 1


def send(kind: int, payload: bytes) -> None:
    """Write one frame whole; the host reads on, or has gone and takes the sandbox with it."""
    data = HEADER.pack(kind, current_call, len(payload)) + payload
    while data:
        try:
            data = data[os.write(out_fd, data) :]
        except BlockingIOError:
            select.select([], [out_fd], [])
        except OSError:
            os._exit(0)


def send_data(content: bytes) -> None:
    for start in range(0, len(content), CHUNK):
        send(DATA, content[start : start + CHUNK])


def unpack_strings(payload: bytes, at: int) -> list[bytes]:
    strings = []
    while at < len(payload):
        (length,) = LENGTH.unpack_from(payload, at)
        at += LENGTH.size
        strings.append(payload[at : at + length])
        at += length
    return strings


def drain(fd: int) -> None:
    try:
        while len(os.read(fd, CHUNK)) == CHUNK:
            pass
    except BlockingIOError:
        pass


def spawn(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, stdin: int, stdout: int, stderr: int) -> int:
    """Start argv as the leader of a session of its own, signals as at login."""
    os.chdir(cwd)
    try:
        return os.posix_spawn(
            find_program(argv[0], env.get(b"PATH", b"")),
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD],
        )
    finally:
        os.chdir("/")


def find_program(name: bytes, path: bytes) -> bytes:
    if b"/" in name:
        return name
    for folder in path.split(b":"):
        candidate = folder + b"/" + name
        if folder and os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(errno.ENOENT, "no such command", name)


def report_failed_start(argv: list[bytes], cwd: bytes, error: OSError) -> None:
    """Answer as a shell would: 127 if there is no such command, else 126, and why on stderr."""
    name = cwd if error.filename in (cwd, cwd.decode(*PATH_CODES)) else argv[0]
    missing = error.errno == errno.ENOENT and name is not cwd
    text = b"fpenv: cannot start: " + name + b": " + str(error.strerror).encode() + b"\n"
    send(STDERR, text)
    send(EXITED, EXITED_HEAD.pack(127 if missing else 126, False, 0.0, 0, 0, len(text), 0))


def kill(send_signal: "Callable[[int, int], None]", target: int) -> None:
    try:
        send_signal(target, _signal.SIGKILL)
    except OSError:
        return  # nobody is left


def kill_everything() -> None:
    """Kill and reap until nobody is left: process 1 is the last one."""
    while True:
        kill(os.kill, -1)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def read_file(payload: bytes) -> None:
    offset, limit = READ_HEAD.unpack_from(payload)
    path = payload[READ_HEAD.size :]
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        info = os.fstat(fd)
        check_regular(info)
        if info.st_dev == os.stat("/proc").st_dev:
            # The guest would be asked for its own memory and environment.
            raise PermissionError(errno.EACCES, "files in /proc are read with a command")
        while limit:
            data = os.pread(fd, min(limit, CHUNK), offset)
            if not data:
                break
            send(DATA, data)
            offset += len(data)
            limit -= len(data)
    finally:
        os.close(fd)
    send(END, END_HEAD.pack(info.st_size))


def make_folders(folder: bytes) -> None:
    """As os.makedirs, which recurses and so fails on a path of a thousand parts."""
    missing = []
    while folder not in (b"", b"/") and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        try:  # noqa: SIM105 - importing contextlib costs start-up time
            os.mkdir(path)
        except FileExistsError:
            pass  # a file in the way, which opening the path will tell


def write_file(payload: bytes) -> None:
    offset, length = WRITE_HEAD.unpack_from(payload)
    path = payload[WRITE_HEAD.size : WRITE_HEAD.size + length]
    data = memoryview(payload)[WRITE_HEAD.size + length :]
    make_folders(os.path.dirname(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fd = os.open(path, flags | (0 if offset else os.O_TRUNC), 0o644)
    try:
        check_regular(os.fstat(fd))
        while data:
            written = os.pwrite(fd, data, offset)
            offset += written
            data = data[written:]
    finally:
        os.close(fd)
    send(DONE, b"")


def check_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not stat.S_ISREG(info.st_mode):
        raise PermissionError(errno.EACCES, "is not a regular file")


def collect_file(path: str, budget: int, writable: list[str]) -> bytes | str:
    """Return a file's content, or the reason why it is refused."""
    root = next((folder for folder in writable if path.startswith(folder + "/")), None)
    if root is None:
        return "is not in a folder that the agent can write"
    opened = []
    try:
        opened.append(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        opened.append(open_beneath(opened[0], path[len(root) + 1 :]))
        info = os.fstat(opened[1])
        return refuse(info, budget) or read_exactly(opened[1], info.st_size)
    except OSError as error:
        return COLLECT_REASONS.get(error.errno or 0, str(error.strerror))
    finally:
        for fd in opened:
            os.close(fd)


def refuse(info: os.stat_result, budget: int) -> str | None:
    if not stat.S_ISREG(info.st_mode):
        return "is a folder" if stat.S_ISDIR(info.st_mode) else "is not a regular file"
    if info.st_nlink != 1:
        return f"has {info.st_nlink} links, expected one"
    if info.st_size > budget:
        return f"has {info.st_size} bytes, {budget} are left"
    if info.st_size - 512 * info.st_blocks > SPARSE_ALLOWANCE:
        return "is sparse"
    return None


def open_beneath(base: int, path: str) -> int:
    """Open without following any link and without leaving the folder or its file system."""
    import ctypes

    resolve = RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    how = Struct("<QQQ").pack(flags, 0, resolve)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(SYS_OPENAT2, base, path.encode(*PATH_CODES), how, len(how)))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        data = os.read(fd, min(size, MESSAGE_LIMIT))
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def listen(path: str) -> "_socket.socket":
    import _socket

    os.makedirs(os.path.dirname(path), exist_ok=True)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    listener.bind(path)
    listener.listen(CONNECTIONS)
    listener.setblocking(False)
    return listener


def forbid_tracing() -> None:
    """Make /proc/1/mem, ptrace and pidfd_getfd on the guest fail."""
    try:
        import _ctypes

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        result = _ctypes.call_function(function, (PR_SET_DUMPABLE, 0, 0, 0, 0))
    except (AttributeError, TypeError):  # the private module has changed: take the slower public one
        import ctypes

        result = ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if result != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def take_over_descriptors() -> int:
    """Move the host's descriptors out of the children's reach; 0, 1 and 2 become /dev/null."""
    global out_fd
    host_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    return host_fd


def main(writable: list[str], services: bool) -> None:
    """Serve the host until it goes.

    writable: the folders that deliverables may lie in; services: whether processes may call the host.
    """
    host_fd = take_over_descriptors()
    forbid_tracing()
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # process 1 ignores what it has no handler for
    os.umask(0o022)
    guest = Guest(host_fd, writable, services)
    os.dup2(0, 2)
    try:
        guest.run()
    except BaseException as error:
        send(FATAL, f"{type(error).__name__}: {error}".encode()[:CHUNK])
        os._exit(1)
