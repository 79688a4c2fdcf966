"""Scalars in TensorBoard's event files, read with the standard library alone while they grow.

The format: TFRecords (https://www.tensorflow.org/tutorials/load_data/tfrecord) of `Event` messages
in protocol buffers (tensorboard/compat/proto/event.proto, summary.proto, tensor.proto). Their
check sums are not looked at. Numbers are what TensorBoard keeps: 32-bit floats, mostly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from celedger.model import EpochReport
from celedger.trial.epochs import Epochs

CHUNK = 1 << 18  # bytes read at once
LONGEST = 1 << 26  # bytes a record; images are passed over, and a longer one is no event
_HEAD, _FOOT = 12, 4  # bytes before and after a record: its length, and check sums
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FLOAT, _DOUBLE = 1, 2  # DataType of a TensorProto
_UNFIT = re.compile(r"[^A-Za-z0-9_./-]+")


class EventFiles:
    """All event files below a folder. A value belongs to the epoch that a tag named `epoch` (or
    `…/epoch`) says at the same step, and where there is none to the epoch numbered as its step.
    With `new`, only what is written from now on: what lies there is of other trainings, such as
    those whose files a commit has. The folder counts as long as it lies `within` that one."""

    def __init__(self, folder: Path, *, new: bool = False, within: Path | None = None) -> None:
        self._folder, self._within = folder, within
        self._files: dict[Path, _File] = {}
        self._before: dict[Path, int] = {}  # file: its size, in bytes
        if new:
            self._before = {path: path.stat().st_size for path in self._found()}

    @property
    def rubbish(self) -> int:
        return sum(file.broken for file in self._files.values())

    def afresh(self) -> EventFiles:
        again = EventFiles(self._folder, within=self._within)
        again._before = self._before
        return again

    def _found(self) -> list[Path]:
        """Never by a link: the folder may be the commit's, and lead to anybody's files."""
        real = self._folder.resolve()
        if self._within is not None and not real.is_relative_to(self._within.resolve()):
            return []
        files = (path for path in real.rglob("*tfevents*") if not path.is_symlink())
        return sorted(path for path in files if path.is_file())

    def read(self, *, end: bool) -> list[EpochReport]:
        found: list[EpochReport] = []
        for path in self._found():
            file = self._files.setdefault(path, _File(path, self._before.get(path, 0)))
            found += file.read(end=end)
        return found


class _File:
    def __init__(self, path: Path, offset: int) -> None:
        self.broken = False
        self._path = path
        self._offset = offset  # of the first byte that was not read
        self._step = 0
        self._group: dict[str, float] = {}  # what was said of that step
        self._epoch: float | None = None
        self._epochs = Epochs()

    def read(self, *, end: bool) -> list[EpochReport]:
        found: list[EpochReport] = []
        for record in self._records(all_of_them=end):
            try:
                step, scalars = event(record)
            except (ValueError, IndexError, struct.error, UnicodeDecodeError):
                self.broken = True
                continue
            if scalars and step != self._step:
                found += self._close()
                self._step = step
            self._group.update(scalars)
        if end:
            found += [*self._close(), *self._epochs.flush()]
        return found

    def _close(self) -> list[EpochReport]:
        """The step is complete: the tag that tells its epoch may have come last."""
        group, self._group = self._group, {}
        values = {}
        for tag, value in group.items():
            if tag.rpartition("/")[2] == "epoch":
                self._epoch = value
            else:
                name = _UNFIT.sub("_", tag)[:64]
                values[name if name[:1].isalpha() else f"_{name}"[:64]] = value
        if not values:
            return []
        return self._epochs.put(self._step if self._epoch is None else self._epoch, values)

    def _records(self, *, all_of_them: bool) -> Iterator[bytes]:
        """The complete ones that were not read before."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            began = self._offset
            while not self.broken and (all_of_them or self._offset - began < CHUNK):
                head = file.read(_HEAD)
                if len(head) < _HEAD:
                    return
                (length,) = struct.unpack("<Q", head[:8])
                if length > LONGEST:
                    self.broken = True
                    return
                body = file.read(length + _FOOT)
                if len(body) < length + _FOOT:
                    return
                self._offset += _HEAD + length + _FOOT
                yield body[:length]


def event(record: bytes) -> tuple[int, dict[str, float]]:
    """(step, tag -> value) of an Event message. Raises ValueError, IndexError or struct.error
    for what is none."""
    step, scalars = 0, {}
    for number, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for inner, one in _fields(value):
                if inner == 1 and isinstance(one, bytes):
                    tag, scalar = _scalar(one)
                    if tag and scalar is not None:
                        scalars[tag] = scalar
    return step, scalars


def _scalar(message: bytes) -> tuple[str, float | None]:
    """A Summary.Value: its tag and its number, if it is one."""
    tag, scalar = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """The one number of a TensorProto of floats or doubles; None of any other tensor."""
    kind, content = 0, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
    layout = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    if layout is None or len(content) != struct.calcsize(layout):
        return None
    (scalar,) = struct.unpack(layout, content)
    return float(scalar)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protocol buffer; fixed-width values as their bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(message):
            raise ValueError("cut short")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a varint without end")
    return value - (1 << 64) if value >> 63 else value, at


__all__ = ["EventFiles", "event"]
