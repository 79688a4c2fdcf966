"""What the recorder asks of the system for a path, and when it stops."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from celedger.system import path_recorder
from celedger.system.path_recorder import Record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

CWD = -100 & 0xFFFFFFFFFFFFFFFF


class Caller:
    """Gives a record the calls of this process, as the kernel would."""

    def __init__(self, folder: Path) -> None:
        self.record = Record([str(folder)], [])
        machine = os.uname().machine
        self.column = list(path_recorder.ARCHITECTURES).index(machine)
        self.nowhere = (folder / "nowhere").open("wb")
        self.architecture = path_recorder.ARCHITECTURES[machine][0]

    def call(self, name: str, *paths: bytes) -> int:
        """Let the record note a call; return how many links it asked the system for."""
        texts = [ctypes.create_string_buffer(path) for path in paths]
        places = path_recorder.PATHS[name][2]
        if name == "symlinkat":  # its first path is only written down
            places = ((0, -1), *places)
        arguments = {at: ctypes.addressof(t) for (at, _), t in zip(places, texts, strict=True)}
        row = (
            1, os.getpid(), 0, path_recorder.PATHS[name][self.column], self.architecture, 0,
            *(arguments.get(at, CWD) for at in range(6)),
        )  # fmt: skip
        with mock.patch.object(path_recorder.os, "readlink", wraps=os.readlink) as asked:
            self.record.take(self.nowhere.fileno(), row)
        assert not self.record.unknown
        return asked.call_count


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Nothing below /dev is remembered, and pytest's own folder may be in /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("a")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "a").write_text("a")
    caller = Caller(tmp_path / "tree")
    yield caller
    caller.nowhere.close()


def test_a_path_that_was_named_before_is_not_followed_again(caller: Caller, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "beside" / "a")
    assert caller.call("newfstatat", path) > 1
    assert caller.call("newfstatat", path) == 0
    assert caller.call("openat", path) == 1  # its folder is known, and it may be a link now
    assert caller.call("openat", path) == 0
    assert caller.call("newfstatat", os.fsencode(tmp_path / "beside" / "none")) == 1
    assert not caller.record.looked
    assert not caller.record.opened


def test_a_path_that_was_looked_at_and_is_opened_counts_as_opened(
    caller: Caller, tmp_path: Path
) -> None:
    path = os.fsencode(tmp_path / "tree" / "a")
    caller.call("newfstatat", path)
    assert caller.record.looked == {path}
    caller.call("openat", path)
    assert caller.record.opened == {path}


def test_a_link_that_is_made_anew_is_followed_again(caller: Caller, tmp_path: Path) -> None:
    link = tmp_path / "beside" / "link"
    link.symlink_to("a")
    caller.call("newfstatat", os.fsencode(link))
    assert caller.call("newfstatat", os.fsencode(link)) == 0
    link.unlink()
    caller.call("symlinkat", b"../tree/a", os.fsencode(link))
    link.symlink_to("../tree/a")
    caller.call("newfstatat", os.fsencode(link))
    assert caller.record.looked == {os.fsencode(tmp_path / "tree" / "a")}


def test_a_path_below_a_folder_that_is_not_there_yet_is_followed_again(
    caller: Caller, tmp_path: Path
) -> None:
    path = tmp_path / "tree" / "new" / "a"
    caller.call("newfstatat", os.fsencode(path))
    path.parent.mkdir()
    caller.call("newfstatat", os.fsencode(path))
    assert caller.record.looked == {os.fsencode(path.parent), os.fsencode(path)}


def test_a_path_that_leads_by_proc_is_followed_again(caller: Caller, tmp_path: Path) -> None:
    link = tmp_path / "beside" / "here"
    link.symlink_to("/proc/self/cwd")
    for _ in range(2):
        assert caller.call("newfstatat", os.fsencode(link / "none")) > 1


@pytest.mark.parametrize("length", [1, 200, 255, 256, 257, 1000, 3000])
@pytest.mark.parametrize("before", [0, 1, 100, 255, 256])
def test_a_path_is_read_wherever_it_lies_in_memory(
    caller: Caller, length: int, before: int
) -> None:
    """Long ones, and those that go on in the next page; `before` bytes are in the first."""
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    place = mmap.PAGESIZE - before
    memory[place : place + length] = b"x" * length
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + place
    for _ in range(2):  # what the first leaves in the buffer is no part of the second
        assert caller.record._string(os.getpid(), address) == b"x" * length
        assert caller.record._string(os.getpid(), address + length - 1) == b"x"


def test_serving_ends_when_nobody_is_filtered(tmp_path: Path) -> None:
    """Linux 6.11 says ENOENT then, as for a caller that was killed: the thread of the supervisor
    ran in a circle until it ended."""
    watch = path_recorder.Watch([str(tmp_path)], [])
    if (child := os.fork()) == 0:
        watch.begin()
        os._exit(0)
    serving = threading.Thread(target=watch.serve, daemon=True)
    serving.start()
    os.waitpid(child, 0)
    serving.join(60)
    assert not serving.is_alive()


def test_a_record_is_not_written_through_a_link(tmp_path: Path, caller: Caller) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "record").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        caller.record.write(str(tmp_path / "record"))
    assert (tmp_path / "precious").read_text() == "kept"
