"""The schema of the ledger: its version, and how an older ledger is brought to it. docs/ledger.md
is its published contract.

Lives here: the migrations (tables, triggers and views as literal SQL), and the transaction that
applies them. It must not know where the file is, who holds it, or what is read from it.

A migration that has shipped is never edited or renamed. A new one stands at the end of
`MIGRATIONS` and adds a line to docs/ledger.md. It calls nothing of today's code: what
`checksums.py`, say, does tomorrow must not change what a ledger of an older schema becomes. One
file of each shipped schema lies in tests/ledgers/.
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

from celedger.ledger import first_schema

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x63656C65  # "cele": marks a file as a ledger

# Every table, `sqlite-utils`' own among them.
TABLES = (
    "baselines", "bisects", "checksums", "closures", "commits", "definitions", "derived",
    "environments", "findings", "fingerprints", "footprints", "jobs", "metrics", "outcomes",
    "parents", "points", "said", "steps", "summaries", "tasks", "trial_facts", "trial_sets",
    "trials", "verdicts", "_sqlite_migrations",
)  # fmt: skip


def version() -> int:
    """Return the version (PRAGMA user_version) of today's schema."""
    return len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a ledger to today's schema in one transaction. The caller holds the file lock. Raises
    ValueError where the ledger's version is not the number of its migrations."""
    from sqlite_utils import Database, Migrations  # 0.3 s of a process

    migrations = Migrations("celedger")
    for name, migration in MIGRATIONS.items():
        migrations(name=name)(migration)
    db = Database(connection, execute_plugins=False)
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    with db.atomic():
        connection.execute(f"PRAGMA user_version = {version()}")  # first: it waits for the lock
        if len(migrations.pending(db)) != version() - before:
            raise ValueError("the version in its header")
        migrations.apply(db)


APPEND_ONLY = re.compile(
    r"CREATE TRIGGER (\w+)_never_\w+ BEFORE (UPDATE|DELETE) ON \1 BEGIN "
    r"SELECT RAISE\(ABORT, '[\w :-]+'\); END"
)
"""The triggers that the migrations make: they refuse, and do nothing else."""


# --- the migrations, each frozen as it shipped


def _run(db: Database, script: str) -> None:
    """Run each statement of `script`: `executescript` would commit the migration's transaction."""
    for statement in script.split(";\n"):
        db.conn.execute(statement)


def _append_only(db: Database, *tables: str) -> None:
    for table in tables:
        for verb, done in (("UPDATE", "changed"), ("DELETE", "deleted")):
            db.conn.execute(
                f"CREATE TRIGGER {table}_never_{done} BEFORE {verb} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, 'the ledger is append-only: a row of {table} is never "
                f"{done}'); END"
            )


def _first(db: Database) -> None:
    _run(db, first_schema.TABLES)
    _append_only(
        db, "commits", "parents", "tasks", "metrics", "definitions", "environments", "trials",
        "outcomes", "points", "fingerprints", "steps", "summaries", "trial_sets", "verdicts",
        "bisects", "baselines", "footprints", "closures", "derived",
    )  # fmt: skip
    _run(db, first_schema.VIEWS)
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _sources(db: Database) -> None:
    """Add a column that an older celedger filled, and none reads any more. `1_first` was edited
    after it had shipped: what a ledger of an earlier form lacks is made first."""
    _complete_the_first(db)
    db.conn.execute("ALTER TABLE footprints ADD COLUMN code TEXT NOT NULL DEFAULT ''")


def _complete_the_first(db: Database) -> None:
    """Make the tables that an earlier form of `1_first` lacks; its verdicts held their trials."""
    tables = {name for (name,) in db.conn.execute("SELECT name FROM sqlite_schema").fetchall()}
    verdicts: list[tuple[Any, ...]] = []
    if "trial_sets" not in tables:
        verdicts = db.conn.execute("SELECT * FROM verdicts ORDER BY id").fetchall()
        db.conn.execute("DROP TABLE verdicts")
        tables -= {"verdicts", "verdicts_by_revision"}
    for statement in first_schema.TABLES.split(";\n"):
        words = statement.split()
        if words and words[2] not in tables:
            db.conn.execute(statement)
            if words[1] == "TABLE":
                _append_only(db, words[2])
    for row in verdicts:
        sets = [_trial_set(db, text) for text in row[14:16]]  # trials, baseline
        marks = ", ".join("?" * len(row))
        db.conn.execute(f"INSERT INTO verdicts VALUES ({marks})", (*row[:14], *sets, *row[16:]))


