"""Make the example anew: `ledger.db.example`, the ledger of the repository in
docs/example/history.bundle, and its page docs/example/report.html. All commits are trained, and
what is planted is searched.

    python scripts/make_example.py [--from REPOSITORY]

To change the history, unpack it (`celedger demo --example DIR`), commit there, let
`refs/planted/KIND` name the planted commits, and give DIR to `--from`: the bundle is written anew.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from celedger.base.errors import Status
from celedger.cli import demo as example
from celedger.cli.app import run

PAGE = example.bundle().with_name("report.html")


def main(source: Path | None) -> None:
    platform.node = socket.gethostname = lambda: "example"  # not the name of this machine
    if source is not None:
        refs = ["refs/heads/main", *(f"refs/planted/{kind}" for kind in example.KINDS)]
        command = ["git", "-C", str(source), "bundle", "create", str(example.bundle()), *refs]
        subprocess.run(command, check=True)
    with tempfile.TemporaryDirectory(prefix="celedger-") as folder:
        repository = Path(folder, "example")
        example.materialise(repository)
        roots = ["git", "-C", str(repository), "rev-list", "--max-parents=0", "main"]
        root = subprocess.run(roots, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        celedger(repository, "run", root)
        celedger(repository, "run", f"{root}..main")
        celedger(repository, "demo", str(repository))  # searches what is planted
        save(repository / "ledger.db", example.ledger())
        unpacked = Path(folder, "unpacked", "example")  # without logs, as everybody has it
        celedger(repository, "demo", "--example", str(unpacked))
        celedger(unpacked, "report", "-o", str(PAGE))
    print(f"{example.ledger()}: {example.ledger().stat().st_size:,} bytes")


def celedger(repository: Path, *words: str) -> None:
    """Run a verb, which may find that something is worse or cannot be judged."""
    print("celedger", *words, flush=True)
    status = run(["-C", str(repository), *words])
    if status not in (Status.GOOD, Status.BAD, Status.CANNOT_JUDGE):
        raise SystemExit(status)


def save(ledger: Path, path: Path) -> None:
    """Copy a ledger to one file that needs no -wal beside it, for read-only media and for git."""
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    shutil.copyfile(ledger, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, metavar="REPOSITORY")
    main(parser.parse_args().source)
