"""The schema of the ledger: its version, and how an older ledger is brought to it. docs/ledger.md
is its published contract.

Lives here: the migrations (tables, triggers and views as literal SQL), and the transaction that
applies them. It must not know where the file is, who holds it, or what is read from it.

A migration that has shipped is never edited or renamed. A new one stands at the end of
`MIGRATIONS` and adds a line to docs/ledger.md. It calls nothing of today's code but the checksums
of its own version: what other code does tomorrow must not change what a ledger of an older schema
becomes. One file of each older schema lies in tests/ledgers/.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celedger.ledger import checksums

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x63656C65  # "cele": marks a file as a ledger

# The tables and views of schema 5, frozen.
_TABLES = """
CREATE TABLE commits (
  id INTEGER PRIMARY KEY,
  sha TEXT NOT NULL UNIQUE,
  tree TEXT NOT NULL,
  author TEXT NOT NULL,
  author_time INTEGER NOT NULL,  -- seconds since the epoch, UTC
  commit_time INTEGER NOT NULL,
  subject TEXT NOT NULL
) STRICT;
CREATE TABLE parents (
  revision INTEGER NOT NULL REFERENCES commits(id),
  place INTEGER NOT NULL,        -- 0 is the first parent
  sha TEXT NOT NULL,             -- may be a commit that the ledger lacks
  PRIMARY KEY (revision, place)
) STRICT, WITHOUT ROWID;
CREATE TABLE tasks (
  id INTEGER PRIMARY KEY,
  recipe TEXT NOT NULL UNIQUE,   -- SHA-256 of the definition
  suite TEXT NOT NULL,
  name TEXT NOT NULL,
  definition TEXT NOT NULL       -- JSON
) STRICT;
CREATE INDEX tasks_by_name ON tasks (name, suite);
CREATE TABLE metrics (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE definitions (       -- how a metric is judged in a task: the latest row counts
  id INTEGER PRIMARY KEY,
  metric INTEGER NOT NULL REFERENCES metrics(id),
  task INTEGER NOT NULL REFERENCES tasks(id),
  unit TEXT NOT NULL,
  direction TEXT NOT NULL,
  kind TEXT NOT NULL,
  floor REAL NOT NULL,
  floor_is_relative INTEGER NOT NULL,
  summary TEXT NOT NULL,         -- how a series becomes one number
  recorded TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) STRICT;
CREATE INDEX definitions_by_task ON definitions (task, metric, id);
CREATE TABLE environments (
  id INTEGER PRIMARY KEY,
  fingerprint TEXT NOT NULL UNIQUE,
  details TEXT NOT NULL          -- JSON
) STRICT;
CREATE TABLE trials (
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  revision INTEGER NOT NULL REFERENCES commits(id),
  task INTEGER NOT NULL REFERENCES tasks(id),
  environment INTEGER NOT NULL REFERENCES environments(id),
  seed INTEGER NOT NULL,
  why TEXT NOT NULL,
  started REAL NOT NULL,         -- seconds since the epoch, UTC
  host TEXT NOT NULL,
  device TEXT NOT NULL
) STRICT;
CREATE INDEX trials_by_revision ON trials (revision, task);
CREATE INDEX trials_by_task ON trials (task);
CREATE TABLE outcomes (          -- a trial without one is running, or its owner died
  trial INTEGER PRIMARY KEY REFERENCES trials(id),
  kind TEXT NOT NULL,
  ended REAL NOT NULL,
  message TEXT NOT NULL,
  returncode INTEGER,            -- negative: the signal
  log TEXT NOT NULL,             -- relative to the ledger's folder
  marks TEXT NOT NULL,           -- words with a space between
  epochs INTEGER NOT NULL        -- how many were reported
) STRICT;
CREATE TABLE points (            -- one value of one epoch; NaN is NULL, infinity itself
  trial INTEGER NOT NULL,        -- trials(id); not REFERENCES, whose check at every value
  epoch INTEGER NOT NULL CHECK (epoch >= 0),  -- was measured to make recording 2.8 times slower
  metric INTEGER NOT NULL,       -- metrics(id)
  value REAL,
  PRIMARY KEY (trial, epoch, metric)
) STRICT, WITHOUT ROWID;
CREATE TABLE fingerprints (      -- exact hash of the model's parameters at an epoch's end
  trial INTEGER NOT NULL REFERENCES trials(id),
  epoch INTEGER NOT NULL CHECK (epoch >= 0),
  value TEXT NOT NULL,
  PRIMARY KEY (trial, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE steps (             -- values of successive steps of one epoch, packed
  id INTEGER PRIMARY KEY,
  trial INTEGER NOT NULL REFERENCES trials(id),
  epoch INTEGER NOT NULL CHECK (epoch >= 0),
  metric INTEGER NOT NULL REFERENCES metrics(id),
  first INTEGER NOT NULL CHECK (first >= 0),  -- number of the first value's step in the epoch
  width INTEGER NOT NULL CHECK (width IN (4, 8)),  -- bytes a value: IEEE 754 single or double
  series BLOB NOT NULL CHECK (length(series) % width = 0),  -- little-endian, no header
  UNIQUE (trial, epoch, metric, first)
) STRICT;
CREATE TABLE summaries (         -- keyed for drift: one task's metric is one range
  metric INTEGER NOT NULL REFERENCES metrics(id),
  task INTEGER NOT NULL REFERENCES tasks(id),
  trial INTEGER NOT NULL REFERENCES trials(id),
  value REAL,                    -- NaN is NULL
  definition INTEGER REFERENCES definitions(id),  -- whose rule made it; NULL: the last value
  PRIMARY KEY (metric, task, trial)
) STRICT, WITHOUT ROWID;
CREATE INDEX summaries_by_trial ON summaries (trial);
CREATE TABLE trial_sets (        -- metrics of a task are judged from the same trials: kept once
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,   -- SHA-256 of ulids
  ulids TEXT NOT NULL            -- JSON, in the order in which they were judged
) STRICT;
CREATE TABLE verdicts (          -- the latest row of (revision, suite, task, metric) counts
  id INTEGER PRIMARY KEY,
  revision INTEGER NOT NULL REFERENCES commits(id),
  suite TEXT NOT NULL,
  task TEXT NOT NULL,
  metric TEXT NOT NULL,          -- '' judges the task as a whole
  recipe TEXT NOT NULL,
  environment TEXT NOT NULL,     -- fingerprint: verdicts of two machines say nothing of each other
  kind TEXT NOT NULL,
  level REAL,
  value REAL,
  effect REAL,
  low REAL,
  high REAL,
  p_value REAL,
  trials INTEGER NOT NULL REFERENCES trial_sets(id),    -- judged
  baseline INTEGER NOT NULL REFERENCES trial_sets(id),  -- judged against
  rule TEXT NOT NULL,
  note TEXT NOT NULL,
  recorded TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) STRICT;
CREATE INDEX verdicts_by_revision ON verdicts (revision, suite, task, metric, id);
CREATE TABLE bisects (
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  suite TEXT NOT NULL,
  task TEXT NOT NULL,
  metric TEXT NOT NULL,          -- '' when a crash was bisected
  good TEXT NOT NULL,
  bad TEXT NOT NULL,
  culprits TEXT NOT NULL,        -- JSON: the credible set, the leader first
  probability REAL,
  status TEXT NOT NULL,
  ended REAL NOT NULL,
  report TEXT NOT NULL           -- JSON
) STRICT;
CREATE TABLE baselines (       -- a person's word on a level, an incident or a trial, and why
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  act TEXT NOT NULL,
  revision INTEGER NOT NULL REFERENCES commits(id),
  suite TEXT NOT NULL,
  task TEXT NOT NULL,            -- '' is every task of the suite
  metric TEXT NOT NULL,          -- '' is every metric
  who TEXT NOT NULL,
  why TEXT NOT NULL,
  at REAL NOT NULL               -- seconds since the epoch, UTC
) STRICT;
CREATE TABLE footprints (        -- what trials named of their commit's tree, each set once
  id INTEGER PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,   -- SHA-256 of paths and inputs
  paths BLOB NOT NULL,           -- zlib of the paths with NUL between, sorted; '' is the tree
  inputs TEXT NOT NULL           -- JSON: patterns of what the build depends on
) STRICT;
CREATE TABLE closures (
  trial INTEGER PRIMARY KEY REFERENCES trials(id),
  footprint INTEGER REFERENCES footprints(id),  -- NULL: unknown
  content TEXT NOT NULL,         -- SHA-256 over mode and git hash of all that lay there
  unknown TEXT NOT NULL          -- why it is not known, '' where it is
) STRICT;
CREATE TABLE derived (           -- trials that did not run: another one proves their result
  trial INTEGER PRIMARY KEY REFERENCES trials(id),
  evidence INTEGER NOT NULL REFERENCES trials(id)
) STRICT;
CREATE TABLE trial_facts (       -- what is known of a trial beyond its columns
  id INTEGER PRIMARY KEY,
  trial INTEGER NOT NULL REFERENCES trials(id),
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  UNIQUE (trial, name)
) STRICT;
CREATE TABLE said (              -- what was said about incidents, and to whom
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  incident TEXT NOT NULL,        -- 8 hexadecimal digits
  state TEXT NOT NULL,
  event TEXT NOT NULL,
  kind TEXT NOT NULL,
  suite TEXT NOT NULL,
  task TEXT NOT NULL,
  metric TEXT NOT NULL,
  oldest TEXT NOT NULL,          -- sha of the oldest commit that may be the first bad one
  revision TEXT NOT NULL,        -- sha of HEAD then
  job TEXT NOT NULL,
  address TEXT NOT NULL,         -- to whom an alert went; '' is the record of a job
  details TEXT NOT NULL,         -- JSON
  at REAL NOT NULL               -- seconds since the epoch, UTC
) STRICT;
CREATE TABLE findings (          -- what diagnoses said; their runs are not in the ledger
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  verb TEXT NOT NULL,
  suite TEXT NOT NULL,
  task TEXT NOT NULL,
  revision INTEGER NOT NULL REFERENCES commits(id),
  before INTEGER REFERENCES commits(id),  -- NULL: it was compared with no other commit
  command TEXT NOT NULL,         -- after `celedger`
  started REAL NOT NULL,         -- seconds since the epoch, UTC
  headline TEXT NOT NULL,
  document TEXT NOT NULL         -- JSON
) STRICT;
CREATE INDEX findings_by_revision ON findings (revision, id);
CREATE TABLE checksums (         -- in the order in which facts were completed
  id INTEGER PRIMARY KEY,
  fact TEXT NOT NULL,            -- the table of its row
  row INTEGER NOT NULL,
  value INTEGER NOT NULL,        -- CRC-32; the latest of a fact counts
  schema INTEGER NOT NULL DEFAULT 5  -- whose columns it covers
) STRICT;
CREATE TABLE jobs (              -- the queue: the one table whose rows change
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  sha TEXT NOT NULL,
  suite TEXT NOT NULL,
  created REAL NOT NULL,
  key TEXT NOT NULL,
  state TEXT NOT NULL,
  owner TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  message TEXT NOT NULL,
  ended REAL
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, id);
"""

_VIEWS = """
CREATE VIEW metric_definitions AS
SELECT t.suite, t.name AS task, m.name AS metric, d.unit, d.direction, d.kind,
       d.floor, d.floor_is_relative, d.summary, d.recorded, d.metric AS metric_id, d.task AS task_id
FROM definitions d JOIN metrics m ON m.id = d.metric JOIN tasks t ON t.id = d.task
WHERE d.id IN (SELECT max(id) FROM definitions GROUP BY task, metric);
CREATE VIEW epoch_metrics AS
SELECT t.suite, t.name AS task, c.sha, c.subject, r.seed, p.epoch, m.name AS metric, p.value,
       d.unit, r.ulid AS trial, o.kind AS outcome,
       strftime('%Y-%m-%dT%H:%M:%SZ', c.commit_time, 'unixepoch') AS committed,
       strftime('%Y-%m-%dT%H:%M:%SZ', r.started, 'unixepoch') AS started
FROM points p
JOIN trials r ON r.id = p.trial
JOIN tasks t ON t.id = r.task
JOIN commits c ON c.id = r.revision
JOIN metrics m ON m.id = p.metric
LEFT JOIN outcomes o ON o.trial = r.id
LEFT JOIN metric_definitions d ON d.metric_id = p.metric AND d.task_id = r.task;
CREATE VIEW incidents AS         -- a metric of an incident, as it was said last
SELECT s.incident, s.kind,
       ifnull((SELECT value FROM json_each(m.value) WHERE key = 0), s.suite) AS suite,
       ifnull((SELECT value FROM json_each(m.value) WHERE key = 1), s.task) AS task,
       ifnull((SELECT value FROM json_each(m.value) WHERE key = 2), s.metric) AS metric,
       ifnull((SELECT value FROM json_each(m.value) WHERE key = 3), s.state) AS state,
       s.oldest, s.revision,
       strftime('%Y-%m-%dT%H:%M:%SZ', s.at, 'unixepoch') AS said, s.id AS said_id
FROM said s
LEFT JOIN json_each(s.details, '$.metrics') m  -- untrusted, SQLite runs no other function of JSON
WHERE s.id IN (SELECT max(id) FROM said WHERE address = '' GROUP BY incident);
CREATE VIEW drift AS
SELECT t.suite, t.name AS task, m.name AS metric, c.sha, c.subject, c.author,
       strftime('%Y-%m-%dT%H:%M:%SZ', c.commit_time, 'unixepoch') AS committed,
       count(*) AS trials, avg(s.value) AS mean, min(s.value) AS lowest, max(s.value) AS highest,
       count(*) - count(s.value) AS nan, e.fingerprint AS environment,
       i.state AS verdict
FROM metrics m
CROSS JOIN tasks t
CROSS JOIN summaries s ON s.metric = m.id AND s.task = t.id
JOIN trials r ON r.id = s.trial
JOIN outcomes o ON o.trial = s.trial AND o.kind = 'ok'
JOIN commits c ON c.id = r.revision
JOIN environments e ON e.id = r.environment
LEFT JOIN (SELECT suite, task, metric, state, max(said_id) FROM incidents
  GROUP BY suite, task, metric) i ON (i.suite, i.task, i.metric) = (t.suite, t.name, m.name)
GROUP BY m.name, t.suite, t.name, r.revision, e.fingerprint;
CREATE VIEW latest AS            -- of commits of one second: a child, then by author_time and sha
WITH ran AS (
  SELECT DISTINCT t.suite, t.name AS task, c.id, c.sha, c.commit_time, c.author_time
  FROM trials r
  JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok'
  JOIN tasks t ON t.id = r.task
  JOIN commits c ON c.id = r.revision
), with_child AS (
  SELECT n.suite, n.task, p.sha FROM ran n
  JOIN parents p ON p.revision = n.id
  JOIN commits c ON c.sha = p.sha AND c.commit_time = n.commit_time
), newest AS (
  SELECT suite, task, id, row_number() OVER (
    PARTITION BY suite, task ORDER BY commit_time DESC,
    (suite, task, sha) IN (SELECT * FROM with_child), author_time DESC, sha DESC
  ) AS place FROM ran
)
SELECT n.suite, n.task, m.name AS metric, avg(s.value) AS mean, count(*) AS trials,
       i.state AS verdict,
       c.sha, c.subject, strftime('%Y-%m-%dT%H:%M:%SZ', c.commit_time, 'unixepoch') AS committed
FROM newest n
CROSS JOIN trials r ON r.revision = n.id
CROSS JOIN tasks t ON t.id = r.task AND t.suite = n.suite AND t.name = n.task
CROSS JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok'
CROSS JOIN metrics m
CROSS JOIN summaries s ON s.metric = m.id AND s.task = r.task AND s.trial = r.id
JOIN commits c ON c.id = n.id
LEFT JOIN (SELECT suite, task, metric, state, max(said_id) FROM incidents
  GROUP BY suite, task, metric) i ON (i.suite, i.task, i.metric) = (n.suite, n.task, m.name)
WHERE n.place = 1
GROUP BY n.suite, n.task, m.name;
"""

# Every table, `sqlite-utils`' own among them.
TABLES = (*sorted(re.findall(r"CREATE TABLE (\w+)", _TABLES)), "_sqlite_migrations")


def version() -> int:
    """Return the version (PRAGMA user_version) of today's schema."""
    return max(map(_number, MIGRATIONS))


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a ledger to today's schema in one transaction. The caller holds the file lock. Raises
    ValueError where the ledger's version is not that of its latest migration."""
    from sqlite_utils import Database, Migrations  # 0.3 s of a process

    migrations = Migrations("celedger")
    for name, migration in MIGRATIONS.items():
        migrations(name=name)(migration)
    db = Database(connection, execute_plugins=False)
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    with db.atomic():
        connection.execute(f"PRAGMA user_version = {version()}")  # first: it waits for the lock
        if before != max((_number(each.name) for each in migrations.applied(db)), default=0):
            raise ValueError("the version in its header")
        migrations.apply(db)


def _number(migration: str) -> int:
    return int(migration.partition("_")[0])


APPEND_ONLY = re.compile(
    r"CREATE TRIGGER (\w+)_never_\w+ BEFORE (UPDATE|DELETE) ON \1 BEGIN "
    r"SELECT RAISE\(ABORT, '[\w :-]+'\); END"
)
"""The triggers that the migrations make: they refuse, and do nothing else."""


# --- the migrations, each frozen as it shipped. Schemas 1 to 4 were never released: one step brings
# a ledger of theirs to schema 5


def _append_only(db: Database, table: str) -> None:
    for verb, done in (("UPDATE", "changed"), ("DELETE", "deleted")):
        db.conn.execute(
            f"CREATE TRIGGER {table}_never_{done} BEFORE {verb} ON {table} BEGIN "
            f"SELECT RAISE(ABORT, 'the ledger is append-only: a row of {table} is never "
            f"{done}'); END"
        )


def _fifth(db: Database) -> None:
    """Make the tables and views that are not there. Those of an older schema keep their rows, and
    lose the columns that nothing reads; facts without a checksum get one, of what they are now."""
    before = _names(db)
    sound = _sound_footprints(db) if "checksums" in before else []
    verdicts = [] if "trial_sets" in before else _taken(db, "verdicts", before)
    acts = _taken(db, "baselines", before)  # it had a list of the acts: the code knows them
    for view in ("drift", "latest"):
        db.conn.execute(f"DROP VIEW IF EXISTS {view}")
    columns = "SELECT name FROM pragma_table_info(?)"
    for table, column in _DROPPED:
        if (column,) in db.conn.execute(columns, (table,)).fetchall():
            db.conn.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    if "checksums" in before:
        db.conn.execute("ALTER TABLE checksums ADD COLUMN schema INTEGER NOT NULL DEFAULT 5")
    there = _names(db)
    # Not `executescript`, which would commit the migration's transaction.
    for statement in (_TABLES + _VIEWS).split(";\n"):
        _, kind, name, *_ = statement.split() or ("", "", "")
        if name and name not in there:
            db.conn.execute(statement)
            if kind == "TABLE" and name != "jobs":
                _append_only(db, name)
    for row in verdicts:  # they held their trials
        sets = [_trial_set(db, text) for text in row[14:16]]  # trials, baseline
        _insert(db, "verdicts", (*row[:14], *sets, *row[16:]))
    for row in acts:
        _insert(db, "baselines", row)
    for table in checksums.COVERED[5] if "checksums" not in before else ():
        ended = "WHERE id IN (SELECT trial FROM outcomes)" if table == "trials" else ""
        for (key,) in db.conn.execute(f"SELECT rowid FROM {table} {ended} ORDER BY 1").fetchall():
            _seal(db, table, key)
    for key in sound:  # what is damaged keeps a checksum that does not fit
        _seal(db, "footprints", key)
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


# Columns that older schemas had.
_DROPPED = (
    ("footprints", "code"), ("footprints", "modules"), ("jobs", "payload"), ("jobs", "lease_until"),
)  # fmt: skip


def _names(db: Database) -> set[str]:
    return {name for (name,) in db.conn.execute("SELECT name FROM sqlite_schema").fetchall()}


def _taken(db: Database, table: str, names: set[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a table, which is dropped; none where it is not there."""
    if table not in names:
        return []
    rows: list[tuple[Any, ...]] = db.conn.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
    db.conn.execute(f"DROP TABLE {table}")
    return rows


def _insert(db: Database, table: str, row: tuple[Any, ...]) -> None:
    db.conn.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _trial_set(db: Database, ulids: str) -> int:
    text = json.dumps(json.loads(ulids), separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    db.conn.execute(
        "INSERT INTO trial_sets (digest, ulids) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (digest, text),
    )
    (key,) = db.conn.execute("SELECT id FROM trial_sets WHERE digest = ?", (digest,)).fetchone()
    return int(key)


def _sound_footprints(db: Database) -> list[int]:
    """Return the footprints that are as they were written: their checksums covered all columns."""
    latest = (
        "SELECT row, value FROM checksums WHERE id IN "
        "(SELECT max(id) FROM checksums WHERE fact = 'footprints' GROUP BY row)"
    )
    own = "SELECT * FROM footprints WHERE rowid = ?"
    return [
        row for row, value in db.conn.execute(latest).fetchall()
        if zlib.crc32(marshal.dumps([db.conn.execute(own, (row,)).fetchall()], 2)) == value
    ]  # fmt: skip


def _seal(db: Database, table: str, row: int) -> None:
    db.conn.execute(
        "INSERT INTO checksums (fact, row, value, schema) VALUES (?, ?, ?, 5)",
        (table, row, checksums.checksum(db.conn, table, row, 5)),
    )


MIGRATIONS: Mapping[str, Callable[[Database], None]] = {"5_trial_facts": _fifth}
