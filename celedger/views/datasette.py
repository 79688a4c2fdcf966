"""`celedger export --format datasette-metadata`: titles, descriptions and queries with which
Datasette shows a ledger to a person. Knows the published schema (docs/ledger.md) and no ledger."""

from __future__ import annotations

import json

from celedger.ledger.schema import TABLES

_UNIT = "in the metric's own unit; NaN is empty"
_VIEWS: dict[str, tuple[str, dict[str, str]]] = {
    "incidents": (
        "A metric of an incident, as it was said last.",
        {"oldest": "the oldest commit that may be the first bad one", "revision": "HEAD then"},
    ),
    "latest": (
        "The newest measured commit of each task: means, and what was concluded.",
        {"mean": _UNIT, "trials": "trials behind the mean", "sha": "the commit"},
    ),
    "drift": (
        "Each metric over the commits: mean, lowest and highest trial.",
        {"mean": _UNIT, "lowest": _UNIT, "highest": _UNIT, "nan": "trials whose value is NaN",
         "environment": "fingerprint: values of two environments are not comparable"},
    ),
    "epoch_metrics": (
        "Every value of every epoch.",
        {"value": _UNIT, "trial": "the ULID of the trial", "outcome": "empty while it runs"},
    ),
    "metric_definitions": (
        "How each metric is judged today.",
        {"direction": "which way is better; info is never judged",
         "floor": "the smallest change that matters; a share of the level if floor_is_relative"},
    ),
}  # fmt: skip
_QUERIES = {
    "what_regressed": (
        "What is worse, the newest first",
        "The incidents that are open or partly recovered.",
        """\
SELECT date(s.at, 'unixepoch') AS said, s.incident, s.kind, s.state, s.suite, s.task, s.metric,
  substr(coalesce(s.details ->> 'likeliest', s.oldest), 1, 10) AS sha, c.subject, c.author,
  (SELECT z.value ->> 3 FROM json_each(s.details, '$.sizes') z
   WHERE (z.value ->> 0, z.value ->> 1, z.value ->> 2) = (s.suite, s.task, s.metric)) AS worse_by,
  s.details ->> 'first' AS first, s.details ->> 'last' AS last
FROM said s LEFT JOIN commits c ON c.sha = coalesce(s.details ->> 'likeliest', s.oldest)
WHERE s.id IN (SELECT max(id) FROM said WHERE address = '' GROUP BY incident)
  AND s.state IN ('open', 'partly')
ORDER BY s.id DESC""",
    ),
    "first_bad_commits": (
        "First bad commits",
        "What bisects named, with the probability.",
        """\
SELECT date(b.ended, 'unixepoch') AS searched, b.suite, b.task, b.metric,
  b.culprits ->> '$[0]' AS sha, c.subject, c.author, round(100 * b.probability, 1) AS percent
FROM bisects b LEFT JOIN commits c ON c.sha = b.culprits ->> '$[0]'
WHERE b.status = 'found' ORDER BY b.id DESC""",
    ),
    "findings_of_diagnoses": (
        "Findings",
        "What explain, profile, watch and preflight said, the newest first.",
        """\
SELECT datetime(f.started, 'unixepoch') AS started, f.verb, f.suite, f.task,
  substr(c.sha, 1, 10) AS sha, substr(b.sha, 1, 10) AS compared_with, c.subject, f.headline,
  'celedger ' || f.command AS command
FROM findings f JOIN commits c ON c.id = f.revision LEFT JOIN commits b ON b.id = f.before
ORDER BY f.id DESC""",
    ),
    "noisiest_metrics": (
        "Noisiest metrics",
        "The range of trials of one commit, in percent of their mean, averaged over the commits.",
        """\
SELECT suite, task, metric, count(*) AS commits,
  round(100 * avg((highest - lowest) / abs(mean)), 3) AS percent
FROM drift WHERE trials > 1 AND mean != 0
GROUP BY suite, task, metric ORDER BY percent DESC""",
    ),
    "slowest_tasks": (
        "Slowest tasks",
        "The mean duration of a trial, and of all of them together.",
        """\
SELECT t.suite, t.name AS task, count(*) AS trials,
  round(avg(o.ended - r.started), 2) AS seconds_each,
  round(sum(o.ended - r.started) / 3600, 2) AS hours
FROM trials r JOIN outcomes o ON o.trial = r.id JOIN tasks t ON t.id = r.task
WHERE r.id NOT IN (SELECT trial FROM derived)
GROUP BY t.suite, t.name ORDER BY hours DESC""",
    ),
}


def metadata(database: str) -> str:
    """Return the metadata.json of a ledger whose file is called `database`, without its suffix."""
    tables: dict[str, object] = {name: {"hidden": True} for name in TABLES}
    for name, (description, columns) in _VIEWS.items():
        tables[name] = {"description": description, "columns": columns}
    queries = {
        name: {"title": title, "description": description, "sql": sql}
        for name, (title, description, sql) in _QUERIES.items()
    }
    document = {
        "title": "celedger",
        "description": "Trainings measured commit by commit.",
        "databases": {database: {"tables": tables, "queries": queries}},
    }
    return json.dumps(document, indent=2) + "\n"
