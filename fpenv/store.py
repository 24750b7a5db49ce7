"""A run on disk: a folder that a person can read, and a trajectory that survives a kill at any moment.

    run.json             task, digest, instance, agent, stop, versions
    trajectory.msgpack   one frame a step
    deliverables/        what was handed in, as graded
    grade.json           the grade, canonical bytes

A trajectory is a row of frames: length and CRC-32 (each 4 bytes, little-endian), then a msgpack payload.
The first frame is the header; each later one is a `Step`. A frame is handed to the operating system before
`append` returns, so a killed process loses no step; a power cut may lose the last. Reading stops at the
first frame that is not whole, and says so.
"""

from __future__ import annotations

import base64
import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgpack
from pydantic import BaseModel, Field, ValidationError

from fpenv.errors import ConfigError
from fpenv.records import Grade, Record, Step

MAGIC = "fpenv-trajectory"
VERSION = 1
FRAME = struct.Struct("<II")
MAX_FRAME_BYTES = 256 << 20
MAX_DEPTH = 64
BIG_INT = 1

R = TypeVar("R", bound=Record)


class Header(Record):
    """The first frame. `metadata` is whatever the writer wants to find again."""

    magic: str
    version: int
    metadata: dict[str, Any] = Field(default_factory=dict)


class RunInfo(Record):
    """What was run, with what, and how it ended."""

    task: str
    task_digest: str
    instance: str
    agent: str
    stop: str
    oracle: bool = False
    versions: dict[str, str] = Field(default_factory=dict)


class Trajectory(NamedTuple):
    """What a file holds. `header` is None when not even that is whole; `complete` when nothing was cut."""

    header: Header | None
    steps: tuple[Step, ...]
    complete: bool


class TrajectoryWriter:
    """Writes a new trajectory, step by step. Not thread-safe. A context manager that closes."""

    def __init__(self, path: Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Create the file. Raises ConfigError where one exists: a trajectory is never overwritten."""
        header = {"magic": MAGIC, "version": VERSION, "metadata": _plain(dict(metadata or {}))}
        try:
            self._file: BinaryIO = path.open("xb", buffering=0)
        except FileExistsError as error:
            raise ConfigError(f"{path}: expected no trajectory here, found one; choose another folder") from error
        self._file.write(_frame(header))

    def append(self, step: Step) -> None:
        """Add one step. What msgpack has no type for is converted (see `_plain`)."""
        self._file.write(_frame(_plain(step)))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_trajectory(path: Path) -> Trajectory:
    """Read the whole frames of a trajectory. Raises ConfigError for another format or version."""
    return parse_trajectory(path.read_bytes(), str(path))


def parse_trajectory(data: bytes, where: str = "trajectory") -> Trajectory:
    """Parse a trajectory's bytes: any prefix of a file gives a prefix of its steps."""
    frames = _frames(data)
    end, payload = next(frames, (0, None))
    if payload is None:
        if len(data) >= FRAME.size and not _may_be_header(data):
            raise ConfigError(f"{where}: expected a {MAGIC} file, got something else")
        return Trajectory(None, (), False)
    header = _header(payload, where)
    steps: list[Step] = []
    for after, payload in frames:
        try:
            steps.append(Step.model_validate(payload))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{where}: frame {len(steps) + 1}, key {key}: {first['msg']}") from error
        end = after
    return Trajectory(header, tuple(steps), end == len(data))


def export_jsonl(steps: Iterable[Step], path: Path) -> None:
    """Write one JSON object a step. Bytes become {"base64": ...}; NaN and infinities become strings."""
    lines = (json.dumps(jsonable(step), allow_nan=False, sort_keys=True) for step in steps)
    _write_whole(path, "".join(line + "\n" for line in lines).encode())


class RunFolder:
    """The folder of one run. Files are replaced whole: a reader never sees half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make the folder. Raises ConfigError where one with a run exists."""
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"{path}: expected an empty or new folder for the run, found files in it")
        return cls(path)

    @property
    def trajectory(self) -> Path:
        return self.path / "trajectory.msgpack"

    @property
    def deliverables(self) -> Path:
        return self.path / "deliverables"

    def start_trajectory(self, metadata: Mapping[str, Any] | None = None) -> TrajectoryWriter:
        """Begin the run's trajectory."""
        return TrajectoryWriter(self.trajectory, metadata)

    def write_run(self, info: RunInfo) -> None:
        _write_whole(self.path / "run.json", canonical_json(info))

    def read_run(self) -> RunInfo:
        return _read_record(RunInfo, self.path / "run.json")

    def write_grade(self, grade: Grade) -> None:
        _write_whole(self.path / "grade.json", canonical_json(grade))

    def read_grade(self) -> Grade:
        return _read_record(Grade, self.path / "grade.json")

    def write_deliverables(self, files: Mapping[str, bytes]) -> None:
        """Keep what was handed in. Raises ConfigError for a name that is no path below the folder."""
        for name in files:
            check_name(name)
        self.deliverables.mkdir(exist_ok=True)
        for name, content in files.items():
            target = self.deliverables / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(target, content)

    def read_deliverables(self) -> dict[str, bytes]:
        return read_files(self.deliverables)


