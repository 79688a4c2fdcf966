"""Facts: a row of the ledger with the rows that belong to it, as a checksum and as a document.

Lives here: which rows make a fact, the checksum that is written with it, and its portable form, in
which names stand for the keys of one ledger. Both read the same rows, so what is checked and what
another ledger receives cannot differ. It must not know what a fact means, nor where documents go.
"""

from __future__ import annotations

import base64
import json
import marshal
import sqlite3
import zlib
from typing import Any

# A fact's table, each after those that its rows refer to.
TABLES = (
    "commits", "metrics", "tasks", "definitions", "environments", "footprints", "trial_sets",
    "trials", "closures", "verdicts", "bisects", "baselines",
)  # fmt: skip
# The column that names a row in every ledger. Rows of other tables are equal if all columns are.
NAMES = {
    "commits": "sha", "metrics": "name", "tasks": "recipe", "environments": "fingerprint",
    "footprints": "digest", "trial_sets": "digest", "trials": "ulid", "closures": "trial",
    "bisects": "ulid", "baselines": "ulid",
}  # fmt: skip
# The rows that belong to a fact, without the key that refers to it.
PARTS = {
    "commits": {"parents": "SELECT place, sha FROM parents WHERE revision = ? ORDER BY place"},
    "trials": {
        "outcomes": "SELECT kind, ended, message, returncode, log, marks, epochs FROM outcomes "
        "WHERE trial = ?",
        "derived": "SELECT evidence FROM derived WHERE trial = ?",
        "points": "SELECT epoch, metric, value FROM points WHERE trial = ? ORDER BY epoch, metric",
        "fingerprints": "SELECT epoch, value FROM fingerprints WHERE trial = ? ORDER BY epoch",
        "steps": "SELECT epoch, metric, first, width, series FROM steps WHERE trial = ? "
        "ORDER BY epoch, metric, first",
        # The key of summaries starts with the metric.
        "summaries": "SELECT s.metric, s.task, s.value, s.definition FROM trials r "
        "CROSS JOIN metrics m CROSS JOIN summaries s "
        "ON (s.metric, s.task, s.trial) = (m.id, r.task, r.id) WHERE r.id = ? ORDER BY m.id",
    },
}

# Table -> its columns and a row, or several: {"points": [["epoch", "metric", "value"], [0, …]]}.
# The first table is the fact's own.
Document = dict[str, list[list[Any]]]


def checksum(connection: sqlite3.Connection, table: str, row: int) -> int:
    """Return the CRC-32 of a fact: of all its columns, as Python's marshal (version 2) writes
    them, its own row first."""
    rows = [
        connection.execute(sql, (row,)).fetchall()
        for sql in (f"SELECT * FROM {table} WHERE rowid = ?", *PARTS.get(table, {}).values())
    ]
    return zlib.crc32(marshal.dumps(rows, 2))


def seal(connection: sqlite3.Connection, table: str, row: int) -> None:
    """Write the checksum of a fact that was just added or completed; the latest one counts."""
    connection.execute(
        "INSERT INTO checksums (fact, row, value) VALUES (?, ?, ?)",
        (table, row, checksum(connection, table, row)),
    )


def dumps(document: Document) -> str:
    """Return a document as one line of JSON; bytes as {"base64": "…"}, infinity as Infinity."""
    return json.dumps(document, separators=(",", ":"), default=_encode)


def loads(line: str | bytes) -> Document:
    document: Document = json.loads(line, object_hook=_decode)
    return document


