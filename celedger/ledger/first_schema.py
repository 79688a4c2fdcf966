"""The tables and views of the first schema, frozen as they shipped last.

Lives here: literal SQL, and nothing else. `schema.py` says what later schemas changed.
"""

from __future__ import annotations

TABLES = """
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
CREATE TABLE baselines (         -- which level a person declared right, and why
  id INTEGER PRIMARY KEY,
  ulid TEXT NOT NULL UNIQUE,
  act TEXT NOT NULL CHECK (act IN ('pin', 'accept')),
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
CREATE TABLE jobs (              -- the queue: the one table whose rows change
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  sha TEXT NOT NULL,
  suite TEXT NOT NULL,
  created REAL NOT NULL,
  key TEXT NOT NULL,
  payload TEXT NOT NULL,         -- JSON
  state TEXT NOT NULL,
  owner TEXT NOT NULL,
  lease_until REAL NOT NULL,
  attempts INTEGER NOT NULL,
  message TEXT NOT NULL,
  ended REAL
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, id);
"""

VIEWS = """
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

CREATE VIEW drift AS
SELECT t.suite, t.name AS task, m.name AS metric, c.sha, c.subject, c.author,
       strftime('%Y-%m-%dT%H:%M:%SZ', c.commit_time, 'unixepoch') AS committed,
       count(*) AS trials, avg(s.value) AS mean, min(s.value) AS lowest, max(s.value) AS highest,
       count(*) - count(s.value) AS nan, e.fingerprint AS environment,
       (SELECT v.kind FROM verdicts v
        WHERE v.revision = r.revision AND v.suite = t.suite AND v.task = t.name
          AND v.metric = m.name ORDER BY v.id DESC LIMIT 1) AS verdict
FROM metrics m
CROSS JOIN tasks t
CROSS JOIN summaries s ON s.metric = m.id AND s.task = t.id
JOIN trials r ON r.id = s.trial
JOIN outcomes o ON o.trial = s.trial AND o.kind = 'ok'
JOIN commits c ON c.id = r.revision
JOIN environments e ON e.id = r.environment
GROUP BY m.name, t.suite, t.name, r.revision, e.fingerprint;

CREATE VIEW latest AS
SELECT n.suite, n.task, m.name AS metric, avg(s.value) AS mean, count(*) AS trials,
       (SELECT v.kind FROM verdicts v
        WHERE v.revision = n.revision AND v.suite = n.suite AND v.task = n.task
          AND v.metric = m.name ORDER BY v.id DESC LIMIT 1) AS verdict,
       c.sha, c.subject, strftime('%Y-%m-%dT%H:%M:%SZ', c.commit_time, 'unixepoch') AS committed
FROM (
  SELECT t.suite, t.name AS task, r.revision, max(c.commit_time)  -- r.revision is of that row
  FROM trials r
  JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok'
  JOIN tasks t ON t.id = r.task
  JOIN commits c ON c.id = r.revision
  GROUP BY t.suite, t.name
) n
CROSS JOIN trials r ON r.revision = n.revision
CROSS JOIN tasks t ON t.id = r.task AND t.suite = n.suite AND t.name = n.task
CROSS JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok'
CROSS JOIN metrics m
CROSS JOIN summaries s ON s.metric = m.id AND s.task = r.task AND s.trial = r.id
JOIN commits c ON c.id = n.revision
GROUP BY n.suite, n.task, m.name;
"""
