"""The tutorial works as it is written: its shell blocks, pasted one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"


@pytest.mark.matrix
def test_every_block_of_the_tutorial_can_be_pasted(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    shell = subprocess.run(
        ["bash"], input="\necho status $?\n".join([*blocks, ""]), cwd=tmp_path,
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    statuses = re.findall(r"^status (\d+)$", shell.stdout, flags=re.MULTILINE)
    # `check` says worse (the last `run`, which repeats nothing, may not yet), and `explain` that
    # something differs.
    told = [int(s) for s in statuses]
    assert told[:3] + told[4:] == [0, 0, 0, 1, 0, 1, 0, 0] and told[3] < 2, (
        shell.stdout + shell.stderr
    )
    assert "first bad commit of spiral val_loss" in shell.stdout
    assert re.search(r"^  subject +regularise the network$", shell.stdout, flags=re.MULTILINE)
    assert "(Dropout) was added" in shell.stdout