def _encode(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _decode(value: dict[str, Any]) -> object:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


class Carrier:
    """Carries facts out of a ledger and into it. Remembers names and keys: for one use, of one
    ledger whose rows nobody else deletes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._references: dict[str, dict[str, str]] = {}
        self._names: dict[tuple[str, int], Any] = {}
        self._keys: dict[tuple[str, Any], int] = {}

    def document(self, table: str, row: int) -> Document:
        """Return a fact as a document. Raises LookupError where there is no such row."""
        document: Document = {}
        queries = {table: f"SELECT * FROM {table} WHERE rowid = ?", **PARTS.get(table, {})}
        for part, sql in queries.items():
            cursor = self._connection.execute(sql, (row,))
            columns = [name for (name, *_) in cursor.description]
            rows = cursor.fetchall()
            if part == table and not rows:
                raise LookupError(f"{table} has no row {row}")
            if rows:
                document[part] = self._named(part, columns, rows)
        return document

    def trial(self, ulid: str) -> list[Document]:
        """Return a trial with all it refers to: facts to be added in this order. One that has not
        ended is without an outcome, and all that the task's definitions say is there to end it."""
        rows = self._connection.execute(
            "SELECT r.id, r.revision, r.task, r.environment, v.ulid, c.trial, c.footprint "
            "FROM trials r LEFT JOIN derived d ON d.trial = r.id LEFT JOIN trials v "
            "ON v.id = d.evidence LEFT JOIN closures c ON c.trial = r.id WHERE r.ulid = ?",
            (ulid,),
        ).fetchall()
        if not rows:
            raise LookupError(f"there is no trial {ulid}")
        key, revision, task, environment, evidence, closure, footprint = rows[0]
        definitions = self._connection.execute(
            "SELECT id, metric FROM definitions WHERE task = ? ORDER BY id", (task,)
        ).fetchall()
        facts = [("commits", revision), ("tasks", task), ("environments", environment)]
        for definition, metric in definitions:
            facts += [("metrics", metric), ("definitions", definition)]
        before = [] if evidence is None else self.trial(evidence)
        after = [("footprints", footprint), ("closures", closure)]
        facts += [("trials", key), *((table, row) for table, row in after if row is not None)]
        return before + [self.document(table, row) for table, row in facts]

    def add(self, document: Document) -> bool:
        """Add a fact and its checksum, within the caller's transaction, unless the ledger has it.
        Raises LookupError where it refers to what the ledger lacks."""
        table = next(iter(document))
        columns, values = document[table][0], self._keyed(table, document[table])[0]
        key = self._find(table, columns, values)
        parts = {p: self._keyed(p, document[p]) for p in PARTS.get(table, {}) if p in document}
        if key is None:
            key = self._connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({_marks(columns)})", values
            ).lastrowid
            assert key is not None
        elif not parts or self._is_complete(table, key):
            return False
        for part, rows in parts.items():
            names = [_key_of(part), *document[part][0]]
            self._connection.executemany(
                f"INSERT INTO {part} ({', '.join(names)}) VALUES ({_marks(names)}) "
                "ON CONFLICT DO NOTHING",
                [(key, *row) for row in rows],
            )
        if table != "trials" or "outcomes" in document:
            seal(self._connection, table, key)
        return True

    def _is_complete(self, table: str, key: int) -> bool:
        """A trial is with its outcome, a commit with its parents."""
        first = next(iter(PARTS[table].values()))
        return self._connection.execute(first, (key,)).fetchone() is not None

    def _named(self, table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> list[Any]:
        """Columns and rows as a document has them: without an id, and with names for keys."""
        references = self._referred(table)
        carried = [(i, references.get(c)) for i, c in enumerate(columns) if c != "id"]
        return [
            [columns[i] for i, _ in carried],
            *([self._name(to, row[i]) if to else row[i] for i, to in carried] for row in rows),
        ]

    def _keyed(self, table: str, rows: list[list[Any]]) -> list[list[Any]]:
        """The rows of a document as this ledger has them: with its keys for names."""
        references = self._referred(table)
        columns = rows[0]
        return [
            [
                self._key(references[column], value) if column in references else value
                for column, value in zip(columns, row, strict=True)
            ]
            for row in rows[1:]
        ]

    def _referred(self, table: str) -> dict[str, str]:
        """Column -> the table whose rows it refers to."""
        if table not in self._references:
            listed = self._connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
            self._references[table] = {row[3]: row[2] for row in listed}
            if table == "points":  # without REFERENCES, which would cost most of recording
                self._references[table] = {"metric": "metrics"}
        return self._references[table]

    def _name(self, table: str, key: int | None) -> Any:
        if key is None:
            return None
        if (table, key) not in self._names:
            column = NAMES.get(table)
            if column is None:
                named = self.document(table, key)[table][1]
            else:
                sql = f"SELECT {column} FROM {table} WHERE rowid = ?"
                rows = self._connection.execute(sql, (key,)).fetchall()
                if not rows:
                    raise LookupError(f"{table} has no row {key}")
                named = rows[0][0]
            self._names[table, key] = named
        return self._names[table, key]

    def _key(self, table: str, name: Any) -> int | None:
        if name is None:
            return None
        cache_key = (table, dumps({"": name}) if isinstance(name, list) else name)
        if cache_key not in self._keys:
            key = None
            if isinstance(name, list):  # a row without a name
                listed = self._connection.execute(f"SELECT * FROM {table} LIMIT 0").description
                columns = [column for (column, *_) in listed if column != "id"]
                key = self._find(table, columns, self._keyed(table, [columns, name])[0])
            else:
                key = self._find(table, [NAMES[table]], [name])
            if key is None and table == "metrics":  # one that nobody declared
                key = self._connection.execute(
                    "INSERT INTO metrics (name) VALUES (?)", (name,)
                ).lastrowid
                assert key is not None
                seal(self._connection, table, key)
            if key is None:
                raise LookupError(f"the ledger has no {name} among its {table}")
            self._keys[cache_key] = key
        return self._keys[cache_key]

    def _find(self, table: str, columns: list[str], values: list[Any]) -> int | None:
        """The key of the row of this name, or of an equal row where rows have no name."""
        if table in NAMES:
            at = columns.index(NAMES[table])
            columns, values = [columns[at]], [values[at]]
        same = " AND ".join(f"{column} IS ?" for column in columns)
        row = self._connection.execute(f"SELECT rowid FROM {table} WHERE {same}", values).fetchone()
        return None if row is None else int(row[0])


def _key_of(part: str) -> str:
    """The column by which a part refers to its fact."""
    return "revision" if part == "parents" else "trial"


def _marks(columns: list[str]) -> str:
    return ", ".join("?" * len(columns))