def _trial_set(db: Database, ulids: str) -> int:
    text = json.dumps(json.loads(ulids), separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    db.conn.execute(
        "INSERT INTO trial_sets (digest, ulids) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (digest, text),
    )
    (key,) = db.conn.execute("SELECT id FROM trial_sets WHERE digest = ?", (digest,)).fetchone()
    return int(key)


def _add_checksums(db: Database) -> None:
    """Give every fact its checksum, of what it is now. A trial without an outcome gets it then."""
    _run(db, _CHECKSUMS)
    _append_only(db, "checksums")
    for table in _FACTS_OF_3:
        ended = "WHERE id IN (SELECT trial FROM outcomes)" if table == "trials" else ""
        for (row,) in db.conn.execute(f"SELECT rowid FROM {table} {ended} ORDER BY 1").fetchall():
            _seal(db, table, row)


def _crc(db: Database, table: str, row: int) -> int:
    """Return the CRC-32 of a fact as schema 3 took it."""
    queries = (f"SELECT * FROM {table} WHERE rowid = ?", *_PARTS_OF_3.get(table, ()))
    rows = [db.conn.execute(sql, (row,)).fetchall() for sql in queries]
    return zlib.crc32(marshal.dumps(rows, 2))


def _seal(db: Database, table: str, row: int) -> None:
    db.conn.execute(
        "INSERT INTO checksums (fact, row, value) VALUES (?, ?, ?)",
        (table, row, _crc(db, table, row)),
    )


def _findings(db: Database) -> None:
    """Add what diagnoses said."""
    _run(db, _FINDINGS)
    _append_only(db, "findings")


def _trial_facts(db: Database) -> None:
    """Add facts of a trial beyond its columns, and what was said about incidents. Drop the columns
    that nothing reads, and the list of acts of `baselines`: the code knows them. A checksum names
    the schema whose columns it covers. What views call a verdict is what was said."""
    sound = [
        row for row, value in db.conn.execute(_LATEST_OF_FOOTPRINTS).fetchall()
        if _crc(db, "footprints", row) == value
    ]  # fmt: skip
    _run(db, _TRIAL_FACTS)
    _append_only(db, "trial_facts", "said", "baselines")
    columns = db.conn.execute("SELECT name FROM pragma_table_info('footprints')").fetchall()
    for (name,) in columns:
        if name in ("code", "modules"):  # the second form of `1_first` had the latter
            db.conn.execute(f"ALTER TABLE footprints DROP COLUMN {name}")
    for row in sound:  # what is damaged keeps a checksum that does not fit
        _seal(db, "footprints", row)


# The facts of schema 3, in the order in which they got checksums, and the rows that the checksum of
# one covered beside its own, all of whose columns it covered.
_FACTS_OF_3 = (
    "commits", "metrics", "tasks", "definitions", "environments", "footprints", "trial_sets",
    "trials", "closures", "verdicts", "bisects", "baselines",
)  # fmt: skip
_PARTS_OF_3 = {
    "commits": ("SELECT place, sha FROM parents WHERE revision = ? ORDER BY place",),
    "trials": (
        "SELECT kind, ended, message, returncode, log, marks, epochs FROM outcomes WHERE trial = ?",
        "SELECT evidence FROM derived WHERE trial = ?",
        "SELECT epoch, metric, value FROM points WHERE trial = ? ORDER BY epoch, metric",
        "SELECT epoch, value FROM fingerprints WHERE trial = ? ORDER BY epoch",
        """SELECT epoch, metric, first, width, series FROM steps WHERE trial = ?
        ORDER BY epoch, metric, first""",
        """SELECT s.metric, s.task, s.value, s.definition FROM trials r CROSS JOIN metrics m
        CROSS JOIN summaries s ON (s.metric, s.task, s.trial) = (m.id, r.task, r.id)
        WHERE r.id = ? ORDER BY m.id""",
    ),
}

_LATEST_OF_FOOTPRINTS = """
SELECT row, value FROM checksums
WHERE id IN (SELECT max(id) FROM checksums WHERE fact = 'footprints' GROUP BY row)
"""

_TRIAL_FACTS = """
DROP VIEW IF EXISTS drift;
DROP VIEW IF EXISTS latest;
ALTER TABLE checksums ADD COLUMN schema INTEGER NOT NULL DEFAULT 5;
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
CREATE TABLE baselines_5 (       -- a person's word on a level, an incident or a trial, and why
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
INSERT INTO baselines_5 SELECT id, ulid, act, revision, suite, task, metric, who, why, at
  FROM baselines;
DROP TABLE baselines;
ALTER TABLE baselines_5 RENAME TO baselines;
CREATE INDEX summaries_by_trial ON summaries (trial);
ALTER TABLE jobs DROP COLUMN payload;
ALTER TABLE jobs DROP COLUMN lease_until;
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

_CHECKSUMS = """
CREATE TABLE checksums (         -- in the order in which facts were completed
  id INTEGER PRIMARY KEY,
  fact TEXT NOT NULL,            -- the table of its row
  row INTEGER NOT NULL,
  value INTEGER NOT NULL         -- CRC-32; the latest of a fact counts
) STRICT;
"""

_FINDINGS = """
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
"""


MIGRATIONS: Mapping[str, Callable[[Database], None]] = {
    "1_first": _first,
    "2_sources": _sources,
    "3_checksums": _add_checksums,
    "4_findings": _findings,
    "5_trial_facts": _trial_facts,
}
