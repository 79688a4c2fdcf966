"""Random lives through the program, beside their truth: nothing is worse that did not rise, nothing
is good again that did not fall, and no view or alert contradicts another. CELEDGER_LIVES=30:40 runs
the lives of these numbers, of each kind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import git
from scripted import Report

from celedger.system import process

from .conftest import IN_FORCE, SUITE, Life

METRICS = """\
[metrics.accuracy]
direction = "higher"
kind = "quality"
[metrics.step_ms]
direction = "lower"
kind = "speed"
floor = "3%"
[metrics.mem]
direction = "lower"
kind = "memory"
floor = "2%"
"""
TASKS = SUITE.replace("[[task]]", METRICS + "[[task]]") + SUITE[SUITE.index("[[task]]") :].replace(
    '"fit"', '"wide"'
).replace("seeds = [0, 1]", "seeds = [10, 11]")
BETWEEN = "\n" + "# lines that keep two changes apart, for git\n" * 4
START = {"LOSS": 1.0, "MISSES": 1.0, "MS": 10.0, "MEM": 500.0, "CRASHES": 0.0, "NANS": 0.0}
Levels = dict[str, float]
TRUTH: dict[str, Callable[[Mapping[str, float]], float]] = {  # higher is worse
    "val_loss": lambda levels: levels["LOSS"] + 1e9 * (levels["CRASHES"] + levels["NANS"]),
    "accuracy": lambda levels: levels["LOSS"] * levels["MISSES"] + 1e9 * levels["CRASHES"],
    "step_ms": lambda levels: levels["MS"] + 1e9 * levels["CRASHES"],
    "mem": lambda levels: levels["MEM"] + 1e9 * levels["CRASHES"],
    "": lambda levels: levels["CRASHES"] + levels["NANS"],
}
LIVES = range(*map(int, os.environ.get("CELEDGER_LIVES", "0:1").split(":")))


def training(
    kind: str, sd: float, machine: float, offset: Callable[[], float], seed: int
) -> Callable[..., Iterator[Report]]:
    """Return trainings whose values of a seed repeat, do so nearly, or are drawn each time. The
    `machine` is faster or slower in each session; an environment has an `offset`, a factor."""
    fresh = Random(seed)

    def train(levels: Mapping[str, Any], seed: int) -> Iterator[Report]:
        if levels["CRASHES"]:
            raise RuntimeError("shapes do not match")
        own, new = Random(seed).gauss(0, sd), fresh.gauss(0, sd)
        loss = levels["LOSS"] * (1 + {"exact": own, "paired": own + 0.2 * new, "fresh": new}[kind])
        loss *= offset()
        state = machine * Random(process.session()).gauss(0, 1)
        for epoch in range(2):
            step = levels["MS"] * (1 + fresh.gauss(0, sd)) * (1 + state) * offset() ** 2
            mem = levels["MEM"] * (1 + fresh.gauss(0, 0.001)) * (1 + state / 10)
            misses = loss * levels["MISSES"] / 4
            shown = float("nan") if levels["NANS"] else loss
            yield {"epoch": epoch, "val_loss": shown, "accuracy": 1 - misses} | {
                "step_ms": step, "mem": mem,
            }  # fmt: skip

    return train


def states(life: Life) -> dict[str, Any]:
    return {row["id"]: (row["state"], row["first_bad"]) for row in life.rows()}


class RandomLife:
    """A repository in which things happen, with the true levels of each commit."""

    def __init__(
        self, life: Life, random: Random, sd: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.life, self.random, self.sd, self.monkeypatch = life, random, sd, monkeypatch
        self.environment, self.editions, self.is_wide = "e", 0, True
        self.levels, self.truth = dict(START), dict[str, Levels]()
        self.parents: dict[str, list[str]] = {}

    def happens(self) -> None:
        """Let one thing happen to the main line."""
        events = {
            self.nothing: 4, self.rises: 5, self.falls: 1, self.mends: 4, self.mends_a_part: 2,
            self.reverts: 3, self.edits_a_text: 2, self.goes_on: 1, self.merges: 3,
            self.upgrades: 1, self.accepts: 1, self.dismisses: 1, self.edits_the_suite: 1,
            self.drops_a_task: 1, self.rewords: 1, self.rebases: 1, self.voids: 1,
            self.looks_back: 1, self.searches: 2, self.repeats: 1, self.squashes: 2,
            self.amends: 1, self.cherry_picks: 2, self.joins_by_hand: 2, self.tags: 1,
        }  # fmt: skip
        event = self.random.choices([*events], [*events.values()])[0]
        event()
        # Shown where the life fails.
        sys.stdout.write(f"{self.life.head()[:12]} {event.__name__} {self.levels}\n")

    def commit(self, **changes: float) -> None:
        self._write(**changes)
        git(self.life.project.root, "add", "--all")
        git(self.life.project.root, "commit", "-q", "-m", f"number {self.life.number}")

    def _write(self, **changes: float) -> None:
        self.levels |= changes
        self.life.number += 1
        text = BETWEEN.join(f"{name} = {level!r}" for name, level in self.levels.items()) + "\n"
        (self.life.project.root / "model.py").write_text(text)
        (self.life.project.root / "notes.txt").write_text(f"{self.life.number}\n")

    def nothing(self) -> None:
        self.commit()

    def goes_on(self) -> None:
        """Make commits that nobody measures."""
        for _ in range(self.random.randint(3, 6)):
            self.random.choice((self.nothing, self.nothing, self.nothing, self.rises))()

    def edits_a_text(self) -> None:
        """Change what no training reads."""
        (self.life.project.root / "README.md").write_text(f"{self.random.random()}\n")
        git(self.life.project.root, "add", "README.md")
        git(self.life.project.root, "commit", "-q", "-m", "a text")

    def _size(self) -> float:
        return 1 + self.random.choice((6, 10, 20, 60)) * self.sd

    def rises(self) -> None:
        names = self.random.choice(
            (["LOSS"], ["LOSS"], ["MISSES"], ["MS"], ["MEM"], ["LOSS", "MS"], [])
        )
        changes = {name: self.levels[name] * self._size() for name in names}
        self.commit(**(changes or {self.random.choice(("CRASHES", "NANS")): 1.0}))

    def falls(self) -> None:
        name = self.random.choice(("LOSS", "MS", "MEM"))
        self.commit(**{name: self.levels[name] / self._size()})

    def _risen(self) -> list[tuple[str, float, float]]:
        """Return what earlier commits made worse and is so: its name, before and after."""
        line = [self.at(sha) for sha in self.line()]
        return [
            (name, before[name], after[name])
            for before, after in pairwise(line)
            for name in START
            if after[name] > before[name] and self.levels[name] >= after[name]
        ]

    def mends_a_part(self) -> None:
        if risen := [rise for rise in self._risen() if rise[1]]:
            name, before, after = self.random.choice(risen)
            share = self.random.choice((0.3, 0.5, 0.7, 0.9))
            self.commit(**{name: self.levels[name] * (1 - share * (1 - before / after))})

    def mends(self) -> None:
        """Take back what an earlier commit added, in one metric or with an improvement beside."""
        if risen := self._risen():
            name, before, after = self.random.choice(risen)
            changes = {name: self.levels[name] * before / after if before else 0.0}
            if self.random.random() < 0.3 and name != "MS":
                changes["MS"] = self.levels["MS"] / self._size()
            self.commit(**changes)

    def reverts(self) -> None:
        root, sha = self.life.project.root, self.random.choice(self.line()[1:])
        merge = ["-m", "1"] * (len(git(root, "rev-list", "--parents", "-1", sha).split()) > 2)
        try:
            git(root, "revert", "--no-edit", *merge, sha)
        except subprocess.CalledProcessError:  # a conflict, or nothing is left to revert
            git(root, "reset", "-q", "--hard")
        self.levels = dict(self.at(self.life.head()))

    def upgrades(self) -> None:
        """Change the environment, or go back to the one before."""
        self.environment = "f" if self.environment == "e" else "e"
        self.life.upgrade(self.monkeypatch, self.environment)
        self.commit()

    def edits_the_suite(self) -> None:
        """Give one task another definition."""
        self.editions += 1
        self._write_suite()
        self.commit()

    def drops_a_task(self) -> None:
        """Remove the second task, or bring it back."""
        self.is_wide = not self.is_wide
        self._write_suite()
        self.commit()

    def _write_suite(self) -> None:
        text = TASKS if self.is_wide else SUITE.replace("[[task]]", METRICS + "[[task]]")
        text = text.replace("fit.py", f"fit.py --edition {self.editions}", 1)
        (self.life.project.root / "suites" / "tiny" / "suite.toml").write_text(text)

    def rewords(self) -> None:
        """Write the newest commit anew."""
        git(
            self.life.project.root, "commit", "--amend", "-q", "-m", f"again {self.random.random()}"
        )

    def rebases(self) -> None:
        """Put the newest commits upon another that changes nothing. What was mended in one of them
        shows anew once the tip is measured."""
        if self.levels["CRASHES"] or self.levels["NANS"]:
            return
        root, line = self.life.project.root, self.line()
        base = line[-min(4, len(line) - 1)]
        tip = self.life.head()
        git(root, "checkout", "-q", "-B", "main", base)
        self._other_work()
        try:
            git(root, "rebase", "-q", "--rebase-merges", "--onto", "main", base, tip)
        except subprocess.CalledProcessError:  # a merge that was resolved by hand
            git(root, "rebase", "--abort")
            git(root, "checkout", "-q", tip)
        git(root, "checkout", "-q", "-B", "main")
        self.life.say("check")

    def _other_work(self) -> None:
        root, name = self.life.project.root, f"other-{self.random.random()}"
        (root / name).touch()
        git(root, "add", name)
        git(root, "commit", "-q", "-m", "other work")

    def voids(self) -> None:
        """Void the trials of a commit, look, and take that back."""
        sha = self.random.choice(self.line())
        done = self.life.say("show", sha, "--json")
        if done.status:
            return  # not measured
        ids = [t["ulid"] for task in json.loads(done.out)["tasks"] for t in task["trials"]]
        self.life.say("check")
        before = states(self.life)
        self.life.say("baseline", "void", *ids, "--why", "the fan was broken")
        self.life.json("status")
        self.life.say("baseline", "void", *ids, "--why", "it was not", "--undo")
        assert states(self.life) == before
        self.commit()

    def looks_back(self) -> None:
        """Check an earlier commit, there and from here."""
        root, sha = self.life.project.root, self.random.choice(self.line()[1:])
        self.life.say("check", sha, "--budget", "0")
        git(root, "checkout", "-q", sha)
        self.life.say("check")
        git(root, "checkout", "-q", "main")
        self.commit()

    def searches(self) -> None:
        """Search for the first bad commit of an incident."""
        rows = [r for r in self.life.listed() if not r["bisect"] and len(r["first_bad"]) > 1]
        if rows:
            row = self.random.choice(rows)
            if self.random.random() < 0.5:
                self._interrupt(row["id"])
            done = self.life.say("bisect", row["id"])
            names = {"fit", "wide"} if self.is_wide else {"fit"}
            is_there = names & {metric["task"] for metric in row["metrics"]}
            is_told = "has one first bad commit" in done.err  # by the trials before Ctrl-C
            assert done.status in (0, 1, 125) or is_told or not is_there, (done, row)
            self.life.compare()
        self.commit()

    def _interrupt(self, name: str) -> None:
        """Search, and press Ctrl-C in the second training."""
        executor = self.life.project.executor
        whole, ran = executor.training, len(executor.ran)

        def train(levels: Mapping[str, Any], seed: int) -> Iterator[Report]:
            for report in whole(levels, seed):
                yield report
                if len(executor.ran) > ran + 1:
                    raise KeyboardInterrupt

        executor.training = train
        done = self.life.say("bisect", name)
        executor.training = whole
        # One that crashes reports nothing, at which to press it.
        reported = any(not self.at(sha)["CRASHES"] for sha, _ in executor.ran[ran + 1 :])
        assert (done.status == 130) == reported, done
        self.life.compare()

    def repeats(self) -> None:
        """Run a commit of the line with another seed."""
        self.life.say("run", self.random.choice(self.line()), "--seed", "5")
        self.life.compare()
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
        """Merge a branch, perhaps after a look at it from the main line."""
        root, branch = self.life.project.root, self._branch()
        if self.random.random() < 0.5:
            self.life.say("check", branch)
            self.life.compare()
        git(root, "merge", "-q", "--no-ff", "-m", "merge", branch)
        self.levels = dict(self.at(self.life.head()))

    def _branch(self) -> str:
        """Make a branch of some commits, and return to the main line."""
        root, branch = self.life.project.root, f"branch-{self.life.number}"
        git(root, "checkout", "-q", "-b", branch)
        for _ in range(self.random.randint(1, 4)):
            self.random.choice((self.nothing, self.nothing, self.rises, self.falls))()
        git(root, "checkout", "-q", "main")
        self.levels = dict(self.at(self.life.head()))
        return branch

    def joins_by_hand(self) -> None:
        """Merge a branch that conflicts with what the line got meanwhile."""
        root, base = self.life.project.root, dict(self.levels)
        branch = self._branch()
        self.random.choice((self.nothing, self.rises, self.mends))()
        ours, theirs = dict(self.levels), self.at(git(root, "rev-parse", branch))
        if self.random.random() < 0.5:
            self.life.say("check")
        with contextlib.suppress(subprocess.CalledProcessError):
            git(root, "merge", "-q", "--no-ff", "-m", "merge", branch)
        both = {n: ours[n] if theirs[n] == base[n] else theirs[n] for n in START}
        self._write(**both)
        git(root, "add", "--all")
        is_merged = branch in git(root, "branch", "--merged")  # the line got nothing meanwhile
        git(root, "commit", "-q", "--no-edit", *["--amend"] * is_merged)

    def cherry_picks(self) -> None:
        """Take one commit of a branch that stays."""
        root, branch = self.life.project.root, self._branch()
        git(root, "cherry-pick", "-X", "theirs", "--keep-redundant-commits", branch)
        self.levels = dict(self.at(self.life.head()))

    def amends(self) -> None:
        """Put another change in the place of the newest commit's."""
        name = self.random.choice(("LOSS", "MS"))
        self._write(**{name: self.at(self.line()[-2])[name]})
        git(self.life.project.root, "commit", "-q", "--all", "--amend", "--no-edit")

    def tags(self) -> None:
        """Tag a commit, and name it so."""
        tag = f"v{self.life.number}"
        git(self.life.project.root, "tag", "-m", tag, tag, self.random.choice(self.line()[1:]))
        self.life.say("check", tag, "--budget", "0")
        assert self.life.say("show", tag).status in (0, 125)
        self.commit()

    def squashes(self) -> None:
        """Check on a branch, bring its commits to the main line as one, and remove it."""
        root, branch = self.life.project.root, f"branch-{self.life.number}"
        git(root, "checkout", "-q", "-b", branch)
        before = {row["id"] for row in self.life.listed("recovered")}
        for _ in range(self.random.randint(1, 3)):
            self.random.choice((self.nothing, self.rises, self.falls, self.mends))()
            self.life.check()
            self.life.elsewhere |= {r["id"] for r in self.life.listed("recovered")} - before
        git(root, "checkout", "-q", "main")
        if self.random.random() < 0.5:  # meanwhile the line moved on
            self._other_work()
        git(root, "merge", "-q", "--squash", branch)
        if git(root, "status", "--porcelain", "--untracked-files=no"):
            git(root, "commit", "-q", "-m", f"squash {branch}")
        git(root, "branch", "-q", "-D", branch)

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

    def first_parent(self, sha: str) -> list[str]:
        """Return the first parent of a commit, if it has one."""
        if sha not in self.parents:
            self.parents[sha] = git(self.life.project.root, "rev-parse", f"{sha}^@").split()[:1]
        return self.parents[sha]

    def compare(self) -> None:
        """Compare what is listed with the truth."""
        line = self.line()
        moves = [(self.at(a), self.at(b)) for a, b in pairwise(line)]
        for row in self.life.listed(*IN_FORCE, "recovered"):
            truths = [TRUTH[m["name"]] for m in row["metrics"] if m["name"] in TRUTH]
            ends = [
                (self.at(parent), self.at(sha))
                for sha in row["first_bad"]  # commits of merged branches, too, and the first one
                for parent in self.first_parent(sha)
            ]
            assert any(of(after) > of(before) for of in truths for before, after in ends), row
            if row["state"] == "recovered":
                closed, last = line.index(row["closed_at"]), line.index(row["seen_at"])
                assert any(of(b) < of(a) for of in truths for a, b in moves[last:closed]), row


