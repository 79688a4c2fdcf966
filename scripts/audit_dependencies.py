"""Checks the oldest versions that pyproject.toml allows of what celedger needs for known holes:
`make audit`. Exits 1 where there is one. Without the database it says in a line what was not
checked, and exits 0: the holes are the same on the machine that reaches it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).with_name("uv")
OLDEST = (
    "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-deps", "--all-extras",
    "--resolution", "lowest-direct", "pyproject.toml",
)  # fmt: skip
# These versions alone, each asked for by its name: nothing is installed.
AUDIT = (
    "tool", "run", "pip-audit@2.10.1", "--no-deps", "--disable-pip", "--progress-spinner", "off",
    "--format", "json", "--requirement",
)  # fmt: skip


def main() -> int:
    oldest = _uv(*OLDEST)
    if oldest is None:
        return _unchecked("all of them, since the package index cannot be reached")
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(oldest)
        audit = _uv(*AUDIT, str(requirements))
    if not audit:
        return _unchecked("all of them, since pip-audit or its database cannot be reached")
    rows = json.loads(audit)["dependencies"]
    if skipped := [row["name"] for row in rows if "skip_reason" in row]:
        _unchecked(f"{', '.join(skipped)}, of which the database says nothing")
    holes = [(row, hole) for row in rows for hole in row.get("vulns", ())]
    for row, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version"
        _tell(f"{row['name']} {row['version']}: {hole['id']}, fixed in {fixed}")
    if holes:
        _tell("raise these lower bounds in pyproject.toml")
    return 1 if holes else 0


def _uv(*words: str) -> str | None:
    """Return what uv wrote to stdout, also where pip-audit ended with 1 for a hole; None where it
    failed."""
    done = subprocess.run([UV, *words], check=False, cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 or done.stdout.startswith("{") else None


def _unchecked(what: str) -> int:
    _tell(f"lower bounds of dependencies are not checked for known holes: {what}")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
