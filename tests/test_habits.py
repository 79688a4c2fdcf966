"""What a contributor and a release rely on outside of the package."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import load_script

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_ci_runs_its_script_on_every_python_from_the_oldest_that_is_supported() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "run: .ci/run\n" in workflow
    listed = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert listed is not None
    oldest = listed[1].split(",")[0].strip('"')
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


def test_contributing_and_the_templates_name_only_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    files = [ROOT / "CONTRIBUTING.md", ROOT / ".github" / "pull_request_template.md"]
    spans = [s for file in files for s in re.findall(r"(?:`|\$ )make ([a-z -]+)", file.read_text())]
    named = {word for span in spans for word in span.split()}
    assert len(named) > 8
    assert named <= targets


def test_the_core_group_of_dependencies_needs_no_extra() -> None:
    """Else the first test of a newcomer waits for gigabytes."""
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    core = {re.split(r"[<>=]", each)[0] for each in groups["core"]}
    heavy = {"torch", "ray", "lightning", "transformers"}
    assert not core & heavy
    assert heavy <= {
        re.split(r"[<>=]", each)[0]
        for each in (*groups["test"], *extras["torch"], *extras["ray"])
        if isinstance(each, str)
    }


def test_the_page_on_an_index_has_no_relative_link(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = SimpleNamespace(MetadataHookInterface=object)  # of what builds, not of what tests
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    module = load_script(ROOT / "scripts" / "index_readme.py")
    text = module.absolute((ROOT / "README.md").read_text(), "https://host/us/it", "v1.2.3")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 4
    assert [each for each in targets if not each.startswith("https://")] == []
    for kind, path in re.findall(r"https://host/us/it/(raw|blob)/v1\.2\.3/([^)#]+)", text):
        assert (ROOT / path).is_file()
        assert (kind == "raw") == path.endswith((".png", ".svg"))
    assert PROJECT["project"]["urls"]["Repository"]


def test_a_release_sets_version_changelog_and_citation_once() -> None:
    script = load_script(ROOT / "scripts" / "release.py")

    def edited(edit: str, name: str) -> tuple[list[str], list[str]]:
        """Return the lines that went and those that came."""
        old = (ROOT / name).read_text()
        new = getattr(script, edit)(old, "9.8.7", "2031-02-03")
        before, after = old.splitlines(), new.splitlines()
        return [x for x in before if x not in after], [x for x in after if x not in before]

    assert edited("set_version", "celedger/base/__init__.py")[1] == ['VERSION = "9.8.7"']
    assert edited("set_citation", "CITATION.cff")[1] == [
        "version: 9.8.7",
        "date-released: 2031-02-03",
    ]
    unreleased = (
        "# Changelog\n\n## [Unreleased]\n\n### Added\n- a\n\n## [0.1.0] - 2030-01-01\n- b\n"
    )
    assert script.set_changelog(unreleased, "9.8.7", "2031-02-03") == unreleased.replace(
        "## [Unreleased]", "## [Unreleased]\n\n## [9.8.7] - 2031-02-03"
    )
    with pytest.raises(SystemExit, match="nothing under"):
        script.set_changelog("## [Unreleased]\n\n## [0.1.0]\n- b\n", "9.8.7", "")
    with pytest.raises(ValueError, match="0 lines match"):
        script.set_version("", "9.8.7", "")


def test_a_release_of_no_version_and_of_changed_files_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = load_script(ROOT / "scripts" / "release.py")
    monkeypatch.setattr(script, "_asked", lambda *words: " M file" if "status" in words else "")
    assert script.main("next", keep=False) == "next is no version like 0.2.0"
    assert script.main("1.0.0", keep=False) == "commit or stash your changes first"
    monkeypatch.setattr(script, "_asked", lambda *words: "v1.0.0" if "tag" in words else "")
    assert script.main("1.0.0", keep=False) == "the tag v1.0.0 is there already"
