"""The page of `celedger report` without a browser: what it says, that its figures are those of the
other verbs, and that what strangers wrote does nothing in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden.repositories import _commits, _writer, broken
from page import page_repository
from page.page_repository import AFTER_GAP, COMMITS, EVIL, EVIL_METRIC, LOST, MENDED, WORSE
from scripted import typed

import celedger.page
from celedger.base.model import BaselineAct, BaselineRecord
from celedger.page import payload
from celedger.page.cards import Host
from celedger.page.payload import in_script


class Page(HTMLParser):
    """The elements of a page, its visible text, and the contents of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.words: list[str] = []
        self._raw = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self._raw = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if self._raw and self.elements[-1][0] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self._raw:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def title(self) -> str:
        return re.search("<title>(.*?)</title>", self.html)[1]  # type: ignore[index]

    def commits(self) -> Any:
        return unpacked(next(text for own, text in self.scripts if own.get("id") == "commits"))

    def task(self, name: str) -> Any:
        return unpacked(next(text for own, text in self.scripts if own.get("data-task") == name))


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def write(repository: Path, *words: str) -> Page:
    done = typed(["report", *words], repository)
    assert done.status == 0, done.err
    return Page((repository / done.out.strip()).read_text("utf-8"))


def answer(repository: Path, *words: str) -> Any:
    return json.loads(typed([*words, "--json"], repository).out)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "tinylab"
    page_repository.make(root)
    return root


@pytest.fixture(scope="module")
def page(repository: Path) -> Page:
    return write(repository)


def test_the_page_begins_with_the_causes_of_what_is_worse(repository: Path, page: Page) -> None:
    known = answer(repository, "status")["incidents"]
    ids = {(i["task"], i["metrics"][0]["name"]): i["id"] for i in known}
    assert page.title == "2 commits made something worse; 1 crashes · tinylab · celedger"
    text = page.text
    assert "1 that was worse is over." in text
    sha = page.commits()["sha"]
    assert "char_lm · val_loss ▲ Worse 0.72702 → 0.78782 +8.4 % Also val_accuracy." in text
    assert f"First bad commit {sha[WORSE][:8]}" in text
    assert "Named by a bisect: 98.5 % sure, from 17 trials." in text
    assert f"{ids['char_lm', 'val_loss']} open" in text
    assert "cifar_tiny · step_time ▲ Worse" in text
    where = f"Between {sha[36][:8]} and {sha[AFTER_GAP][:8]}. Compare"
    assert f"One of 8 commits {where}" in text
    assert f"celedger bisect {ids['cifar_tiny', 'step_time']}" in text
    assert "speech_kw ✕ Crashes fails" in text
    assert f"celedger bisect {ids['speech_kw', '']}" in text
    assert "ner_conll · val_loss ? Suspected" in text
    assert re.search(
        r"celedger bisect \w+\.\.\w+ --suite lab --task ner_conll --metric val_loss", text
    )
    assert "graph_cora · val_accuracy ▼ Better" in text
    assert text.count("f1 not measured") == 6


def test_a_card_is_a_cause_and_each_incident_has_one(repository: Path, page: Page) -> None:
    known = answer(repository, "status")
    cards = [own for tag, own in page.elements if tag == "article" and "card" in own["class"]]
    in_force = [i for i in known["incidents"] if i["state"] in ("open", "partly")]
    assert [(c["data-task"], c["data-metric"]) for c in cards[: len(in_force)]] == [
        (f"{i['suite']}/{i['task']}", i["metrics"][0]["name"]) for i in in_force
    ]
    first = cards[0]
    index = json.loads(next(text for own, text in page.scripts if own.get("id") == "index"))
    assert index["first"] == [first["data-task"], first["data-metric"] or "val_loss"]


