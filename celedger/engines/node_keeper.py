"""The keeper of one order on a node: writes its files, runs the node's program, and hands out the
lines that this wrote, from any offset, for as long as nobody says that they may go.

It lives in whatever process the engine gives it there (an actor of Ray), and needs nothing of the
engine.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from celedger.base import VERSION, files
from celedger.ledger import schema
from celedger.repo import Repository, scrubbed
from celedger.repo.plumbing import ask, tell
from celedger.system import process
from celedger.trial.ending import last_line, tail

PROGRAM = "celedger.engines.node"
LINES, LEDGER, LOG, STOP = "lines.jsonl", "ledger.db", "node.log", "stop"  # files of an order
CHUNK = 1 << 18  # bytes handed out at once
_WAIT = 1.0  # seconds that `read` waits for more
_REFS = "refs/celedger/"  # of a clone: one on each commit that it was sent
_KEPT = 30 * 86400.0  # seconds that the files of an order nobody asks for are kept


class Greeting(NamedTuple):
    """The self-description of a node, before it gets an order. `commits` (hashes) are in its
    clone."""

    host: str
    celedger: str
    schema: int
    commits: list[str]


def home() -> Path:
    """Return where this machine, as a node, keeps clones and orders."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "celedger" / "node"


def clone(repository: str) -> Path:
    """Return where this machine keeps its clone of a repository."""
    return home() / "repositories" / f"{repository}.git"


def unpack(clone: Path, sha: str, content: bytes) -> Repository:
    """Add a commit (a hash) with its history, which git packed, to a bare clone, made if there is
    none."""
    if not (clone / "HEAD").exists():
        clone.mkdir(parents=True, exist_ok=True)
        kind = "sha256" if len(sha) == 64 else "sha1"
        tell(clone, "init", "--quiet", "--bare", f"--object-format={kind}", str(clone))
    git = ("--git-dir", str(clone))
    tell(clone, *git, "index-pack", "--stdin", "--fix-thin", stdin=content)
    tell(clone, *git, "update-ref", _REFS + sha, sha)
    return Repository.open(clone)


def commits_in(clone: Path) -> list[str]:
    """Return the commits (hashes) that a clone was sent; none where there is no clone."""
    if not (clone / "HEAD").exists():
        return []
    answer = ask(clone, "--git-dir", str(clone), "for-each-ref", "--format=%(objectname)", _REFS)
    return answer.text.split()


class Keeper:
    """The keeper of the order with this ULID. Its methods may be called from several threads."""

    def __init__(self, ulid: str) -> None:
        files.make_private()
        self.folder = home() / "orders" / ulid
        self._thread: Thread | None = None
        self._cancelled = False

    def greet(self, repository: str) -> Greeting:
        return Greeting(
            socket.gethostname(), VERSION, schema.version(), commits_in(clone(repository))
        )

    def node(self) -> str:
        """Return the name by which the engine knows this node."""
        return socket.gethostname()

    def start(self, files: Mapping[str, bytes]) -> None:
        """Write the files of the order, and run the node's program on them."""
        self._sweep()
        self.folder.mkdir(parents=True)
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # A node's program is ended with its keeper: a supervisor watches over both.
        process.run(
            [sys.executable, "-m", PROGRAM, str(self.folder)], cwd=self.folder,
            env=scrubbed(os.environ), log=self.folder / LOG, timeout=math.inf,
            stop=lambda: self._cancelled,
        )  # fmt: skip

    def read(self, offset: int) -> tuple[bytes, bool]:
        """Return the next bytes of the lines, waiting a moment for some, and whether they are the
        last."""
        deadline = time.monotonic() + _WAIT
        while True:
            ended = self._thread is None or not self._thread.is_alive()
            with suppress(FileNotFoundError), (self.folder / LINES).open("rb") as file:
                file.seek(offset)
                if content := file.read(CHUNK):
                    return content, False
            if ended or time.monotonic() > deadline:
                return b"", ended
            time.sleep(0.02)

    def complaint(self) -> str:
        """Return the last line that the node's program wrote besides; "" for none."""
        return last_line(tail(self.folder / LOG))

    def end(self, reason: str) -> None:
        """End the training early, after its next epoch, for a reason."""
        draft = self.folder / f"{STOP}.new"
        draft.write_text(reason)
        draft.replace(self.folder / STOP)

    def cancel(self) -> None:
        """Interrupt the trial. Its lines go on until it has ended."""
        self._cancelled = True

    def forget(self) -> None:
        """Remove all files of the order."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove orders that no head asked for in a long time."""
        with suppress(OSError):
            for folder in self.folder.parent.iterdir():
                if time.time() - folder.stat().st_mtime > _KEPT:
                    shutil.rmtree(folder, ignore_errors=True)
