"""Two clones that each measured and said what is worse, and then take in each other's ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import git
from scripted import ScriptedProject

from celedger.ledger import Ledger

from .conftest import IN_FORCE, Life

Live = Callable[..., Life]


def clone(life: Life) -> Life:
    root = life.project.root.parent / "other"
    git(root.parent, "clone", "-q", str(life.project.root), str(root))
    shutil.copytree(life.project.root / "suites", root / "suites", dirs_exist_ok=True)
    project = ScriptedProject(root, life.project.executor)
    return replace(life, project=project, alerts={}, texts=[])


@pytest.fixture
def clones(live: Live) -> tuple[Life, Life]:
    """Two clones of six commits, of which the fourth is worse. The first measured both ends, the
    other one commits beside it: they name the incident for different commits."""
    life = live()
    levels = [1, 1, 1, 1.3, 1.3, 1.3]
    shas = [life.commit(level) for level in levels]
    other = clone(life)
    for revision in (shas[0], shas[5]):
        life.check(revision)
    for revision in (shas[1], shas[2], shas[4]):
        other.say("run", revision)
    git(other.project.root, "checkout", "-q", shas[4])
    other.check()
    git(other.project.root, "checkout", "-q", shas[5])
    return life, other


def merge(into: Life, source: Life) -> None:
    assert into.say("merge", str(source.project.root / "ledger.db")).status == 0


@pytest.mark.matrix
def test_the_older_name_stays_and_both_answer(clones: tuple[Life, Life]) -> None:
    first, second = clones
    old, new = first.only(), second.only()
    assert old["id"] != new["id"]
    merge(first, second)
    merge(second, first)
    for life in clones:
        row = life.only()
        assert row["id"] == old["id"]
        assert len(row["first_bad"]) == 2  # the third and the fourth, of which none is measured
        assert life.listed("withdrawn", "recovered") == []
        for name in (old["id"], new["id"]):
            assert life.json("status", name)["incident"]["id"] == old["id"]
    own, others = first.only(), second.only()
    assert {**own, "metrics": []} == {**others, "metrics": []}
    first.check()
    second.say("check")
    assert second.alerts == {new["id"]: ["opened"]}, "it was told of it under the other name"
    assert not any("false alarm" in text for text in first.texts + second.texts)
    assert first.only()["id"] == second.only()["id"] == old["id"]


@pytest.mark.matrix
def test_a_dry_run_and_a_second_merge_say_nothing_new(clones: tuple[Life, Life]) -> None:
    first, second = clones
    with Ledger.open(first.project.root / "ledger.db", readonly=True) as ledger:
        said = ledger.said()
        first.say("merge", str(second.project.root / "ledger.db"), "--dry-run")
        assert ledger.said() == said
    merge(first, second)
    with Ledger.open(first.project.root / "ledger.db", readonly=True) as ledger:
        said = ledger.said()
        states = {row.id: row.state for row in ledger.incidents()}
    assert sorted(states.values()) == ["open", "withdrawn"]
    merge(first, second)
    first.check()
    with Ledger.open(first.project.root / "ledger.db", readonly=True) as ledger:
        assert ledger.said() == said
        assert ledger.damage() == []


@pytest.mark.matrix
def test_an_act_under_either_name_counts(clones: tuple[Life, Life]) -> None:
    first, second = clones
    new = second.only()["id"]
    assert second.say("baseline", "dismiss", new, "--why", "a broken data set").status == 0
    merge(first, second)
    assert first.listed() == []
    assert first.only("withdrawn")["id"] != new


@pytest.mark.matrix
@pytest.mark.parametrize("way", [0, 1])
def test_a_failure_has_one_name_too(live: Live, way: int) -> None:
    life = live()
    crash = "raise ValueError('no')"
    shas = [life.commit(1) for _ in range(2)]
    shas += [life.commit(1, text=crash) for _ in range(3)]
    other = clone(life)
    for revision in (shas[0], shas[4]):
        life.say("check", revision)
    for revision in (shas[1], shas[3]):
        other.say("run", revision)
    git(other.project.root, "checkout", "-q", shas[3])
    other.say("check")
    git(other.project.root, "checkout", "-q", shas[4])
    names = {life.only()["id"], other.only()["id"]}
    assert len(names) == 2
    old = life.only()["id"]
    into, source = (life, other)[:: 1 - 2 * way]
    merge(into, source)
    row = into.only()
    assert (row["id"], row["first_bad"]) == (old, shas[2:4])
    assert {into.json("status", name)["incident"]["id"] for name in names} == {old}
    assert [r["state"] for r in into.rows() if r["state"] in IN_FORCE] == ["open"]