def test_what_is_over_stands_below_with_what_mended_it(repository: Path, page: Page) -> None:
    (over,) = (i for i in answer(repository, "status")["incidents"] if i["state"] == "recovered")
    sha = page.commits()["sha"]
    assert over["closed_at"].startswith(sha[MENDED])
    told = f"{over['id']} recovered by {sha[MENDED][:8]}"
    assert told in page.text.partition("Over (1)")[2]
    task = page.task("lab/tabular")
    (mark,) = next(m for m in task["metrics"] if m["name"] == "val_loss")["marks"]
    assert (mark["at"], mark["closed"], mark["open"]) == (LOST, MENDED, False)
    assert [MENDED, "val_loss", f"mends {over['id']}", False] in task["news"]


def test_a_merge_and_the_commit_of_its_branch_tell_their_incident_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash: Any = SimpleNamespace(
        metrics=[SimpleNamespace(suite="lab", task="mlp")],
        likeliest="branch", seen_at="merge", mend_seen_at=None,
    )  # fmt: skip
    history: Any = SimpleNamespace(
        state=SimpleNamespace(incidents=[crash], changes=[]), position={"branch": 3, "merge": 3}
    )
    task: Any = SimpleNamespace(suite="lab", name="mlp", series=[])
    monkeypatch.setattr(payload.words, "at_commit", lambda *_: ["fails (b2edc7a5)"])
    assert payload._news(history, task) == [[3, "", "fails (b2edc7a5)", True]]


def test_a_new_environment_says_what_it_moved(page: Page) -> None:
    pattern = r"lab/char_lm: torch 2\.12\.0 → 2\.13\.0: \S.*?; by code since: nothing"
    assert re.search(pattern, page.text)
    task = page.task("lab/char_lm")
    old, new = next(m for m in task["metrics"] if m["name"] == "val_loss")["stretches"]
    assert old["change"] == ""
    assert new["change"].startswith("torch 2.12.0 → 2.13.0: ")
    assert new["change"].endswith("; by code since: nothing")


def test_tags_and_baselines_stand_on_the_axis(page: Page) -> None:
    commits = page.commits()
    assert commits["tags"] == {"20": ["v2.2"], "30": ["v2.3"]}
    ((position, act, what, _, why),) = commits["baselines"]
    assert (position, act, what) == (20, "pinned", "tabular")
    assert why == "the paper <b>reports</b> it"


def test_an_incident_that_a_person_dismissed_is_not_called_accepted() -> None:
    """The page said: Accepted for mlp/*8651371d, of what had been dismissed."""
    said = BaselineRecord("1", BaselineAct.DISMISS, "a", "s", "mlp", "*8651371d", "Al", "busy", 0.0)
    acts = [said, said._replace(act=BaselineAct.VOID, commit="b", metric="*01M8")]
    scope = SimpleNamespace(axis=[], tags={})
    history: Any = SimpleNamespace(scope=scope, tasks=[], baselines=acts, position={"a": 0, "b": 1})
    assert payload.commits(history)["baselines"] == [[0, "dismissed", "mlp/8651371d", "Al", "busy"]]


def test_commits_link_to_the_web_host_without_the_password(page: Page) -> None:
    links = [own["href"] for tag, own in page.elements if tag == "a"]
    outside = {link.rpartition("/")[0] for link in links if not link.startswith("#")}
    lab = "https://github.com/tinylab/main"
    assert outside == {f"{lab}/commit", f"{lab}/compare"}
    assert "secret" not in page.html


def test_what_strangers_wrote_is_text(page: Page) -> None:
    executable = [text for own, text in page.scripts if "type" not in own]
    assert len(executable) == 1
    digest = base64.b64encode(hashlib.sha256(executable[0].encode()).digest()).decode()
    policy = next(own["content"] for tag, own in page.elements if "Security" in str(own))
    assert "unsafe" not in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert {own.get("type") for own, _ in page.scripts} == {None, "application/json", "text/plain"}
    for tag, own in page.elements:
        assert tag not in ("img", "iframe", "object", "link", "base")
        assert not [name for name in own if name.startswith("on")], (tag, own)
        assert "src" not in own
    assert " ".join(EVIL.split()) in page.text  # a subject, a message, a note
    assert EVIL_METRIC in page.text
    log = page.task("lab/speech_kw")["failures"][0]["log"]
    assert EVIL in log
    assert "\x1b" not in log
    assert EVIL not in page.html


