"""Make the pictures of docs/images anew, each by the command that the manual names; `house.svg` is
a drawing and stays. Trainings run, so that times differ from run to run. `report.png` needs a
Chromium; `calibration.png` shows the counts in benchmarks/calibration.json.

    python scripts/make_pictures.py                 # all: five minutes
    python scripts/make_pictures.py watch explain   # some
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SUITE = """\
[suite]
name = "zoo"
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "rows"
command = "{python} zoo/loop.py --epochs 3 --seed {seed}"
"""
WHOLE = "q @ k.transpose(-2, -1)"
BY_IMAGE = "torch.stack([a @ b for a, b in zip(q, k.transpose(-2, -1))])"
# Each commit of the repository of the lab's pictures, and what it replaces in the training script.
HISTORY = {
    "Read digits row by row": {},
    "Refactor the attention mask": {".tril(0)": ".tril(1)"},
    "Restore the mask": {".tril(1)": ".tril(0)"},
    "Attend image by image": {WHOLE: BY_IMAGE},
    "Attend to all images at once, and keep the losses": {
        BY_IMAGE: WHOLE,
        "model = Rows()": "kept = []\nmodel = Rows()",
        "loss.backward()": "kept.append(loss * torch.ones(20_000))\n        loss.backward()",
    },
    "Raise the learning rate": {"lr=0.05": "lr=50.0"},
}
PERSON = (("NAME", "Ada Example"), ("EMAIL", "ada@example.org"), ("DATE", "2026-01-05T08:00:00Z"))
EXPLAINED, SLOWER, LEAKING, RAISED = "HEAD~5..HEAD~4", "HEAD~3..HEAD~2", "HEAD~1", "HEAD"


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="celedger-pictures-"))


def celedger(folder: Path, *words: str) -> None:
    """Run a command, which may exit 1: it found something."""
    print("celedger", *words, flush=True)  # noqa: T201
    program = Path(sys.executable).with_name("celedger")
    done = subprocess.run(
        [program, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)


@cache
def demo() -> Path:
    """Play the demo and return its repository."""
    celedger(scratch(), "demo")
    return scratch() / "demo"


@cache
def zoo() -> Path:
    """Make the repository of the lab's pictures."""
    folder = scratch() / "zoo"
    shutil.copytree(ROOT / "suites" / "core" / "shared", folder / "zoo" / "shared")
    script = Path(shutil.copy(ROOT / "scripts" / "pictured" / "loop.py", folder / "zoo"))
    (folder / "suites" / "zoo").mkdir(parents=True)
    (folder / "suites" / "zoo" / "suite.toml").write_text(SUITE)
    (folder / "pyproject.toml").write_text('[tool.celedger]\nsuite = "zoo"\ndevice = "cpu"\n')
    subprocess.run(["git", "init", "--quiet", "-b", "main"], cwd=folder, check=True)
    people = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in PERSON
    }
    text = script.read_text()
    for subject, changes in HISTORY.items():
        for old, new in changes.items():
            if text.count(old) != 1:
                raise SystemExit(f"{script.name} has {text.count(old)} times: {old}")
            text = text.replace(old, new)
        script.write_text(text)
        for words in (["add", "-A"], ["commit", "--quiet", "-m", subject]):
            subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **people})
    return folder


def bisect() -> None:
    shutil.copy(demo() / ".celedger" / "plots" / "bisect-quality.png", IMAGES / "bisect.png")


def crash() -> None:
    shutil.copy(demo() / ".celedger" / "plots" / "bisect-crash.png", IMAGES / "crash.png")


def drift() -> None:
    words = ("plot", "drift", "--task", "mlp", "--metric", "peak_rss")
    celedger(demo(), *words, "-o", str(IMAGES / "drift.png"))


def curves() -> None:
    commits = ("refs/planted/quality^", "refs/planted/quality")
    celedger(demo(), "plot", "curves", *commits, "--task", "mlp", "-o", str(IMAGES / "curves.png"))


def explain() -> None:
    celedger(zoo(), "explain", EXPLAINED, "rows", "-o", str(IMAGES / "explain.png"))


def profile() -> None:
    commit = SLOWER.partition("..")[2]
    celedger(zoo(), "profile", commit, "rows", "-o", str(IMAGES / "profile.png"))


def memory() -> None:
    celedger(zoo(), "profile", LEAKING, "rows", "--memory", "-o", str(IMAGES / "memory.png"))


def watch() -> None:
    celedger(zoo(), "watch", "rows", RAISED, "-o", str(IMAGES / "watch.png"))


def report() -> None:
    """Photograph the page of the example."""
    sys.path.insert(0, str(ROOT / "tests"))
    from page.browser import PROGRAM, Browser
    from PIL import Image  # comes with matplotlib

    if not PROGRAM:
        print("report.png stays: there is no Chromium (apt-get install chromium)")  # noqa: T201
        return
    browser = Browser(1280)
    page = ROOT / "docs" / "example" / "report.html"
    browser.open(f"file://{page}", until="document.querySelector('#chart svg .over')")
    browser.picture(IMAGES / "report.png")
    browser.close()
    # Maximum coverage keeps rare colours: those that say what is better or undecided.
    top = Image.open(IMAGES / "report.png").convert("RGB").crop((0, 0, 1280, 1200))
    few = top.quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(IMAGES / "report.png", optimize=True)


def calibration() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import calibration_plot

    counts = json.loads((ROOT / "benchmarks" / "calibration.json").read_text())
    calibration_plot.save(counts, IMAGES / "calibration.png")


PICTURES = (
    bisect, crash, drift, curves, explain, profile, memory, watch, report,
    calibration,
)  # fmt: skip


def main() -> None:
    names = [picture.__name__ for picture in PICTURES]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *names])
    wanted = parser.parse_args().names or names
    for picture in PICTURES:
        if picture.__name__ in wanted:
            picture()
    shutil.rmtree(scratch())


if __name__ == "__main__":
    main()
