"""Read the reports of a training that does not call `log`, by the rules of its task. A second
reading gives the same reports, so those that a dead runner did not store are not lost.

Scalars in TensorBoard's event files are read with the standard library alone while the files grow.
The format: TFRecords (https://www.tensorflow.org/tutorials/load_data/tfrecord) of `Event` messages
in protocol buffers (tensorboard/compat/proto/event.proto, summary.proto, tensor.proto). Their
checksums are ignored. Numbers have TensorBoard's precision: 32-bit floats, mostly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from celedger.base.model import EpochReport
from celedger.trial.protocol import Epochs

CHUNK = 1 << 18  # bytes read at once
LONGEST_LINE = 1 << 16  # bytes; the rest of a longer one is ignored
LONGEST = 1 << 26  # bytes a record; images are skipped, and a longer record is no event
_LINE_ENDS = re.compile(rb"[\r\n]")  # progress bars return the carriage instead of feeding a line
# Where tqdm's bar ends, `[02:46<63:54:23,  2.30s/it]`: what is printed next continues that line.
_BAR = re.compile(rb"\[[\d:]+<[\d:?]+,[^]\r\n]{,500}\]")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours may separate a name and its number
_HEAD, _FOOT = 12, 4  # bytes before and after a record: its length, and checksums
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FLOAT, _DOUBLE = 1, 2  # DataType of a TensorProto
UNFIT = re.compile(r"[^A-Za-z0-9_./-]+")  # no part of a metric's name


class Printed:
    """Lines of a log, searched by patterns whose named groups are metrics (and `epoch`). `rubbish`
    counts values that are no numbers."""

    def __init__(self, log: Path, patterns: Iterable[str]) -> None:
        self.rubbish = 0
        self._log = log
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._offset = 0
        self._tail = b""
        self._epochs = Epochs()

    def read(self, *, end: bool) -> list[EpochReport]:
        """Return the new reports, at most one piece of them; at the `end` all, the last epoch
        included."""
        results: list[EpochReport] = []
        while piece := self._piece():
            text = _BAR.sub(rb"\g<0>\n", self._tail + piece)
            *lines, self._tail = _LINE_ENDS.split(text)
            self._tail = self._tail[:LONGEST_LINE]
            results += [report for line in lines for report in self._line(line)]
            if not end:
                break
        if end:
            results += [*self._line(self._tail), *self._epochs.flush()]
            self._tail = b""
        return results

    def _piece(self) -> bytes:
        try:
            with self._log.open("rb") as file:
                # A log that exceeded its limit was cut: continue at its end, most likely the last
                # position.
                self._offset = min(self._offset, file.seek(0, 2))
                file.seek(self._offset)
                piece = file.read(CHUNK)
        except FileNotFoundError:
            return b""
        self._offset += len(piece)
        return piece

    def _line(self, line: bytes) -> list[EpochReport]:
        if not line:
            return []
        text = _ESCAPES.sub("", line[:LONGEST_LINE].decode("utf-8", "replace"))
        values: dict[str, float] = {}
        for pattern in self._patterns:
            if match := pattern.search(text):
                for name, word in match.groupdict().items():
                    try:
                        if word is not None:
                            values[name] = float(word)
                    except ValueError:
                        self.rubbish += 1
        if not values:
            return []
        epoch = values.pop("epoch", None)
        return self._epochs.put(epoch, values)


class EventFiles:
    """All event files below a folder. A value belongs to the epoch that a tag named `epoch` (or
    `…/epoch`) gives at the same step, else to the epoch numbered as its step. With `new`, only
    records from now on count: older files belong to other trainings, or to the commit. The folder
    counts only while it is `within` that other one. `rubbish` counts files that are none."""

    def __init__(self, folder: Path, within: Path, *, new: bool = False) -> None:
        self.rubbish = 0
        self._folder, self._within = folder, within
        self._files: dict[Path, _EventFile] = {}
        if new:
            sizes = {path: path.stat().st_size for path in self._paths()}
            self._files = {path: _EventFile(path, size) for path, size in sizes.items()}

    def _paths(self) -> list[Path]:
        """Return the event files, without links: a commit's folder may link to any files."""
        real = self._folder.resolve()
        if not real.is_relative_to(self._within.resolve()):
            return []
        files = (path for path in real.rglob("*tfevents*") if not path.is_symlink())
        return sorted(path for path in files if path.is_file())

    def read(self, *, end: bool) -> list[EpochReport]:
        reports: list[EpochReport] = []
        for path in self._paths():
            file = self._files.setdefault(path, _EventFile(path, 0))
            reports += file.read(end=end)
        self.rubbish = sum(file.broken for file in self._files.values())
        return reports