def read_files(folder: Path) -> dict[str, bytes]:
    """Regular files below a folder, path relative to it -> content, sorted. Links are not followed."""
    found = (f for f in sorted(folder.rglob("*")) if f.is_file() and not f.is_symlink())
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in found}


def check_name(name: str) -> str:
    """Return a file's name as it is, if it is a plain relative POSIX path. Raises ConfigError."""
    parts = PurePosixPath(name).parts
    plain = bool(parts) and "/".join(parts) == name and ".." not in parts and not name.startswith("/")
    if not plain or not name.isprintable() or "\\" in name or any(len(part.encode()) > 255 for part in parts):
        raise ConfigError(f"expected a plain relative path as a file's name, got {name[:200]!r}")
    return name


def canonical_json(record: Record) -> bytes:
    """The one way a record is written: sorted keys, indented, ASCII, a final newline."""
    return (json.dumps(jsonable(record), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def jsonable(value: Any) -> Any:
    """Records and plain data as JSON has them: bytes become {"base64": ...}, NaN and infinities strings."""
    return _jsonable(_plain(value))


def _frame(payload: object) -> bytes:
    body: bytes = msgpack.packb(payload, unicode_errors="surrogatepass")
    if len(body) > MAX_FRAME_BYTES:
        raise ConfigError(f"expected a step of at most {MAX_FRAME_BYTES} bytes, got {len(body)}")
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def _frames(data: bytes) -> Iterator[tuple[int, Any]]:
    """Whole frames in order, each with the offset after it; ends at the first that is not whole."""
    start = 0
    while start + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, start)
        end = start + FRAME.size + length
        if length > MAX_FRAME_BYTES or end > len(data):
            return
        body = data[start + FRAME.size : end]
        if zlib.crc32(body) != checksum:
            return
        try:
            payload = msgpack.unpackb(body, ext_hook=_extension, unicode_errors="surrogatepass")
        except (ValueError, RecursionError, msgpack.exceptions.UnpackException):
            return
        yield end, payload
        start = end


def _extension(code: int, data: bytes) -> Any:
    return int(data) if code == BIG_INT else msgpack.ExtType(code, data)


def _may_be_header(data: bytes) -> bool:
    """Whether bytes too short for a header frame still look like the beginning of one."""
    body = data[FRAME.size :]
    start = msgpack.packb({"magic": MAGIC})[1:]
    whole: int = FRAME.size + FRAME.unpack_from(data)[0]
    return len(data) < whole and body[1 : 1 + len(start)] == start[: len(body[1:])]


def _header(payload: Any, where: str) -> Header:
    if not isinstance(payload, dict) or payload.get("magic") != MAGIC:
        raise ConfigError(f"{where}: expected a {MAGIC} file, got something else")
    if payload.get("version") != VERSION:
        raise ConfigError(
            f"{where}: expected trajectory version {VERSION}, got {payload.get('version')!r}; "
            "read it with the fpenv that wrote it"
        )
    try:
        return Header.model_validate(payload, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{where}: header key {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}") from error


def _plain(value: Any, depth: int = 0) -> Any:
    """Turn a value into what msgpack takes, changing as little as possible.

    Records become maps, tuples and arrays lists, sets sorted lists, NumPy scalars Python numbers, integers
    beyond 64 bits an extension type, keys text; what is nested more than 64 deep becomes text.
    Raises ConfigError for a type with no meaning on disk.
    """
    if value is None or (isinstance(value, str | bytes | bool) and type(value) in (str, bytes, bool, type(None))):
        return value
    if type(value) is int:
        small = -(1 << 63) <= value < (1 << 64)
        return value if small else msgpack.ExtType(BIG_INT, _decimal(value))
    if type(value) is float:
        return value
    if depth > MAX_DEPTH:
        return "(nested too deep)"
    if isinstance(value, msgpack.ExtType):
        return value
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name), depth + 1) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return [_plain(item, depth + 1) for item in sorted(value, key=lambda item: (type(item).__name__, repr(item)))]
    return _from_other(value, depth)


def _from_other(value: Any, depth: int) -> Any:
    """Subclasses of plain types, and NumPy's scalars and arrays."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return _plain(int(value), depth)
    if isinstance(value, float):
        return float(value)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        native = value.tolist()
        if type(native) is not type(value):
            return _plain(native, depth)
        return float(value)
    raise ConfigError(f"expected a value that can be written to a trajectory, got {type(value).__name__}")


def _decimal(value: int) -> bytes:
    try:
        return str(value).encode()
    except ValueError:  # beyond Python's limit on digits
        raise ConfigError(f"expected an integer of at most 4300 digits, got {value.bit_length()} bits") from None


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, msgpack.ExtType):
        return _extension(value.code, value.data)
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _read_record(kind: type[R], path: Path) -> R:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: expected a run's file, got {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: key {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)