def test_the_page_asks_for_nothing(page: Page) -> None:
    folder = Path(celedger.page.__file__).parent
    sources = [*folder.rglob("*.js"), folder / "style.css", folder / "page.html"]
    assert len(sources) > 5
    for path in sources:
        text = path.read_text()
        assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttp|WebSocket|import\(", text), path
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text), path
        assert len(text.splitlines()) <= (800 if path.suffix == ".css" else 450), path


def test_json_may_stand_in_a_script() -> None:
    content = {"</script><!--": "\u2028 & <script>"}
    text = in_script(content)
    assert json.loads(text) == content
    assert not set("<>&\u2028") & set(text)


def test_marks_and_levels_are_those_of_drift(repository: Path, page: Page) -> None:
    sha = page.commits()["sha"]
    compared = 0
    for incident in answer(repository, "drift")["incidents"]:
        for moved in incident["metrics"]:
            task = page.task(f"{moved['suite']}/{moved['task']}")
            own = next((m for m in task["metrics"] if m["name"] == moved["name"]), task)
            (mark,) = (m for m in own["marks"] if m.get("id") == incident["id"])
            assert mark["among"] == len(incident["among"])
            assert mark["members"][-1][1] == sha.index(incident["among"][-1][:12])
            if not moved["name"]:
                continue
            levels = own["stretches"][-1]["levels"]
            after = [level for at, level in levels if at <= mark["at"]][-1]
            before = [level for at, level in levels if at < mark["members"][0][0]][-1]
            assert after == pytest.approx(moved["after"], rel=0.02)
            assert before == pytest.approx(moved["before"], rel=0.02)
            compared += 1
    assert compared >= 4


def test_values_are_those_of_show(repository: Path, page: Page) -> None:
    newest = COMMITS - 1
    shown = answer(repository, "show", "HEAD")
    compared = 0
    for batch in shown["tasks"]:
        task = page.task(f"{batch['suite']}/{batch['task']}")
        for row in batch["metrics"]:
            metric = next(m for m in task["metrics"] if m["name"] == row["metric"])
            stretch = metric["stretches"][-1]
            assert sum(stretch["at"]) == newest
            # What the seeds add is small here: they are drawn anew at each commit.
            assert stretch["mean"][-1] == pytest.approx(row["mean"], abs=row["sd"])
            assert stretch["sd"][-1] == pytest.approx(row["sd"], rel=0.3)  # two digits of noise
            assert stretch["trials"][-1] == row["n"]
            compared += 1
    assert compared == 5 * 6  # speech_kw has none


def test_epochs_are_the_means_of_the_trials(repository: Path, page: Page) -> None:
    task = page.task("lab/char_lm")
    first, *points = task["epochs"]["val_loss"][str(WORSE)]
    assert (first, len(points)) == (0, 20)
    stretch = next(m for m in task["metrics"] if m["name"] == "val_loss")["stretches"][-1]
    positions = [sum(stretch["at"][: i + 1]) for i in range(len(stretch["at"]))]
    mean = stretch["mean"][positions.index(WORSE)]
    assert points[-1] == pytest.approx(mean * (1 + 1.6 * math.exp(-5)), rel=5e-3)


def test_a_range_bounds_the_page(repository: Path) -> None:
    page = write(repository, "HEAD~20..HEAD~16", "-o", str(repository / "part.html"))
    assert page.text.count("5 commits, 5 measured") == 1
    assert "char_lm · val_loss ▲" not in page.text


@pytest.mark.matrix
def test_nothing_wrong_and_nothing_measured_say_so(tmp_path: Path) -> None:
    page_repository.make(tmp_path / "calm", bad=False)
    page = write(tmp_path / "calm")
    assert page.title.startswith("Nothing got worse, 1 task got better")
    assert "too noisy" in page.text
    with _writer(tmp_path / "empty", _commits(3), page_repository.SUITE):
        pass
    page = write(tmp_path / "empty")
    assert page.title.startswith("Nothing is measured yet")
    assert "celedger run HEAD" in page.text


