"""The manual says what the program does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import celedger, load_script
from scripted import typed

ROOT = Path(__file__).resolve().parent.parent


def test_the_command_line_reference_is_what_help_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_script(ROOT / "scripts" / "make_cli_reference.py")

    def help_of(words: list[str]) -> str:
        shown = typed([*words, "--help"], tmp_path, {"COLUMNS": "80"}).out
        return "\n".join(line.rstrip() for line in shown.strip().splitlines())

    monkeypatch.setattr(module, "help_of", help_of)
    made = module.files()
    assert {path: path.read_text() for path in made} == made, "run `make docs`"


def test_every_verb_of_the_program_is_documented(tmp_path: Path) -> None:
    out = celedger(tmp_path, "--help").out
    verbs = re.findall(r"^  ([a-z]+)  ", out.partition("Commands:")[2], flags=re.MULTILINE)
    assert verbs
    documented = (ROOT / "docs" / "cli.md").read_text()
    assert [verb for verb in verbs if f"## celedger {verb}" not in documented] == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CODE_OF_CONDUCT.md",
        *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert broken == []


def test_nothing_installs_a_name_that_anyone_may_take() -> None:
    """celedger is on no index: who registers the name there would be run by whoever obeys."""
    install = re.compile(r"(?:pip|pipx|uv tool) install (?:-{1,2}[\w-]+ )*['\"]?celedger\b(?! @ )")
    folders = ("celedger", "docs", "hooks", "suites", ".github")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    files = [file for file in files if file.suffix != ".pyc"]  # of files that are gone, too
    texts = {file: file.read_text(errors="replace") for file in [*files, *ROOT.glob("*.md")]}
    broken = [str(file.relative_to(ROOT)) for file, text in texts.items() if install.search(text)]
    assert install.search("pip install --upgrade celedger")
    assert broken == []


def test_comments_point_to_files_of_the_tree() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "celedger").rglob("*.py"))
        for name in re.findall(r"[\w./-]+\.md\b|benchmarks/\w+\.py\b", path.read_text())
        if "/" in name or name[0].islower()  # `CHANGELOG.md` may be the user's
        if not (ROOT / name).exists() and not (ROOT / "docs" / name).exists()
    ]
    assert broken == []


def test_the_page_of_statistics_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "statistics.md").read_text()
    names = re.findall(r"`([a-z_*]+\.py)`", page)
    assert len(names) > 10
    stats = ROOT / "celedger" / "stats"
    assert [name for name in names if not list(stats.glob(name))] == []


def test_the_constants_of_the_figures_are_those_of_the_code() -> None:
    page = (ROOT / "benchmarks" / "statistics.md").read_text()
    rows = page.partition("### Where the constants come from")[2].partition("###")[0]
    names = {
        n for row in re.findall(r"^\| `.*?\|", rows, re.M) for n in re.findall("[A-Z_]{3,}", row)
    }
    assert len(names) > 40
    code = "\n".join(p.read_text() for p in (ROOT / "celedger").rglob("*.py"))
    assert sorted(n for n in names if not re.search(rf"^[A-Z_, ]*\b{n}\b.*=", code, re.M)) == []


def test_the_readme_names_only_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", text, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
    reference = (ROOT / "docs" / "cli.md").read_text()
    for line in re.findall(r"^\$ celedger ([^#\n]+)", text, flags=re.MULTILINE):
        words = line.split()
        assert f"## celedger {words[0]}" in reference
        section = reference.partition(f"## celedger {words[0]}")[2]
        for option in (w for w in words if w.startswith("--")):
            assert option in section


def test_security_says_what_is_trusted_and_whom_to_tell() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for title in ("What celedger trusts", "What it does not trust", "Whom to tell"):
        assert f"\n## {title}\n" in text
    assert "Report a vulnerability" in text
    assert "@" not in text  # no address that nobody reads


@pytest.mark.parametrize(
    ("vulns", "reason", "status", "said"),
    [
        ([], None, 0, ""),
        ([{"id": "PYSEC-1", "fix_versions": ["1.1"]}], None, 1, "x 1.0: PYSEC-1, fixed in 1.1\n"),
        ([], "not found", 0, "not checked for known holes: x, of which"),
        (None, None, 0, "not checked for known holes: all of them"),
    ],
    ids=["none", "a hole", "nothing known", "not reached"],
)
def test_the_audit_of_lower_bounds_passes_no_hole_and_says_what_it_did_not_check(
    vulns: list[dict[str, object]] | None, reason: str | None, status: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script = load_script(ROOT / "scripts" / "audit_dependencies.py")
    row = {"name": "x", "skip_reason": reason} if reason else {"name": "x", "version": "1.0"}
    document = json.dumps({"dependencies": [row | ({} if reason else {"vulns": vulns})]})

    def run(words: list[str], **_: object) -> SimpleNamespace:
        asked = "pip" in words
        out = "x==1.0\n" if asked else "" if vulns is None else document
        return SimpleNamespace(returncode=0 if asked or not vulns else 1, stdout=out)

    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.main() == status
    err = capsys.readouterr().err
    assert said in err if said else err == ""
    assert "audit" in (ROOT / "Makefile").read_text().partition("\ncheck:")[2].splitlines()[0]
