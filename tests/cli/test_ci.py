"""What `celedger check` leaves where a CI service shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import celedger, git, make_project
from scripted import ScriptedProject, scripted


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    made = scripted(tmp_path / "project")
    made.history([1.0, 1.0, 1.0, 1.0])
    made.run("run", "HEAD~3..HEAD")
    made.commit("make it <b>worse</b> | @all `x`", {"model.py": "LEVEL = 1.5\n"})
    return made


def test_a_workflow_gets_a_summary_and_annotations(
    project: ScriptedProject, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("what was there\n")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = project.run("check", "--markdown", env=github)
    assert done.status == 1
    assert done.out.startswith("### celedger: 1 metric worse\n")
    assert "| ❌ | fit | val\\_loss | worse | +3" in done.out
    chart = done.out[done.out.index("```mermaid") :]
    sha = git(project.root, "rev-parse", "HEAD").strip()[:7]
    assert f', "{sha}"]' in chart and 'title "fit val_loss"' in chart
    bar, line = (
        [float(v) for v in re.search(rf"^  {kind} \[(.*)\]$", chart, re.M)[1].split(", ")]  # type: ignore[index]
        for kind in ("bar", "line")
    )
    assert bar[-1] == line[-1] > 1.5 > max(line[:-1]) > max(bar[:-1])  # one bar, at the first bad
    assert "make it &lt;b&gt;worse&lt;/b&gt; \\| &#64;all \\`x\\`" in done.out
    assert summary.read_text() == "what was there\n" + done.out.rstrip("\n") + "\n"
    (error,) = [line for line in done.err.splitlines() if line.startswith("::")]
    assert error.startswith("::error title=fit val_loss%3A worse +3")


def test_a_commit_that_edits_what_it_is_judged_by_says_so(project: ScriptedProject) -> None:
    """A pull request that took 60 % longer was green, without a word: it had raised the floor."""
    suite = next(project.root.glob("suites/*/suite.toml"))
    text, path = suite.read_text(), suite.relative_to(project.root).as_posix()
    git(project.root, "add", "--force", path)
    project.commit("add the suite")
    assert "by which it is judged" not in project.run("check").out
    project.commit("edit the suite", {path: f"{text}\n# edited\n"})
    words = f"this commit edits {path}, by which it is judged"
    done = project.run("check", "--markdown", env={"GITHUB_ACTIONS": "true"})
    assert f"⚠️ {words}\n" in done.out.replace("\\", "")
    assert f"::warning file={path}::{words}\n" in done.err
    assert words in project.run("check").out
    assert json.loads(project.run("check", "--json").out)["edited"] == path
    project.commit("another", {"README.md": "x"})
    assert "by which it is judged" not in project.run("check").out


def test_a_shallow_clone_passes_no_first_measurement(
    project: ScriptedProject, tmp_path: Path
) -> None:
    """As `actions/checkout` clones it by default: every commit of it was the first, and green."""
    assert project.run("check").status == 1
    project.commit("more", {"README.md": "x"})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{project.root}", str(clone))
    shutil.copytree(project.root / "suites", clone / "suites")
    shallow = ScriptedProject(clone, project.executor)
    assert shallow.run("--ledger", "new.db", "check", "--lenient").status == 0
    shutil.copy(project.root / "ledger.db", clone)
    done = shallow.run("check", "--lenient")
    assert (done.status, "git fetch --unshallow" in done.err) == (125, True)
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    for words in (["status", incident["id"]], ["bisect", incident["id"]]):
        assert "this history lacks the commits" in shallow.run(*words).err
    git(clone, "fetch", "--quiet", "--unshallow")
    assert shallow.run("check", "--lenient").status == 1


def test_outside_of_a_workflow_nothing_is_added(project: ScriptedProject) -> None:
    done = project.run("check", "--json")
    assert "::error" not in done.out + done.err
    assert project.run("check", "--json", "--markdown").status == 129
    good = project.run("check", "HEAD~1", "--markdown")
    assert good.status == 0 and "mermaid" not in good.out


def test_a_summary_that_cannot_be_written_changes_no_answer(project: ScriptedProject) -> None:
    done = project.run("check", env={"GITHUB_STEP_SUMMARY": str(project.root)})
    assert (done.status, "cannot be written" in done.err) == (1, True)


_GH = """#!/bin/bash -e
case "$*" in
    *--paginate*) mkdir -p "$COMMENTS"; grep -l "^### celedger" "$COMMENTS"/* || true ;;
    *PATCH*) cp "${6#body=@}" "$2" ;;
    *POST*) cp "${6#body=@}" "$(mktemp -p "$2")" ;;
esac
"""
ACTION = Path(__file__).parents[2] / "action.yml"


@pytest.mark.matrix
def test_the_action_is_green_on_the_first_day_and_red_after_a_regression(tmp_path: Path) -> None:
    """The shell of its step that checks, in a checkout without a ledger and then with it."""
    script, comment = re.findall(r"run: \|\n((?: {8}.*\n)+)", ACTION.read_text())
    project = make_project(tmp_path / "project")
    options = re.search(r"default: (--\S+)", ACTION.read_text())
    assert options is not None
    environment = {
        **os.environ, "REVISION": "HEAD", "OPTIONS": options[1], "LEDGER": "ledger.db",
        "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "RUNNER_TEMP": str(tmp_path), "COMMENTS": str(tmp_path / "comments"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    gh = tmp_path / "bin" / "gh"  # GitHub's comments are files of a folder
    gh.parent.mkdir()
    gh.write_text(_GH)
    gh.chmod(0o755)
    environment["PATH"] = f"{gh.parent}:{environment['PATH']}"

    def step(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=project.root,
            env=environment, capture_output=True, text=True,
        )  # fmt: skip

    statuses, said, comments = [], "", []
    for level in (1.0, 2.0):
        project.commit(f"level {level}", {"model.py": f"LEVEL = {level}\n"})
        done = step(script)
        statuses.append(done.returncode)
        said = done.stderr
        assert step(comment).returncode == 0
        comments.append([file.read_text() for file in (tmp_path / "comments").iterdir()])
    assert statuses == [0, 1], said
    assert "::error title=fit val_loss" in said
    assert [text.split("\n")[0] for (text,) in comments] == [
        "### celedger: first measurement, nothing to compare with",
        "### celedger: 1 metric worse",
    ]
    assert "worse" in (tmp_path / "summary").read_text()
    gh.write_text(_GH.replace("cp ", "false "))  # a token of a fork may write nothing
    done = step(comment)
    assert (done.returncode, "::warning title=celedger::no comment" in done.stdout) == (0, True)
    environment |= {"ACCEPT": "HEAD", "WHY": "wanted"}  # as by hand, with the incident's id
    done = step(script)
    assert (done.returncode, "::error" in done.stderr) == (0, False), done.stderr
    assert celedger(project.root, "status").status == 0


@pytest.mark.parametrize(
    ("file", "heading", "schema"),
    [
        ("docs/ci.md", "GitHub", "github-workflows"),
        ("docs/ci.md", "GitLab", "gitlab-ci"),
        ("action.yml", "", "github-actions"),
    ],
)
def test_a_template_keeps_to_the_schema_of_its_service(
    file: str, heading: str, schema: str, tmp_path: Path
) -> None:
    main = pytest.importorskip("check_jsonschema").main
    text = (ACTION.parent / file).read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("```yaml\n")[1].split("```")[0]
    template, wrong = tmp_path / "right.yml", tmp_path / "wrong.yml"
    template.write_text(text)
    wrong.write_text(text.replace("  script:", "  stript:").replace("steps:", "stebs:"))
    for path, status in ((template, 0), (wrong, 1)):
        done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{schema}", str(path)])
        assert done.exit_code == status, done.output
