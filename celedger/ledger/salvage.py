"""Read a damaged ledger: every row, page by page, without SQLite.

SQLite reads a table from its root on and knows the roots from the schema, so one damaged page can
hide a whole table. A row needs only its own page: each page says what it holds, and its rows show
whose they are (https://www.sqlite.org/fileformat.html).

Lives here: the pages of a file and of its -wal, the rows in them, and a ledger in memory that holds
these rows. It must not know which rows are as they were written: `checksums.Union` does.
"""

from __future__ import annotations

import functools
import marshal
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from celedger.ledger import schema

_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
_USUAL_SIZE = 4096  # bytes of a page
_WAL_HEADER, _FRAME_HEADER = 32, 24  # bytes
_INTEGER_SIZES = (0, 1, 2, 3, 4, 6, 8)  # bytes of a record's value, by its serial type
_COMMIT = re.compile("[0-9a-f]{40}")
_TYPES = {"INTEGER": (int,), "REAL": (float, int), "TEXT": (str,), "BLOB": (bytes,)}
_NO_FACTS = ("jobs", "_sqlite_migrations")

Row = tuple[Any, ...]


class Page(NamedTuple):
    """A page of a b-tree. A row of a table comes with its id in the place of NULL."""

    is_table: bool
    children: tuple[int, ...]
    rows: tuple[Row, ...]


def readable(path: Path) -> sqlite3.Connection:
    """Return a ledger in memory with every row that can be read. Its table `names` has what indexes
    hold of rows that may be lost, and `stand_ins` the rows made for those that others refer to. No
    connection of this process may have the file open."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    connection.execute("CREATE TABLE names (fact TEXT, row INTEGER, name, suite TEXT)")
    connection.execute("CREATE TABLE stand_ins (fact TEXT, row INTEGER)")
    for table, rows in _by_table(connection, _pages(path)):
        names = _columns(connection, table)
        for row in rows:
            with suppress(sqlite3.Error):
                connection.execute(_insert(table, tuple(names[: len(row)])), row)
    for table, (keys, stand_in) in _STAND_INS.items():
        lost = f"SELECT DISTINCT * FROM ({keys}) WHERE id NOT IN (SELECT id FROM {table})"
        for key in connection.execute(lost).fetchall():
            connection.execute(f"INSERT OR IGNORE INTO {table} {stand_in}", key)
            connection.execute("INSERT INTO stand_ins VALUES (?, ?)", (table, key[0]))
    return connection


# A trial without its commit, task, environment, metric or definition could not be carried: where
# their row is lost, another one stands in, with what indexes know of it. Table -> ids that others
# refer to, and the row for one of them.
_NAME = (
    "coalesce((SELECT name FROM names WHERE fact = '{}' AND row = ?1 AND suite IS NULL), "
    "'lost-' || ?1)"
)
_STAND_INS = {
    "commits": (
        "SELECT revision AS id FROM trials",
        f"SELECT ?1, {_NAME.format('commits')}, '', '', 0, 0, 'lost: its row could not be read'",
    ),
    "tasks": (
        "SELECT task AS id FROM trials",
        f"""SELECT ?1, {_NAME.format("tasks")}, ifnull(max(suite), 'lost'),
        ifnull(max(name), 'lost-' || ?1), '{{}}'
        FROM names WHERE fact = 'tasks' AND row = ?1 AND suite IS NOT NULL""",
    ),
    "environments": (
        "SELECT environment AS id FROM trials",
        f"SELECT ?1, {_NAME.format('environments')}, '{{}}'",
    ),
    "metrics": (
        """SELECT metric AS id FROM points UNION SELECT metric FROM summaries
        UNION SELECT metric FROM steps UNION SELECT metric FROM definitions""",
        f"SELECT ?1, {_NAME.format('metrics')}",
    ),
    "definitions": (
        "SELECT definition AS id, metric, task FROM summaries WHERE definition IS NOT NULL",
        "SELECT ?1, ?2, ?3, '', 'info', 'quality', 0, 0, 'lost', '1970-01-01T00:00:00Z'",
    ),
}


@functools.cache
def _insert(table: str, columns: tuple[str, ...]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]


# --- whose rows a page holds


def _by_table(
    connection: sqlite3.Connection, pages: dict[int, Page]
) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the rows of each page with the name of their table. The schema names the roots of
    tables; where a page above or the schema is lost, the rows themselves tell."""
    tables = [name for name in schema.TABLES if name not in _NO_FACTS]
    shapes = {table: _shape(connection, table) for table in tables}
    parents = {child: number for number, page in pages.items() for child in page.children}
    roots = {
        row[3]: row[1] if row[0] == "table" else f"index of {row[2]}"
        for page in pages.values()
        for row in page.rows
        if page.is_table and len(row) == 5 and row[0] in ("table", "index")
    }
    owners: dict[int, list[str]] = {}
    for number, page in pages.items():
        root = number
        for _ in range(len(pages)):
            if root not in parents:
                break
            root = parents[root]
        owner = roots.get(root)
        owners[number] = [owner] if owner else [t for t in tables if _may_hold(shapes[t], t, page)]
    written = {
        (row[1], row[2]): row[3]
        for number, page in pages.items()
        if owners[number] == ["checksums"]
        for row in page.rows
    }
    for number, page in pages.items():
        if not page.is_table and page.rows and len(page.rows[0]) < 4:
            names = list(_names(owners[number], page.rows))
            if names:
                yield "names", names
                continue
        fitting = owners[number]
        if len(fitting) > 1:
            fitting = sorted(fitting, key=lambda t: -_sealed(t, page.rows, written))
        if fitting and fitting[0] in shapes:
            width = len(shapes[fitting[0]])
            yield fitting[0], [row[:width] for row in page.rows]


