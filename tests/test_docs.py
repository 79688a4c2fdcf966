"""The manual says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import celedger, load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.matrix  # the golden record has the same texts
def test_the_command_line_reference_is_what_help_says() -> None:
    module = load_script(ROOT / "scripts" / "make_cli_reference.py")
    assert (ROOT / "docs" / "cli.md").read_text() == module.reference(), "run `make docs`"


def test_every_verb_of_the_program_is_documented(tmp_path: Path) -> None:
    out = celedger(tmp_path, "--help").out
    verbs = re.findall(r"^  ([a-z]+)  ", out.partition("Commands:")[2], flags=re.MULTILINE)
    assert verbs
    documented = (ROOT / "docs" / "cli.md").read_text()
    assert [verb for verb in verbs if f"## celedger {verb}" not in documented] == []


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert broken == []


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