class _EventFile:
    def __init__(self, path: Path, offset: int) -> None:
        self.broken = False
        self._path = path
        self._offset = offset  # of the first unread byte
        self._step = 0
        self._group: dict[str, float] = {}  # the values of that step
        self._epoch: float | None = None
        self._epochs = Epochs()

    def read(self, *, end: bool) -> list[EpochReport]:
        reports: list[EpochReport] = []
        for record in self._records(all_of_them=end):
            try:
                step, scalars = event(record)
            except (ValueError, IndexError, TypeError, AttributeError, struct.error):
                self.broken = True
                continue
            if scalars and step != self._step:
                reports += self._close()
                self._step = step
            self._group.update(scalars)
        if end:
            reports += [*self._close(), *self._epochs.flush()]
        return reports

    def _close(self) -> list[EpochReport]:
        """End a step: the tag with its epoch may have come last."""
        group, self._group = self._group, {}
        values = {}
        for tag, value in group.items():
            if tag.rpartition("/")[2] == "epoch":
                self._epoch = value
            else:
                name = UNFIT.sub("_", tag)[:64]
                values[name if name[:1].isalpha() else f"_{name}"[:64]] = value
        if not values:
            return []
        return self._epochs.put(self._step if self._epoch is None else self._epoch, values)

    def _records(self, *, all_of_them: bool) -> Iterator[bytes]:
        """Yield the complete records that are new."""
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


Source = Printed | EventFiles


def event(record: bytes) -> tuple[int, dict[str, float]]:
    """Return (step, tag -> value) of an Event message. Raises ValueError, IndexError, TypeError or
    struct.error for any other message."""
    fields, scalars = protocol_buffer(record), {}
    for summary in fields.get(5, ()):
        for message in protocol_buffer(summary).get(1, ()):
            value = protocol_buffer(message)
            scalar = None
            if 2 in value:
                (scalar,) = struct.unpack("<f", value[2][-1])
            elif 8 in value:
                scalar = _tensor(protocol_buffer(value[8][-1]))
            if 1 in value and scalar is not None:
                scalars[value[1][-1].decode()] = float(scalar)
    return fields.get(2, [0])[-1], scalars


def _tensor(fields: dict[int, list[Any]]) -> float | None:
    """Return the one number of a TensorProto of floats or doubles; None of any other tensor."""
    layout = {_FLOAT: "<f", _DOUBLE: "<d"}.get(fields.get(1, [0])[-1])
    content = next((fields[number][-1] for number in (4, 5, 6) if number in fields), b"")
    if layout is None or len(content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, content)[0])


def protocol_buffer(message: bytes) -> dict[int, list[Any]]:
    """Return the values of a protocol buffer by the numbers of their fields: integers, or bytes."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: int | bytes
        if key & 7 == _VARINT:
            value, at = _varint(message, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(key & 7, -1)
            if key & 7 == _BYTES:
                size, at = _varint(message, at)
            if size < 0 or at + size > len(message):
                raise ValueError("no protocol buffer")
            value, at = message[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


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


def of(
    definition: Mapping[str, object], *, log: Path, out: Path, tree: Path | None = None
) -> list[Source]:
    """Return the sources that a task's definition names. Without a `tree` (its checkout was
    removed) those inside it are left out."""
    results: list[Source] = []
    patterns = definition.get("pattern")
    if isinstance(patterns, list):
        results.append(Printed(log, patterns))
    where = definition.get("tensorboard")
    if isinstance(where, str) and (tree is not None or "{tree}" not in where):
        folder = where.replace("{out}", str(out)).replace("{tree}", str(tree))
        # The folder {out} is the trial's own; other folders may hold files of other trials.
        within = out if "{out}" in where or tree is None else tree
        results.append(EventFiles(Path(folder), within, new="{out}" not in where))
    return results
