"""The first suite of a repository: one small training that runs anywhere, to be edited.

Writes files that are not there; knows nothing of what the repository contains.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from celedger.base.errors import explained

TEMPLATES = Path(__file__).parent / "templates"
_PYTHON = '# python = "python"      #'  # in the template


def scaffold(folder: Path, name: str, python: str = "") -> list[Path]:
    """Write a runnable suite into a folder, for an interpreter unless it is celedger's own; returns
    the files written. One that is there is left as it is. Raises MachineError where nothing can be
    written."""
    written = []
    for template in sorted(TEMPLATES.glob("*.in")):
        target = folder / template.stem
        if os.path.lexists(target):
            continue
        text = template.read_text(encoding="utf-8").replace("@name@", name)
        if python:
            text = text.replace(_PYTHON, f"python = {json.dumps(python, ensure_ascii=False)}  #")
        with explained(f"{target} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        written.append(target)
    return written