def _names(owner: Sequence[str], rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what a page of an index tells: fact, row, name, and the suite of a task."""
    fact = owner[0].removeprefix("index of ") if owner else ""
    for row in rows:
        types = tuple(map(type, row))
        if types == (str, str, int):
            yield "tasks", row[2], row[0], row[1]
        elif types in ((str, int), (bytes, int)):
            is_commit = not fact and _COMMIT.fullmatch(str(row[0]))
            yield "commits" if is_commit else fact, row[1], row[0], None


def _shape(connection: sqlite3.Connection, table: str) -> list[tuple[type, ...]]:
    """Return the types that each column of a table may have."""
    return [
        _TYPES[kind] + (() if needed or is_key else (type(None),))
        for _, _, kind, needed, _, is_key in connection.execute(f"PRAGMA table_info({table})")
    ]


def _may_hold(shape: Sequence[tuple[type, ...]], table: str, page: Page) -> bool:
    """Return True if all rows of a page of which nothing else is known can be of a table."""
    has_rowid = table not in ("parents", "points", "fingerprints", "summaries")
    # Rows of `checksums` that an older schema wrote end before its last column.
    widths = (len(shape), len(shape) - (table == "checksums"))
    if page.is_table != has_rowid or not page.rows:
        return False
    if not all(len(row) in widths and all(map(isinstance, row, shape)) for row in page.rows):
        return False
    if table in ("parents", "fingerprints"):
        are_commits = all(_COMMIT.fullmatch(row[2]) for row in page.rows)
        return are_commits == (table == "parents")
    last = [row[-1] for row in page.rows]
    if table in ("points", "summaries") and all(type(v) is int for row in page.rows for v in row):
        # An index ends with the id of its row, which is there once, or twice in one row.
        return len(set(last)) < len(last)
    return True


def _sealed(table: str, rows: Iterable[Row], written: dict[tuple[str, int], int]) -> int:
    """Return how many rows have the checksum that was written with a fact of this table."""
    return sum(
        written.get((table, row[0])) == zlib.crc32(marshal.dumps([[row]], 2)) for row in rows
    )


# --- pages


def _pages(path: Path) -> dict[int, Page]:
    """Return the pages of b-trees in a file, by their number from 1 on."""
    data = path.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1):
        size = _USUAL_SIZE
    raw = {
        number + 1: data[number * size : (number + 1) * size] for number in range(len(data) // size)
    }
    with suppress(OSError):
        raw.update(_newer(Path(f"{path}-wal").read_bytes(), size))
    pages = {}
    for number in raw:
        with suppress(ValueError, IndexError, struct.error):
            pages[number] = _page(raw, number)
    return pages


def _newer(wal: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pages that transactions left in a -wal, in their order."""
    pending: list[tuple[int, bytes]] = []
    for start in range(_WAL_HEADER, len(wal) - size - _FRAME_HEADER + 1, size + _FRAME_HEADER):
        number, commit = struct.unpack_from(">II", wal, start)
        if wal[start + 8 : start + 16] != wal[16:24]:  # of an earlier use of the file
            return
        pending.append((number, wal[start + _FRAME_HEADER : start + _FRAME_HEADER + size]))
        if commit:
            yield from pending
            pending = []


def _page(raw: dict[int, bytes], number: int) -> Page:
    """Return a page of a b-tree. Raises ValueError, IndexError or struct.error for another one."""
    page, start = raw[number], 100 if number == 1 else 0
    kind = page[start]
    if kind not in (_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF):
        raise ValueError("no page of a b-tree")
    is_interior = kind in (_INDEX_INTERIOR, _TABLE_INTERIOR)
    (count,) = struct.unpack_from(">H", page, start + 3)
    first = start + (12 if is_interior else 8)
    cells = struct.unpack_from(f">{count}H", page, first)
    if any(not first + 2 * count <= cell < len(page) for cell in cells):
        raise ValueError("a cell outside its page")
    children = [page[start + 8 : start + 12]] if is_interior else []
    rows = []
    for at in cells:
        cell = at
        if is_interior:
            children.append(page[cell : cell + 4])
            cell += 4
        if kind != _TABLE_INTERIOR:
            with suppress(ValueError, IndexError, struct.error):
                rows.append(_row(raw, page, cell, kind == _TABLE_LEAF))
    numbers = tuple(int.from_bytes(child, "big") for child in children)
    return Page(kind in (_TABLE_INTERIOR, _TABLE_LEAF), numbers, tuple(rows))


def _row(raw: dict[int, bytes], page: bytes, at: int, is_table: bool) -> Row:
    size, at = _varint(page, at)
    key = None
    if is_table:
        key, at = _varint(page, at)
    record = _payload(raw, page, at, size, is_table)
    values = _values(record)
    return (key, *values[1:]) if is_table and values[0] is None else values


def _payload(raw: dict[int, bytes], page: bytes, at: int, size: int, is_table: bool) -> bytes:
    """Return a record, with what of it lies on overflow pages."""
    room = len(page)
    most = room - 35 if is_table else (room - 12) * 64 // 255 - 23
    if size <= most:
        return _exactly(page[at : at + size], size)
    least = (room - 12) * 32 // 255 - 23
    local = least + (size - least) % (room - 4)
    local = local if local <= most else least
    parts, rest = [page[at : at + local]], size - local
    number = int.from_bytes(page[at + local : at + local + 4], "big")
    while rest > 0:
        if number not in raw:
            raise ValueError("a missing page of overflow")
        parts.append(raw[number][4 : 4 + rest])
        rest -= room - 4
        number = int.from_bytes(raw[number][:4], "big")
    return _exactly(b"".join(parts), size)


def _values(record: bytes) -> Row:
    """Return the values of a record. Raises ValueError where it is none."""
    end, at = _varint(record, 0)
    kinds = []
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        size = (kind - 12) // 2 if kind >= 12 else (*_INTEGER_SIZES, 8, 0, 0)[kind]
        raw = _exactly(record[at : at + size], size)
        at += size
        if kind >= 12:
            values.append(raw if kind % 2 == 0 else raw.decode())
        elif kind == 7:
            values.append(struct.unpack(">d", raw)[0])
        elif kind in (8, 9):
            values.append(kind - 8)
        else:
            values.append(int.from_bytes(raw, "big", signed=True) if kind else None)
    if at != len(record) or not values:
        raise ValueError("no record")
    return tuple(values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return SQLite's integer of one to nine bytes, and where it ends."""
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for end in range(at + 1, at + 8):
        value = value << 7 | data[end] & 127
        if data[end] < 128:
            return value, end + 1
    return value << 8 | data[at + 8], at + 9


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError("a record that ends too early")
    return data
