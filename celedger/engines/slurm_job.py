"""The program of a Slurm job: `python -m celedger.engines.slurm_job FOLDER` keeps on its node
the order that a shared folder is named after.

Two files carry messages: the head appends to one, the job to the other. Both are there before the
job is: a client of NFS believes for a minute that a missing file is missing, but looks at the
server for one that it opens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from celedger.engines.node_keeper import Keeper, clone, commits_in

LINES, ASKS = "lines.jsonl", "asks.jsonl"  # written by the job, and by the head
PARTS = ("order.json", "suite.tar", "pack")
GO, CANCEL, END = "go", "cancel", "end"
LAST = b'{"last": true}\n'
_PATIENCE = 600.0  # seconds without an order after which its head must be dead
_POLL = 0.05


def append(path: Path, content: bytes) -> None:
    """Append to a file that exists, and bring it to the disk of its server."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        while content:
            content = content[os.write(file, content) :]
        os.fsync(file)
    finally:
        os.close(file)


def asked(folder: Path) -> dict[str, str]:
    """Return what the head has asked for."""
    *lines, _ = (folder / ASKS).read_bytes().split(b"\n")
    return {request: why for line in lines for request, why in json.loads(line).items()}


def greet(keeper: Keeper, folder: Path) -> None:
    """Tell the head what this node is and has."""
    clones = {path.stem: commits_in(path) for path in clone("*").parent.glob("*.git")}
    node = os.environ.get("SLURMD_NODENAME", keeper.node())
    facts = {"node": node, "greeting": keeper.greet("")[:3], "clones": clones}
    append(folder / LINES, json.dumps(facts).encode() + b"\n")


def keep(folder: Path) -> None:
    """Run the order, and copy its lines to the shared folder as they are written. Ends if the
    folder goes, as the head removes it with the order."""
    keeper = Keeper(folder.name)
    greet(keeper, folder)
    deadline = time.monotonic() + _PATIENCE
    while GO not in asked(folder):
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL)
    keeper.start({name: (folder / name).read_bytes() for name in PARTS})
    offset, ended = 0, False
    while not ended:
        content, ended = keeper.read(offset)
        offset += len(content)
        append(folder / LINES, content)
        asks = asked(folder)
        if END in asks:
            keeper.end(asks[END])
        if CANCEL in asks:
            keeper.cancel()
    sys.stderr.write(keeper.complaint())
    keeper.forget()
    append(folder / LINES, LAST)


if __name__ == "__main__":
    # A job that Slurm has put back into its queue is lost to the head, which runs the order anew.
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        keep(Path(sys.argv[1]))