@pytest.mark.matrix
@pytest.mark.parametrize("number", LIVES)
@pytest.mark.parametrize("kind", ["exact", "paired", "fresh"])
def test_a_random_life(
    live: Callable[..., Life], kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(f"life {number} of {kind} values")
    sd, machine = random.choice((0.003, 0.01, 0.02)), random.choice((0.0, 0.02, 0.05))
    life = live(suite=TASKS)
    world = RandomLife(life, random, sd, monkeypatch)
    offset = random.choice((1, 1.01, 1.03))
    life.project.executor.training = training(
        kind, sd, machine, lambda: offset if world.environment == "f" else 1, number
    )
    if random.random() < 0.3:  # the second task comes later
        world.drops_a_task()
    judge = life.check
    if number % 2:  # by the worker, which searches too
        judge = life.work
        file = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
        file.write_text(f"{file.read_text()}bisect_on_regression = true\n")
    for _ in range(3):
        world.commit()
        judge()
    for _ in range(24):
        world.happens()
        if random.random() < 0.85:  # not every commit is measured
            judge()
            world.compare()
        if random.random() < 0.1:  # the cache may be deleted
            # Noise that is read at once may decide what was in doubt; what was told stays.
            before = {row["id"] for row in life.listed()}
            for folder in ("state", "histories"):
                shutil.rmtree(life.project.root / ".git" / "celedger" / folder, ignore_errors=True)
            assert {row["id"] for row in life.listed()} >= before
