"""Locks between real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from celedger.base.errors import MachineError
from celedger.base.files import try_flock
from celedger.system.devices import DeviceLock, Holder, default_folder

HOLDER = """
import sys, time
from pathlib import Path
from celedger.system.devices import DeviceLock
with DeviceLock("gpu:7/x", folder=Path(sys.argv[1]), label="train it").hold(print):
    print("held", flush=True)
    sys.stdin.read()
"""


def holding(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_celedger_waits_is_told_for_whom_and_then_gets_the_device(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    waited: list[Holder] = []
    before = time.time()
    with holding(folder) as other:
        lock = DeviceLock("gpu:7/x", folder=folder, label="me")

        def on_wait(holder: Holder) -> None:
            waited.append(holder)
            assert other.stdin is not None
            other.stdin.close()  # it ends

        with lock.hold(on_wait):
            mine = json.loads(lock.path.read_text())
            assert (mine["pid"], mine["label"]) == (os.getpid(), "me")
    (holder,) = waited
    assert (holder.pid, holder.label) == (other.pid, "train it")
    assert before <= holder.since <= time.time()
    assert lock.path.read_text() == ""


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    with holding(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
    waited: list[Holder] = []
    with DeviceLock("gpu:7/x", folder=tmp_path, label="").hold(waited.append):
        pass
    assert waited == []


def test_a_device_is_free_unless_somebody_holds_it(tmp_path: Path) -> None:
    lock = DeviceLock("cpu", folder=tmp_path, label="").of("GPU-1")
    assert lock.free()
    with lock.hold(lambda holder: None):
        assert not lock.free()
        assert lock.of("GPU-2").free()
    assert lock.free()


def test_other_devices_do_not_wait(tmp_path: Path) -> None:
    waited: list[Holder] = []
    with (
        DeviceLock("cpu", folder=tmp_path, label="").hold(waited.append),
        DeviceLock("GPU-1", folder=tmp_path, label="").hold(waited.append),
    ):
        assert waited == []


def test_the_folder_and_files_can_be_used_by_all_users(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "locks"
    previous = os.umask(0o077)
    try:
        with DeviceLock("cpu", folder=folder, label="").hold(lambda holder: None):
            pass
    finally:
        os.umask(previous)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "cpu.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_a_second_user_takes_a_lock_that_the_first_user_made(tmp_path: Path) -> None:
    top = tmp_path
    while top != Path(top.root):  # pytest's folders are private
        if top.name.startswith(("pytest-", "popen-", "test_")):
            top.chmod(top.stat().st_mode | 0o755)
        top = top.parent
    code = (
        "import os, sys; from pathlib import Path\n"
        "from celedger.system.devices import DeviceLock\n"
        "os.setuid(int(sys.argv[2]))\n"
        "with DeviceLock('cpu', folder=Path(sys.argv[1]), label='').hold(print): print('held')"
    )
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    for user in ("65533", "65532"):
        argv = [sys.executable, "-c", code, str(folder), user]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.stdout == "held\n", done.stderr


def test_try_flock_is_held_once_and_released_when_closed(tmp_path: Path) -> None:
    first = try_flock(tmp_path / "lock")
    assert first is not None
    assert try_flock(tmp_path / "lock") is None
    first.close()
    first.close()
    with try_flock(tmp_path / "lock") as again:  # type: ignore[union-attr]
        assert again.path == tmp_path / "lock"
    assert (tmp_path / "lock").exists()


def test_a_lock_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path / "absent" / "lock", tmp_path / "file" / "lock", tmp_path / "link"):
        with pytest.raises(MachineError, match="cannot be opened"):
            try_flock(path)
    lock = DeviceLock("cpu", folder=tmp_path / "file", label="")
    with pytest.raises(MachineError, match="CELEDGER_LOCK_DIR"), lock.hold(lambda holder: None):
        pass


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELEDGER_LOCK_DIR", "/x/y")
    assert default_folder() == Path("/x/y")
    monkeypatch.delenv("CELEDGER_LOCK_DIR")
    assert default_folder().name == "celedger-locks"
