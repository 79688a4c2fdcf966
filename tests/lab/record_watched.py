"""Record what watchpoints read in the trainings of trainings.py, for those who judge it:
python tests/lab/record_watched.py"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = HERE / "watched.tar.xz"


def train(folder: Path, names: list[str]) -> None:
    """Train them under watchpoints, each into a folder of its name."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "trainings.py"), str(folder), *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def record(names: list[str]) -> None:
    """Write what they leave, with five digits of each number: more do not pack."""
    with tempfile.TemporaryDirectory() as place, tarfile.open(RECORDED, "w:xz") as archive:
        train(Path(place), names)
        for path in sorted(Path(place).rglob("*.jsonl")):
            lines = (json.loads(line, parse_float=_short) for line in path.open())
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            member = tarfile.TarInfo(str(path.relative_to(place)))
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def _short(digits: str) -> float:
    return float(f"{float(digits):.5g}")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    from lab.test_watchpoints import FAULTS, HEALTHY

    record([*FAULTS, *HEALTHY])
