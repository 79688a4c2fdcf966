"""The loop, whole, on real repositories: through the real program where its trainings matter, with
scripted ones where what is asked of them does."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SUITE, Project, git, rows
from scripted import Report, ScriptedProject, scripted

from celedger.base.model import Environment
from celedger.trial.engine import Need
from celedger.trial.workplace import ends_first, in_shares


@pytest.fixture
def quick(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "quick")


def footprint(root: Path) -> dict[str, str]:
    """Every file that git or the user owns, hashed: the tree, the index, refs, HEAD, hooks."""
    seen = {}
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).as_posix()
        ours = inside.startswith((".git/celedger", ".celedger", "ledger.db")) or inside in (
            ".git/info/exclude",
        )
        if path.is_file() and not ours:
            seen[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    return seen


def test_run_fills_the_ledger_and_a_second_run_trains_nothing(project: Project) -> None:
    project.history([1.0])
    first = project.run("run", "HEAD")
    assert first.status == 0, first.err
    assert "fit" in first.out
    trials = rows(project, "SELECT count(*) FROM trials")
    assert trials == [(2,)]
    assert rows(project, "SELECT count(*) FROM epoch_metrics WHERE metric = 'val_loss'") == [(6,)]
    second = project.run("run", "HEAD")
    assert second.status == 0
    assert "holds every trial" in second.err
    assert rows(project, "SELECT count(*) FROM trials") == trials


@pytest.mark.matrix
def test_nothing_of_the_users_is_touched(project: Project) -> None:
    first, *_, last = project.history([1.0, 1.0, 1.5])
    (project.root / "model.py").write_text("LEVEL = 'work in progress'\n")
    (project.root / "untracked.txt").write_text("mine\n")
    git(project.root, "status")
    before, status = footprint(project.root), git(project.root, "status", "--porcelain", "-b")
    project.run("run", "HEAD")
    done = project.run("bisect", f"{first}..{last}")
    assert done.status == 0, done.err + done.out
    project.run("worker")
    assert footprint(project.root) == before
    assert git(project.root, "status", "--porcelain", "-b") == status
    assert git(project.root, "worktree", "list").count("\n") == 0


def test_bisect_names_the_first_bad_commit_and_a_second_one_trains_nothing(
    quick: ScriptedProject,
) -> None:
    shas = quick.history([1.0] * 6 + [1.4] * 6)
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 0, done.err + done.out
    assert shas[6] in done.out
    assert "reproduce with" in done.out
    trials = rows(quick, "SELECT count(*) FROM trials")
    again = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--json")
    assert again.status == 0
    answer = json.loads(again.out)
    assert answer["schema"] == 1
    assert answer["bisect"]["culprits"][0] == shas[6]
    assert answer["bisect"]["trials"] == 0
    assert rows(quick, "SELECT count(*) FROM trials") == trials


@pytest.mark.matrix
def test_a_bisect_names_the_change_of_environment_that_makes_stored_trials_useless(
    quick: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (
        Environment(version * 32, {"packages": {"setuptools": version}}) for version in ("84", "80")
    )
    shas = quick.history([1.0, 1.0, 1.5])
    monkeypatch.setattr("scripted.ENVIRONMENT", old)
    quick.run("run", f"{shas[0]}..{shas[2]}")
    monkeypatch.setattr("scripted.ENVIRONMENT", new)
    said = "4 stored trials of fit in this range do not count: setuptools 84 → 80 since"
    for lacking in (True, False):
        done = quick.run("bisect", f"{shas[0]}..{shas[2]}")
        assert f"first bad commit of fit val_loss: {shas[2]}" in done.out, done.err
        assert (said in done.err) == lacking


@pytest.mark.matrix
def test_a_step_that_moves_a_part_back_is_told_beside_the_named_commit(
    quick: ScriptedProject,
) -> None:
    shas = quick.history([1.0] * 4 + [2.0] * 4 + [1.6] * 4)
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert f"first bad commit of fit val_loss: {shas[4]}" in done.out, done.err
    (line,) = [line for line in done.out.splitlines() if "of it back" in line]
    # One seed tells no size, and two nearly none.
    assert re.search(r"moves (a part|\d+ to \d+ %) of it back \(\d+\.\d % sure", line)
    words = ["--metric", "val_loss", "--find", "improved"]
    again = quick.run("bisect", f"{shas[4]}..{shas[-1]}", *words)
    assert f"first better commit of fit val_loss: {shas[8]}" in again.out, again.err


def test_a_metric_that_is_not_worse_is_said_to_be_so(quick: ScriptedProject) -> None:
    shas = quick.history([1.4, 1.4, 1.0, 1.0])
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 125
    assert re.search(r"is not (clearly )?worse than .* \(choose other ends\)", done.err)


def test_a_doubt_is_settled_by_seeds_that_both_commits_have(tmp_path: Path) -> None:
    """Bits repeat here: a seed that a commit has had tells nothing more, in whatever session."""

    def descend(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        level = model["LEVEL"]
        own = Random(f"{seed} {level}").gauss(0, 0.02)  # how the edit changes this seed
        yield {"epoch": 0, "val_loss": level + Random(seed).gauss(0, 0.03) + own}

    project = scripted(tmp_path / "project", training=descend)
    shas = project.history([1.0, 1.0, 1.05])
    for sha in (shas[0], shas[2]):
        assert project.run("run", sha).status == 0
    known = len(project.executor.ran)
    again = f"Next: `celedger check {shas[2][:12]} --suite tiny` runs further trials"
    assert again in project.run("check", "HEAD", "--budget", "1").err
    assert again not in project.run("check", "HEAD", "--budget", "60").err
    extra = project.executor.ran[known:]
    assert len(extra) >= 3, extra  # it is in doubt
    seeds = {sha: [s for c, s in project.executor.ran if c == sha] for sha in (shas[0], shas[2])}
    assert len(set(seeds[shas[0]]) ^ set(seeds[shas[2]])) <= 1, seeds
    repeats = sum(len(own) - len(set(own)) for own in seeds.values())
    assert repeats <= 1, seeds  # whether bits repeat was asked once


def test_a_doubt_of_an_earlier_commit_is_settled_by_seeds_that_are_new_to_its_bits(
    tmp_path: Path,
) -> None:
    """HEAD changes no bit: what an earlier commit of the same bits ran tells nothing at HEAD."""

    def descend(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        own = Random(f"{seed} {model['LEVEL']}").gauss(0, 0.02)
        yield {"epoch": 0, "val_loss": model["LEVEL"] + Random(seed).gauss(0, 0.03) + own}

    project = scripted(tmp_path / "project", training=descend)
    old, new = project.history([1.0, 1.05])
    for sha in (old, new):
        assert project.run("run", sha).status == 0
    project.run("check", "HEAD", "--budget", "5")
    head = project.commit("a comment", {"README": "more\n"})
    assert project.run("run", head).status == 0
    known = len(project.executor.ran)
    project.run("check", "HEAD", "--budget", "6")
    assert len(project.executor.ran) == known + 6  # it is in doubt still
    seeds = {sha: [s for c, s in project.executor.ran if c == sha] for sha in (old, new, head)}
    later = [s for c, s in project.executor.ran[known:] if c == head]
    assert later and set(later).isdisjoint(seeds[new]), seeds
    assert set(seeds[old]) == {*seeds[new], *seeds[head]}, seeds


def test_a_time_budget_begins_with_the_ends_and_says_what_it_left_out(
    quick: ScriptedProject,
) -> None:
    shas = quick.history([1.0] * 6)
    spread = f"{shas[0]}..{shas[-1]}"
    done = quick.run("run", spread, "--seed", "5", "--for", "soon")
    assert done.status == 129 and "--for is 'soon', not a duration" in done.err
    done = quick.run("run", spread, "--seed", "5", "--for", "1ms")
    assert "the time is up: 4 trials at 4 commits left out; the same command goes on" in done.err
    assert quick.run("show", shas[-1]).status == 0
    listed = quick.run("run", spread, "--seed", "5", "--for", "1ms", "--dry-run").out
    assert listed.count("seed 5") == 1  # the first one runs in any case
    assert re.search(r"\n\d more trials would not end in time\n", listed), listed
    assert quick.run("run", spread, "--seed", "5", "--for", "2h").status == 0
    assert quick.run("show", shas[1]).status == 0
    assert ends_first([*"abcdefg"]) == [*"gadbecf"]  # type: ignore[type-var, list-item]


def test_a_time_budget_is_shared_among_tasks(quick: ScriptedProject) -> None:
    """A slow task gets as much time as a quick one; one that found something, twice as much."""
    names = {"slow": 4.0, "quick": 1.0, "caught": 1.0}
    tasks = [SimpleNamespace(recipe=name, name=name) for name in names]
    commits = [SimpleNamespace(sha=str(number)) for number in range(8)]
    needs: Any = [Need(c, t, 0) for c in commits for t in tasks]  # type: ignore[arg-type]
    ordered = in_shares(needs, names, {"caught": 2.0})
    assert sorted(ordered, key=needs.index) == needs
    begun = Counter(need.task.name for need in ordered[:13])
    assert begun == {"slow": 1, "quick": 4, "caught": 8}
    free = {("slow", "0"), ("slow", "1")}  # cost nothing
    assert Counter(n.task.name for n in in_shares(needs, names, {}, free)[:11])["slow"] == 3
    for task in tasks:  # each keeps the order of its commits
        own = [need.commit.sha for need in ordered if need.task is task]
        assert own == [c.sha for c in commits]


def test_a_dry_run_lists_what_a_run_would_train(quick: ScriptedProject) -> None:
    shas = quick.history([1.0] * 3)
    assert quick.run("run", shas[0], "--seed", "5").status == 0
    ran = list(quick.executor.ran)
    done = quick.run("run", f"{shas[0]}..{shas[-1]}", "--seed", "5", "--seed", "6", "--dry-run")
    assert done.status == 0, done.err
    assert done.out.splitlines() == [
        f"{shas[1][:8]}  fit  seeds 5, 6",
        f"{shas[2][:8]}  fit  seeds 5, 6",
        "4 trials should take 8 s, less where a result can be re-used",
    ]
    assert quick.executor.ran == ran
    done = quick.run("run", shas[0], "--seed", "5", "--dry-run")
    assert done.out == "nothing: the ledger holds every trial\n"


def test_a_range_is_run_in_steps(quick: ScriptedProject) -> None:
    shas = quick.history([1.0] * 7)
    done = quick.run("run", f"{shas[0]}..{shas[-1]}", "--steps", "3", "--seed", "5")
    assert done.status == 0, done.err
    measured = rows(quick, "SELECT DISTINCT sha FROM epoch_metrics")
    assert len(measured) == 3


def test_a_range_is_the_main_line_and_ends_with_what_changed_in_it(quick: ScriptedProject) -> None:
    first = quick.history([1.0, 1.0, 1.0])[0]
    git(quick.root, "checkout", "--quiet", "-b", "side")
    quick.commit("tried", {"model.py": "LEVEL = 3.0\n"})
    quick.commit("worse", {"model.py": "LEVEL = 1.6\n"})
    git(quick.root, "checkout", "--quiet", "main")
    git(quick.root, "merge", "--quiet", "--no-ff", "-m", "merged", "side")
    merged = git(quick.root, "rev-parse", "HEAD")
    every = quick.run("run", f"{first}..", "--all", "--dry-run").out
    assert len(every.splitlines()) == 5, every  # the commits of the branch among them
    done = quick.run("run", f"{first}..")
    assert done.status == 1, done.out + done.err
    assert len(rows(quick, "SELECT DISTINCT sha FROM epoch_metrics")) == 3
    assert "1 changed over 3 commits, " in done.out, done.out
    assert f"{merged[:8]}: fit val_loss is worse: +" in done.out
    assert "environment" not in done.out  # nothing of `show HEAD`
    found = quick.run("bisect", f"{first}..", "--metric", "val_loss")  # inside of the branch
    assert found.status == 0, found.err
    seen = quick.run("drift", f"{first}..").out
    assert "1 changed over 4 commits, " in seen and "tried" in seen, seen


def test_the_drift_of_the_main_line_is_not_that_of_its_branches(quick: ScriptedProject) -> None:
    first = quick.history([1.0])[0]
    git(quick.root, "checkout", "--quiet", "-b", "side")
    side = quick.commit("tried and undone", {"model.py": "LEVEL = 3.0\n"})
    quick.commit("undone", {"model.py": "LEVEL = 1.0  # undone\n"})
    git(quick.root, "checkout", "--quiet", "main")
    git(quick.root, "merge", "--quiet", "--no-ff", "-m", "merged", "side")
    said = [quick.run("run", revision).status for revision in (first, side, "HEAD")]
    assert said == [0, 0, 0]
    seen = quick.run("drift", "--json")
    assert seen.status == 0
    answer = json.loads(seen.out)
    assert (answer["aside"], answer["commits"], answer["incidents"]) == (1, 2, [])
    assert "1 measured commit outside this line" in quick.run("drift").out


def test_what_is_not_finite_between_finite_ends_is_no_part_of_what_is_searched(
    tmp_path: Path,
) -> None:
    def train(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        level = model["LEVEL"] or float("nan")
        yield {"epoch": 0, "val_loss": level + 0.0123456789 * seed}

    quick = scripted(tmp_path / "p", training=train)
    shas = quick.history([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.5, 1.5, 1.5])
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert f"first bad commit of fit val_loss: {shas[10]}" in done.out, done.err


def test_seeds_that_the_suite_does_not_name_are_left_where_they_tell_nothing(
    tmp_path: Path,
) -> None:
    def train(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        if seed > 2:
            raise IndexError(seed)  # a fold of the data that is not there
        if model["LEVEL"] > 1:
            raise ValueError("shapes")
        yield {"epoch": 0, "val_loss": model["LEVEL"] + 0.0123456789 * seed}

    suite = SUITE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    quick = scripted(tmp_path / "p", suite, training=train)
    shas = quick.history([1.0] * 9 + [2.0] * 8)
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}")
    assert f"first bad commit of fit crash: {shas[9]}" in done.out, done.out
    unnamed = [seed for _, seed in quick.executor.ran if seed > 2]
    assert len(unnamed) <= 2
