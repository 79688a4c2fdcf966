"""A life of a repository: commits come, jobs run, and no view contradicts another."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
import scripted
from conftest import git

from celedger.base.model import Environment

SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1]
"""
IN_FORCE = ("open", "partly")


def training(sd: float, *, exact: bool = False) -> scripted.Training:
    """Return a training whose loss is LEVEL with a relative noise; an `exact` one repeats a seed's
    value. A model may name another METRIC, or raise."""
    fresh = Random(7)

    def descend(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
        rng = Random(seed) if exact else fresh
        for epoch in range(2):
            factor = 1 + rng.gauss(0, sd)
            report = {"epoch": epoch}
            for name in ("LEVEL", *model.get("OTHERS", {})):
                level = model["OTHERS"][name] if name != "LEVEL" else model["LEVEL"]
                value = level * factor if level == level else level
                report["val_loss" if name == "LEVEL" else name] = value
            for name in model.get("DROPPED", ()):
                del report[name]
            yield report

    return descend


@dataclass
class Life:
    """A repository with a scripted suite and an address that alerts go to.

    `alerts` are the events of each incident as the webhook received them, the oldest first;
    `elsewhere` are those whose mend was told of a branch that was squashed since.
    """

    project: scripted.ScriptedProject
    posts: list[dict[str, Any]]
    alerts: dict[str, list[str]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    number: int = 0
    compared: set[tuple[str, str]] = field(default_factory=set)  # incidents with their states
    elsewhere: set[str] = field(default_factory=set)

    def commit(self, level: float | str, subject: str = "", *, text: str = "") -> str:
        """Commit a level of the loss."""
        self.number += 1
        model = f"LEVEL = {level}\nNUMBER = {self.number}\n{text}"
        return self.project.commit(subject or f"number {self.number}", {"model.py": model})

    def revert(self, sha: str) -> str:
        git(self.project.root, "revert", "--no-edit", sha)
        return self.head()

    def squash(self, branch: str) -> None:
        """Bring a branch to the main line as one commit, and remove it."""
        root = self.project.root
        git(root, "checkout", "-q", "main")
        git(root, "merge", "-q", "--squash", branch)
        git(root, "commit", "-q", "-m", f"squash {branch}")
        git(root, "branch", "-q", "-D", branch)

    def head(self) -> str:
        return git(self.project.root, "rev-parse", "HEAD")

    def say(self, *words: str) -> scripted.Done:
        done = self.project.run(*words)
        assert not re.search("Traceback|internal error", done.err), done.err
        self._receive()
        return done

    def check(self, revision: str = "HEAD") -> int:
        """Check a commit; where that changed what is listed, hold every view beside the others."""
        status = self.say("check", revision).status
        self._compare_news()
        return status

    def work(self) -> str:
        """Let the worker measure HEAD, as a hook has it started; return the hook's next line."""
        root = self.project.root
        self.project.allow()
        note = root / ".git" / "celedger" / "queue" / "1.moved"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(os.fsencode(root))
        done = self.say("worker", "--from-hook")
        assert done.status == 0, done.err
        line = (root / ".git" / "celedger" / "last-job").read_text()
        self._compare_news()  # a check by a person takes the line
        return line

    def begin(self) -> None:
        """Check three commits of the same level."""
        for _ in range(3):
            self.commit(1)
            self.say("check")

    def rows(self) -> list[dict[str, Any]]:
        """Return the incidents of `status --json`."""
        rows: list[dict[str, Any]] = self.json("status")["incidents"]
        return rows

    def listed(self, *states: str) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["state"] in (states or IN_FORCE)]

    def only(self, *states: str) -> dict[str, Any]:
        """Return the one incident that is listed so."""
        (row,) = self.listed(*states)
        return row

    def json(self, *words: str) -> dict[str, Any]:
        done = self.say(*words, "--json")
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    def trials(self) -> int:
        return len(self.project.executor.ran)

    def upgrade(self, monkeypatch: pytest.MonkeyPatch, letter: str = "f") -> None:
        """Measure in another environment from now on."""
        details = {"python": f"CPython 3.{ord(letter) - 90}", "device": "cpu"}
        monkeypatch.setattr(scripted, "ENVIRONMENT", Environment(letter * 64, details))

    def _receive(self) -> None:
        for post in self.posts:
            self.texts.append(post["message"])
            for line in post["message"].splitlines():
                match = re.match(r"([0-9a-f]{8}): (.*)", line)
                if match:
                    self.alerts.setdefault(match[1], []).append(_event(match[2]))
        self.posts.clear()

    def _compare_news(self) -> None:
        rows = self.rows()
        if {(row["id"], row["state"]) for row in rows} != self.compared:
            self.compare(rows)

    def compare(self, listed: list[dict[str, Any]] | None = None) -> None:
        """Fail where two views of the state contradict each other, or `status`, which listed it."""
        done = self.say("check", "--budget", "0", "--json")
        check = json.loads(done.out)
        drift = self.json("drift")
        rows = {row["id"]: row for row in (self.rows() if listed is None else listed)}
        for other in (drift, check):
            assert {r["id"]: r["state"] for r in other["incidents"]} == {
                name: row["state"] for name, row in rows.items()
            }
        known, self.compared = self.compared, {(name, row["state"]) for name, row in rows.items()}
        in_force = [row for row in rows.values() if row["state"] in IN_FORCE]
        worse = {name for s in check["standings"] if s["declared"] for name in s["incidents"]}
        left_out = re.findall(r"([0-9a-f]{8}) .* is left out: it is no longer", done.err)
        assert worse == {r["id"] for r in in_force if r["declared"]} - {*left_out}
        assert (done.status == 1) == bool(worse)
        text = self.say("status").out
        assert ("worse     nothing" in re.sub(" +", "     ", text)) == (not in_force), text
        assert all(row["id"] in text for row in in_force)
        text = self.say("drift").out
        assert all(row["id"] in text for row in rows.values()), text
        if "no change seen" in text:
            assert not rows
        news = [row for name, row in rows.items() if (name, row["state"]) not in known]
        self._compare_commits(news)
        self._compare_alerts(rows)

    def _compare_commits(self, rows: list[dict[str, Any]]) -> None:
        log = {entry["commit"]: entry for entry in self.json("log")["commits"]}
        for row in rows:
            if row["state"] == "withdrawn":
                assert row["id"] not in self.say("log").out
                continue
            at = row["likeliest"] if row["bisect"] else row["seen_at"]
            tasks = {metric["task"] for metric in row["metrics"]}
            for sha, word in ((at, row["id"]), (row["closed_at"], "mends")):
                if sha in log and tasks & {task["task"] for task in log[sha]["tasks"]}:
                    told = "; ".join(t for task in log[sha]["tasks"] for t in task["told"])
                    assert row["id"] in told, (sha, told, row)
                    assert word in told, (sha, told, row)
                    assert row["id"] in self.say("show", sha).out
            good = git(self.project.root, "rev-parse", f"{row['first_bad'][0]}^@").split("\n")[0]
            if good in log and at in log and row["kind"] in ("metric", "drift"):
                diff = self.json("diff", f"{good}..{at}")
                for task in diff["tasks"]:
                    if not task["comparable"]:
                        continue
                    for metric in task["metrics"]:
                        moved = [(m["task"], m["name"]) for m in row["metrics"]]
                        if metric["said"] == "not finite":  # another cause, at one of both
                            continue
                        if (task["task"], metric["metric"]) in moved:
                            assert metric["said"] == "worse", (row, metric)
                            assert row["id"] in metric["incidents"], (row, metric)

    def _compare_alerts(self, rows: Mapping[str, dict[str, Any]]) -> None:
        for name, events in self.alerts.items():
            assert len(events) == len(set(events)), (name, events)
            assert events[0] == "opened", (name, events)
            row = rows.get(name)
            if row is None:
                continue
            if name not in self.elsewhere:
                assert ("recovered" in events) == (row["state"] == "recovered"), (row, events)
        for row in rows.values():
            if row["state"] in IN_FORCE:
                assert self.alerts.get(row["id"], [""])[0] == "opened", (row, self.alerts)


def _event(text: str) -> str:
    if text.startswith("first bad commit of"):
        return "named"
    if text.endswith("is good again") or "a cause is mended" in text:
        return "recovered"
    return "withdrawn" if text.endswith("was a false alarm") else "opened"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Makes lives whose alerts go to a webhook."""
    posts: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        file = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'notify = ["json://127.0.0.1:{server.server_port}/"]\n')
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def make(
            sd: float = 0.003, *, exact: bool = False, suite: str = SUITE, name: str = "project"
        ) -> Life:
            made = scripted.scripted(tmp_path / name, suite, training(sd, exact=exact))
            return Life(made, posts)

        yield make
        server.shutdown()
        thread.join()
