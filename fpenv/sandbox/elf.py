"""Makes a copied interpreter find the shared libraries beside it: rewrites the search path in its ELF file."""

from __future__ import annotations

import struct
from pathlib import Path

_NEW_PATH = b"$ORIGIN/../lib\0"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29


def point_to_own_libraries(binary: Path, prefix: Path) -> None:
    """Let a 64-bit little-endian binary search $ORIGIN/../lib where it searched below `prefix`.

    Binaries that name no such path are left alone unless they load a libpython. Raises ValueError.
    """
    data = bytearray(binary.read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is not a 64-bit little-endian ELF file")
    segments = _segments(data)
    entries = _dynamic_entries(data, segments)
    strings = next((_offset(segments, value) for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return  # static
    paths = [strings + value for tag, value in entries if tag in (_DT_RPATH, _DT_RUNPATH)]
    texts = {start: bytes(data[start : data.index(0, start)]) for start in paths}
    if any(b"$ORIGIN" in text for text in texts.values()):
        return
    needed = [strings + value for tag, value in entries if tag == _DT_NEEDED]
    if not any(data[start : start + 9] == b"libpython" for start in needed):
        return
    fitting = [start for start, text in texts.items() if len(text) + 1 >= len(_NEW_PATH)]
    if not fitting:
        raise ValueError(f"it loads a libpython, and its search path has no room for {_NEW_PATH[:-1].decode()}")
    for start in fitting:
        data[start : start + len(_NEW_PATH)] = _NEW_PATH
    binary.write_bytes(data)


def _segments(data: bytearray) -> list[tuple[int, int, int, int]]:
    """Return (type, file offset, address, size in the file) of each program header."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = []
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + index * size)
        segments.append((kind, offset, address, length))
    return segments


def _dynamic_entries(data: bytearray, segments: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    for kind, offset, _, length in segments:
        if kind == _PT_DYNAMIC:
            return list(struct.iter_unpack("<QQ", data[offset : offset + length]))
    return []


def _offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return offset + address - start
    raise ValueError("its dynamic section points nowhere")
