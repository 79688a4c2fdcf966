"""The lock of each device, shared by all users of the machine, so that two trials never measure
each other.

A trial on some of the CPU's cores shares the lock of the CPU and holds the locks of its cores, so
that a trial on the whole CPU waits for it, and one on other cores does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from celedger.base import files
from celedger.base.errors import explained
from celedger.base.files import Lock, is_locked, try_flock

_POLL = 0.05  # seconds between two attempts to take a device
_NAMELESS = 20  # attempts after which a holder without a name is reported: its disk is full


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device. `since` in seconds since the epoch; a pid of 0 is one not known."""

    pid: int = 0
    label: str = "another celedger"
    since: float = 0.0

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.label} (process {self.pid}, since {since})" if self.pid else self.label


def default_folder() -> Path:
    """Return where the device locks of this machine are: CELEDGER_LOCK_DIR, or in its temporary
    folder."""
    folder = os.environ.get("CELEDGER_LOCK_DIR")
    return Path(folder or Path(tempfile.gettempdir()) / "celedger-locks")


class DeviceLock:
    """The right to measure on one device of this machine, or on some cores of the CPU. `device` is
    its key (`cpu` or a GPU's UUID), `label` what the others are told while they wait."""

    def __init__(self, device: str, *, folder: Path, label: str, cores: Sequence[int] = ()) -> None:
        self.path = folder / (re.sub(r"[^A-Za-z0-9_.-]", "_", device) + ".lock")
        self.label = label
        # Of the last file who holds it is written. All take them in this order, so that no two wait
        # for each other.
        self._paths = [self.path, *(_core(self.path, str(core)) for core in sorted(cores))]
        self._taken = 0  # when, by the clock of that file, in ns

    def free(self) -> bool:
        """Return True if nobody holds it now."""
        return not is_locked(self.path)

    def of(self, device: str, cores: Sequence[int] = ()) -> DeviceLock:
        """Return the lock of another device, or of some cores."""
        return DeviceLock(device, folder=self.path.parent, label=self.label, cores=cores)

    @contextlib.contextmanager
    def hold(
        self, on_wait: Callable[[Holder], None], check: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Wait for the device, and hold it for the body. `on_wait` is called once for each process
        waited for; `check` at each poll, and what it raises ends the wait. Raises MachineError when
        the lock's folder or file cannot be used.

        Who wants the device must first hold the turnstile, a second lock, and keeps it until the
        device is free. So one that runs trial after trial lets a waiter in between two of them.
        """
        _make_shared_folder(self.path.parent)
        announced = -1  # the process that `on_wait` was told of

        def taken(path: Path, *, shared: bool = False) -> Lock:
            nonlocal announced
            attempts = 0
            while (lock := try_flock(path, mode=0o666, shared=shared)) is None:
                check()
                files = [path.with_suffix(".lock"), *self.path.parent.glob(_core(path, "*").name)]
                holder = next(filter(None, map(_holder, files)), None)
                attempts += 1
                if holder is None and announced < 0 and attempts >= _NAMELESS:
                    holder = Holder()
                if holder is not None and holder.pid != announced:
                    announced = holder.pid
                    on_wait(holder)
                time.sleep(_POLL)
            return lock

        with contextlib.ExitStack() as locks:
            for path in self._paths:
                with taken(path.with_suffix(".turn")):
                    shared = path == self.path != self._paths[-1]
                    lock = locks.enter_context(taken(path, shared=shared))
            lock.write(json.dumps(asdict(Holder(os.getpid(), self.label, time.time()))))
            self._taken = lock.path.stat().st_mtime_ns
            try:
                yield
            finally:
                lock.write("")

    def was_shared(self) -> bool:
        """Return True if, since this lock was taken, another one was held: of another GPU, or of
        other cores. Who takes or releases one writes its file."""
        for path in set(self.path.parent.glob("*.lock")).difference(self._paths):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime_ns > self._taken or _held(path):
                    return True
        return False


def _core(device: Path, core: str) -> Path:
    return device.with_name(f"{device.stem}-{core}.lock")


def _holder(path: Path) -> Holder | None:
    """Return who the file says holds it; None when it says nothing that can be understood."""
    try:
        facts = json.loads(path.read_text())
        return Holder(int(facts["pid"]), str(facts["label"]), float(facts["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _held(path: Path) -> bool:
    """Return True if the process that the file names lives: a dead one left its name."""
    holder = _holder(path)
    return holder is not None and Path(f"/proc/{holder.pid}").exists()


def _make_shared_folder(folder: Path) -> None:
    with explained(
        f"the folder of device locks {folder} cannot be made",
        "set CELEDGER_LOCK_DIR to a folder that all users of this machine can write",
    ):
        with files.as_the_user():
            folder.mkdir(parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) != 0o1777:
            folder.chmod(0o1777)  # like /tmp: all may add a lock, none may remove another's
