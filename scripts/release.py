"""Make a release in a clone: version, changelog, citation, commit, tag, packages and their check.
With `--keep` the result comes back: the commit and tag into the present branch, the packages
into dist/. Without it, this is a rehearsal and changes nothing here.

    python scripts/release.py VERSION [--keep]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r"\d+\.\d+\.\d+")  # SemVer, without pre-releases
_UNKNOWN_HOST = "git.example.org"


def main(version: str, keep: bool) -> str | int:
    """Return 0, or what is in the way of the release."""
    if not _VERSION.fullmatch(version):
        return f"{version} is no version like 0.2.0"
    if _asked("git", "status", "--porcelain"):
        return "commit or stash your changes first"
    if _asked("git", "tag", "--list", f"v{version}"):
        return f"the tag v{version} is there already"
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    unknown = _UNKNOWN_HOST in urls["Repository"]
    if keep and unknown:
        return "say in pyproject.toml, [project.urls], where the project lives"
    today = datetime.now(UTC).date().isoformat()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "celedger")
        _run("git", "clone", "--quiet", str(ROOT), str(clone), at=ROOT)
        for name, edit in (
            ("celedger/base/__init__.py", set_version),
            ("CITATION.cff", set_citation),
            ("CHANGELOG.md", set_changelog),
        ):
            file = clone / name
            file.write_text(edit(file.read_text(), version, today))
        _run("git", "commit", "--quiet", "--all", "--message", f"release: {version}", at=clone)
        _run(
            "git", "tag", "--annotate", "--message", f"celedger {version}", f"v{version}", at=clone
        )
        _run(sys.executable, "-m", "build", "--outdir", str(clone / "dist"), at=clone)
        packages = sorted(map(str, (clone / "dist").iterdir()))
        _run(sys.executable, "-m", "twine", "check", "--strict", *packages, at=clone)
        if not keep:
            print(f"\nrehearsed {version}: nothing was changed here")
            if unknown:
                print("before a release, say in pyproject.toml where the project lives")
            return 0
        _run("git", "pull", "--quiet", "--ff-only", "--tags", str(clone), "HEAD", at=ROOT)
        (ROOT / "dist").mkdir(exist_ok=True)
        kept = [Path(each).rename(ROOT / "dist" / Path(each).name) for each in packages]
    print(f"\n{version} is on this branch. To publish it:")
    print(f"  git push origin HEAD v{version}")
    print("  python -m twine upload " + " ".join(str(each.relative_to(ROOT)) for each in kept))
    return 0


def set_version(text: str, version: str, _: str) -> str:
    """Return `celedger/base/__init__.py` with the version."""
    return _replaced(r'^VERSION = ".*"', f'VERSION = "{version}"', text)


def set_citation(text: str, version: str, day: str) -> str:
    """Return CITATION.cff with the version and its day."""
    text = _replaced(r"^version: .*", f"version: {version}", text)
    return _replaced(r"^date-released: .*", f"date-released: {day}", text)


def set_changelog(text: str, version: str, day: str) -> str:
    """Return CHANGELOG.md with what is unreleased under the version, which must be something."""
    entries = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    if "\n- " not in entries:
        raise SystemExit("CHANGELOG.md has nothing under [Unreleased]")
    title = f"## [Unreleased]\n\n## [{version}] - {day}"
    return _replaced(r"^## \[Unreleased\]$", title, text)


def _replaced(pattern: str, new: str, text: str) -> str:
    """Return the text with the one line that matches replaced; ValueError if it is not one."""
    text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} lines match {pattern}")
    return text


def _asked(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _run(*command: str, at: Path) -> None:
    subprocess.run(command, cwd=at, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    sys.exit(main(asked.version, asked.keep))
