"""Make a ledger of each shipped schema, by the celedger that shipped it.

    python tests/ledgers/make.py [NAME ...]

Each commit below is taken out of git's history and measures the same small repository, whose
commits always have the same hashes. The files are kept: a later schema adds a line and a file.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Name of the file -> the commit of this repository whose celedger writes it. `1_first` was edited
# after it had shipped: schema 1 has several forms. The last one was brought to schema 4 by the
# celedger of the second commit.
SHIPPED = {
    "1-without-trial-sets": ("16feb4a",),
    "1-without-footprints": ("523d22a",),
    "1-with-modules": ("565fbb9^",),
    "1": ("565fbb9",),
    "2": ("8b1c287^",),
    "3": ("e44a329^",),
    "4": ("2daed99",),
    "4-with-modules": ("565fbb9^", "2daed99"),
}
SUITE = """[suite]
name = "core"

[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
summary = "last"

[[task]]
name = "toy"
command = "{python} {suite}/toy.py"
seeds = [0]
"""
SCRIPT = """import json, os, sys
sys.path.insert(0, os.getcwd())
import model
with open(int(os.environ["CELEDGER_FD"]), "a") as out:
    for epoch in range(3):
        value = model.LEVEL + 1 / (epoch + 1)
        out.write(json.dumps({"epoch": epoch, "val_loss": value}) + "\\n")
        out.flush()
"""
LEVELS = (1.0, 1.0, 1.5)


def history(root: Path) -> None:
    """Make the repository that was measured: three commits, of which the last is worse."""
    suite = root / "suites" / "core"
    suite.mkdir(parents=True)
    (root / ".gitignore").write_text("ledger.db*\n.celedger/\n")
    (suite / "suite.toml").write_text(SUITE)
    (suite / "toy.py").write_text(SCRIPT)
    _git(root, "init", "-q", "-b", "main")
    for number, level in enumerate(LEVELS):
        (root / "model.py").write_text(f"LEVEL = {level}\n# {number}\n")
        _git(root, "add", "-A")
        _git(root, "commit", "-q", "-m", f"change {number}", second=number)


def _git(root: Path, *words: str, second: int = 0) -> None:
    env = dict(os.environ)
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org",
                f"GIT_{who}_DATE": f"2026-01-01T00:00:{second:02}+0000"}  # fmt: skip
    subprocess.run(["git", *words], cwd=root, env=env, check=True)


def make(name: str, folder: Path) -> None:
    root = folder / "repository"
    history(root)
    verbs = [["run", "HEAD~2"], ["run", "HEAD~1"], ["run", "HEAD"],
             ["baseline", "pin", "HEAD~2", "--why", "the release"]]  # fmt: skip
    for number, commit in enumerate(SHIPPED[name]):
        package = folder / f"celedger-{number}"
        archive = subprocess.run(
            ["git", "archive", commit, "celedger"],
            cwd=HERE.parents[1],
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(package, filter="data")
        main = "import sys; from celedger.__main__ import main; sys.exit(main())"
        for verb in verbs if number == 0 else [["log"]]:
            env = os.environ | {"PYTHONPATH": str(package), "HOME": str(folder)}
            subprocess.run([sys.executable, "-c", main, *verb], cwd=root, env=env, check=False)
    shutil.copy(root / "ledger.db", HERE / f"schema-{name}.db")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SHIPPED:
        with tempfile.TemporaryDirectory() as scratch:
            make(chosen, Path(scratch))
