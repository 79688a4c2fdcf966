"""Random lives through the program, beside their truth: nothing is worse that did not rise, nothing
is good again that did not fall, and no view or alert contradicts another. CELEDGER_LIVES=30:40 runs
the lives of these numbers, of each kind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from conftest import git
from scripted import Report

from .conftest import IN_FORCE, SUITE, Life

METRICS = """\
[metrics.accuracy]
direction = "higher"
kind = "quality"
[metrics.step_ms]
direction = "lower"
kind = "speed"
floor = "3%"
"""
TASKS = SUITE.replace("[[task]]", METRICS + "[[task]]") + SUITE[SUITE.index("[[task]]") :].replace(
    '"fit"', '"wide"'
).replace("seeds = [0, 1]", "seeds = [10, 11]")
BETWEEN = "\n" + "# lines that keep two changes apart, for git\n" * 4
START = {"LOSS": 1.0, "MISSES": 1.0, "MS": 10.0, "CRASHES": 0.0, "NANS": 0.0}
Levels = dict[str, float]
TRUTH: dict[str, Callable[[Mapping[str, float]], float]] = {  # higher is worse
    "val_loss": lambda levels: levels["LOSS"] + 1e9 * (levels["CRASHES"] + levels["NANS"]),
    "accuracy": lambda levels: levels["LOSS"] * levels["MISSES"] + 1e9 * levels["CRASHES"],
    "step_ms": lambda levels: levels["MS"] + 1e9 * levels["CRASHES"],
    "": lambda levels: levels["CRASHES"] + levels["NANS"],
}
LIVES = range(*map(int, os.environ.get("CELEDGER_LIVES", "0:1").split(":")))


def training(kind: str, sd: float, seed: int) -> Callable[..., Iterator[Report]]:
    """Return trainings whose values of a seed repeat, do so nearly, or are drawn each time."""
    fresh = Random(seed)

    def train(levels: Mapping[str, Any], seed: int) -> Iterator[Report]:
        if levels["CRASHES"]:
            raise RuntimeError("shapes do not match")
        own, new = Random(seed).gauss(0, sd), fresh.gauss(0, sd)
        loss = levels["LOSS"] * (1 + {"exact": own, "paired": own + 0.2 * new, "fresh": new}[kind])
        for epoch in range(2):
            step = levels["MS"] * (1 + fresh.gauss(0, sd))
            misses = loss * levels["MISSES"] / 4
            shown = float("nan") if levels["NANS"] else loss
            yield {"epoch": epoch, "val_loss": shown, "accuracy": 1 - misses, "step_ms": step}

    return train


class RandomLife:
    """A repository in which things happen, with the true levels of each commit."""

    def __init__(
        self, life: Life, random: Random, sd: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.life, self.random, self.sd, self.monkeypatch = life, random, sd, monkeypatch
        self.environment = "e"
        self.levels, self.truth = dict(START), dict[str, Levels]()

    def happens(self) -> None:
        """Let one thing happen to the main line."""
        events = {
            self.nothing: 4, self.rises: 5, self.falls: 1, self.mends: 4, self.reverts: 3,
            self.merges: 3, self.upgrades: 1, self.accepts: 1, self.dismisses: 1,
        }  # fmt: skip
        self.random.choices([*events], [*events.values()])[0]()

    def commit(self, **changes: float) -> None:
        self.levels |= changes
        self.life.number += 1
        text = BETWEEN.join(f"{name} = {level!r}" for name, level in self.levels.items()) + "\n"
        files = {"model.py": text, "notes.txt": f"{self.life.number}\n"}
        self.life.project.commit(f"number {self.life.number}", files)

    def nothing(self) -> None:
        self.commit()

    def _size(self) -> float:
        return 1 + self.random.choice((6, 10, 20, 60)) * self.sd

    def rises(self) -> None:
        names = self.random.choice((["LOSS"], ["LOSS"], ["MISSES"], ["MS"], ["LOSS", "MS"], []))
        changes = {name: self.levels[name] * self._size() for name in names}
        self.commit(**(changes or {self.random.choice(("CRASHES", "NANS")): 1.0}))

    def falls(self) -> None:
        name = self.random.choice(("LOSS", "MS"))
        self.commit(**{name: self.levels[name] / self._size()})

    def mends(self) -> None:
        """Take back what an earlier commit added, in one metric or with an improvement beside."""
        line = [self.at(sha) for sha in self.line()]
        risen = [
            (name, before[name], after[name])
            for before, after in pairwise(line)
            for name in START
            if after[name] > before[name] and self.levels[name] >= after[name]
        ]
        if risen:
            name, before, after = self.random.choice(risen)
            changes = {name: self.levels[name] * before / after if before else 0.0}
            if self.random.random() < 0.3 and name != "MS":
                changes["MS"] = self.levels["MS"] / self._size()
            self.commit(**changes)

    def reverts(self) -> None:
        root, sha = self.life.project.root, self.random.choice(self.line()[1:])
        merge = ["-m", "1"] * (len(git(root, "rev-list", "--parents", "-1", sha).split()) > 2)
        words = ["git", "-C", str(root), "revert", "--no-edit", *merge, sha]
        if subprocess.run(words, capture_output=True).returncode:
            subprocess.run([*words[:4], "--abort"], capture_output=True)
        self.levels = dict(self.at(self.life.head()))

    def upgrades(self) -> None:
        """Change the environment, or go back to the one before."""
        self.environment = "f" if self.environment == "e" else "e"
        self.life.upgrade(self.monkeypatch, self.environment)
        self.commit()

    def accepts(self) -> None:
        self._say("accept")

    def dismisses(self) -> None:
        self._say("dismiss")

    def _say(self, verb: str) -> None:
        if rows := self.life.listed():
            self.life.say("baseline", verb, self.random.choice(rows)["id"], "--why", "meant")
        self.commit()

    def merges(self) -> None:
        root, branch = self.life.project.root, f"branch-{self.life.number}"
        git(root, "checkout", "-q", "-b", branch)
        for _ in range(self.random.randint(1, 4)):
            self.random.choice((self.nothing, self.nothing, self.rises, self.falls))()
        git(root, "checkout", "-q", "main")
        git(root, "merge", "-q", "--no-ff", "-m", "merge", branch)

    def line(self) -> list[str]:
        root = self.life.project.root
        shas: str = git(root, "rev-list", "--first-parent", "--reverse", "HEAD")
        return shas.split()

    def at(self, sha: str) -> Levels:
        """Return the true levels of a commit."""
        if sha not in self.truth:
            levels: dict[str, Any] = {}
            exec(git(self.life.project.root, "show", f"{sha}:model.py"), levels)
            self.truth[sha] = {name: levels[name] for name in START}
        return self.truth[sha]

    def compare(self) -> None:
        """Compare what is listed with the truth."""
        line = self.line()
        moves = [(self.at(a), self.at(b)) for a, b in pairwise(line)]
        for row in self.life.listed(*IN_FORCE, "recovered"):
            places = [line.index(sha) for sha in row["first_bad"] if sha in line]
            first, last = places[0], places[-1]
            truths = [TRUTH[m["name"]] for m in row["metrics"] if m["name"] in TRUTH]
            assert any(of(b) > of(a) for of in truths for a, b in moves[first - 1 : last]), row
            if row["state"] == "recovered":
                closed = line.index(row["closed_at"])
                assert any(of(b) < of(a) for of in truths for a, b in moves[last:closed]), row


@pytest.mark.matrix
@pytest.mark.parametrize("number", LIVES)
@pytest.mark.parametrize("kind", ["exact", "paired", "fresh"])
def test_a_random_life(
    live: Callable[..., Life], kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(f"life {number} of {kind} values")
    sd = random.choice((0.003, 0.01, 0.02))
    life = live(suite=TASKS)
    life.project.executor.training = training(kind, sd, number)
    world = RandomLife(life, random, sd, monkeypatch)
    for _ in range(3):
        world.commit()
        life.check()
    for _ in range(24):
        world.happens()
        if random.random() < 0.85:  # not every commit is measured
            life.check()
            world.compare()