def test_what_cannot_be_compared_is_not_called_steady(tmp_path: Path) -> None:
    suite = page_repository.SUITE.partition('[[task]]\nname = "cifar')[0]
    with _writer(tmp_path / "first", _commits(1), suite) as writer:
        for seed in range(3):
            writer.trial("c0", "char_lm", {"val_loss": 0.5 + seed / 100}, seed=seed)
    page = write(tmp_path / "first")
    assert page.title.startswith("Nothing can be judged yet")
    assert "nothing to compare with" in page.text
    assert "task is steady" not in page.text


def test_where_incidents_are_over_the_page_never_says_that_nothing_was(tmp_path: Path) -> None:
    broken(tmp_path / "broken")
    page = write(tmp_path / "broken")
    assert page.title.startswith("Nothing is worse now")
    assert "Over (" in page.text
    assert not re.search("Nothing got worse|No change|ever changed", page.text)
    page = write(tmp_path / "broken", "HEAD~3", "-o", "older.html")
    assert page.title.startswith("1 commit fails")
    assert "val_loss nan is not finite" in page.text
    assert "step_time 12.00 ms" in page.text
    assert "val_accuracy 10 %" in page.text


@pytest.mark.matrix
def test_an_accepted_change_needs_no_attention(repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "accepted"
    shutil.copytree(repository, copy, symlinks=True)
    words = ["baseline", "accept", f"HEAD~{COMMITS - 1 - AFTER_GAP}", "--why", "a better clock"]
    assert typed([*words, "--task", "cifar_tiny"], copy).status == 0
    page = write(copy)
    assert page.title.startswith("1 commit made something worse; 1 crashes")
    assert "cifar_tiny · step_time" not in page.text.partition("Over (2)")[0]
    assert "a better clock" in page.text.partition("Over (2)")[2]


def test_the_page_takes_the_main_line_unless_told_otherwise(tmp_path: Path) -> None:
    """Where most of what was measured lies on merged branches, too."""
    from golden.repositories import noisy

    noisy(tmp_path / "noisy")
    page = write(tmp_path / "noisy")
    aside = re.search(r"(\d+) measured commits? outside this line left out", page.text)
    assert aside
    whole = write(tmp_path / "noisy", "--all", "-o", "all.html")
    assert "beside this line" not in whole.text
    assert len(whole.commits()["sha"]) == len(page.commits()["sha"]) + int(aside[1])


def test_a_page_that_cannot_be_written_is_one_line(repository: Path) -> None:
    done = typed(["report", "-o", "ledger.db/page.html"], repository)
    assert done.status == 128
    assert done.err.startswith("celedger: cannot write ledger.db/page.html: ")
    assert done.err.count("\n") == 1


def test_a_dash_prints_the_page(repository: Path) -> None:
    """It wrote a file of that name."""
    done = typed(["report", "-o", "-"], repository)
    assert (done.status, done.out[:15]) == (0, "<!doctype html>")
    assert not (repository / "-").exists()


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@github.com:owner/name.git", "https://github.com/owner/name/commit/abc"),
        ("https://token@gitlab.example.org/a/b/c.git", "https://gitlab.example.org/a/b/c/-/commit/abc"),
        ("ssh://git@bitbucket.org:22/owner/name", "https://bitbucket.org/owner/name/commits/abc"),
        ("/srv/git/name.git", ""),
        ("https://example.org/name.git", ""),
        ('https://github.com/"><script>', "https://github.com/%22%3E%3Cscript%3E/commit/abc"),
        ("javascript:alert(1)//github.com/a/b", ""),
    ],
)  # fmt: skip
def test_web_hosts_are_known_by_their_names(remote: str, address: str) -> None:
    assert Host.of(remote).commit("abc") == address


def test_a_sparkline_breaks_where_nobody_measured(page: Page) -> None:
    drawn = [own["d"] for tag, own in page.elements if tag == "path"]
    assert drawn[0].count("M") == 5  # a change of environment, and three gaps
