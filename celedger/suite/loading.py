"""From a suite's name to its folder, from its suite.toml to tasks, and the content of the folder:
its hash, and a copy of it that later edits cannot reach.

Strict: what is not understood is an error with its place. Nothing is run here.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from celedger.base import shipped
from celedger.base.config import Config, closest, leads_out, read_toml
from celedger.base.errors import SuiteError, explained
from celedger.base.model import (
    CLOCKED,
    Command,
    Direction,
    Kind,
    Metric,
    Task,
    usual_kind,
    usual_unit,
)
from celedger.suite import toml_table
from celedger.suite.toml_table import TomlTable

FILE = "suite.toml"
# Files that no training sees: the tasks hold what matters of the first, the second is for people.
_UNSEEN = (FILE, "README.md")


def files(folder: Path) -> list[tuple[str, Path]]:
    """All files below a folder that trainings may read, by relative name, sorted: not dotfiles nor
    byte-code. Links are followed. Raises SuiteError for what is neither file nor folder."""
    check_links(folder, folder / FILE)
    every = _below(folder, "", (folder.resolve(),))
    return sorted((name, path) for name, path in every if name not in _UNSEEN)


def check_links(*paths: Path) -> None:
    """Raise SuiteError for a link that leads out of its repository."""
    for path in paths:
        if leads_out(path):
            raise SuiteError(f"{path} is a link that leads out of the repository", "remove it")


def _below(folder: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir():
        name = f"{prefix}{path.name}"
        if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        check_links(path)
        if path.is_dir():
            real = path.resolve()
            if real in above:
                raise SuiteError(f"{path} is a link to a folder it lies in")
            yield from _below(path, f"{name}/", (*above, real))
        elif path.is_file():
            yield name, path
        else:
            raise SuiteError(f"{path} is neither a file nor a folder", "remove it")


def digests(folder: Path) -> dict[str, str]:
    """Return what a training may read, by relative name: `x` for an executable file, else `-`, and
    the SHA-256 of its content (64 hex digits)."""
    by_name = {}
    with explained(f"{folder} cannot be read", kind=SuiteError):
        for name, path in files(folder):
            with explained(f"{path} cannot be read", kind=SuiteError), path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            by_name[name] = ("x" if path.stat().st_mode & 0o100 else "-") + content
    return by_name


def content_hash(folder: Path) -> str:
    """64 hex digits over names, executable bits and contents of what a training may read."""
    return hash_of(digests(folder))


def hash_of(digests: Mapping[str, str]) -> str:
    """Return the content hash of a folder that holds these."""
    total = hashlib.sha256()
    for name, digest in digests.items():
        content = digest[:1].encode() + bytes.fromhex(digest[1:])
        total.update(name.encode(errors="surrogateescape") + b"\0" + content)
    return total.hexdigest()


def snapshot(folder: Path, digest: str, cache: Path) -> Path:
    """Return a copy of a suite's folder at `cache/<its content hash>`, made once; one that was
    changed since is made anew. No training runs in it. Raises SuiteError if the folder has other
    content than that of the hash."""
    home = cache / digest
    with explained(f"{folder} cannot be copied to {cache}", kind=SuiteError):
        if not _is_whole(home):
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".draft-", dir=cache) as draft:
                new = Path(draft, "new")
                new.mkdir()
                for name, path in files(folder):
                    (new / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, new / name)
                if content_hash(new) != digest:
                    raise SuiteError(
                        f"{folder} changed while it was read", "type the command again"
                    )
                if not _is_whole(home):  # else another was faster: its copy is in use already
                    with suppress(FileNotFoundError):
                        home.rename(Path(draft, "old"))
                    with suppress(OSError):
                        new.rename(home)
        os.utime(home)  # what is long unused may be cleared away
    return home


def _is_whole(home: Path) -> bool:
    """Return True if a copy has the content that its name promises."""
    return home.is_dir() and content_hash(home) == home.name


Reader = Callable[[object], Any]
MetricTables = Mapping[str, Mapping[str, object]]  # metric name -> what is said of it
NAME = re.compile(r"[A-Za-z0-9_.-]+")
METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    folder: Path
    tasks: tuple[Task, ...]
    warnings: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # name -> digest (`digests`)
    preflight: bool = False  # checks run before a task's first trial of a definition
    checks: tuple[str, ...] = ()  # of its own: `FILE.py:FUNCTION`
    waivers: Mapping[str, str] = field(default_factory=dict)  # check -> reason

    @property
    def texts(self) -> dict[str, Path]:
        """Return its files by the digests of their contents."""
        return {digest: self.folder / name for name, digest in self.files.items()}

    @property
    def judged(self) -> frozenset[tuple[str, str]]:
        """Return the (task, metric) that it declares with a direction."""
        return frozenset(
            (t.name, m.name) for t in self.tasks for m in t.metrics if m.direction.sign
        )


# --- finding


def find(name: str | None, config: Config, repo_root: Path) -> Path:
    """Return the folder of a suite: one of the repository's, else one that ships, else (when it has
    a slash) a path. Without a name, the configured one, else the repository's only one. Raises
    SuiteError with those that exist."""
    name = name or config.suite
    suites, ours = suites_in(config.suites), shipped("suites")
    others = suites_in(ours)
    if name is None:
        if len(suites) == 1:
            return config.suites / suites[0]
        existing = f"{config.suites} has {', '.join(suites) or 'no suite'}"
        cause = f"no suite is selected: {existing}; celedger has {', '.join(others) or 'none'}"
        raise SuiteError(cause, "--suite NAME" if suites else "`celedger init`, or --suite NAME")
    if "\0" not in name:
        if os.sep in name or name in (".", ".."):
            for path in (Path(name).expanduser(), repo_root / name):
                folder = path.parent if path.name == FILE else path
                if (folder / FILE).is_file():
                    return folder.resolve()
            raise SuiteError(f"{name} is not a suite: it has no {FILE}")
        folders = [*(config.suites / folder for folder in suites), *(ours / f for f in others)]
        for named in (lambda folder: folder.name, _declared):
            for folder in folders:
                if named(folder) == name:
                    return folder
    names = list(dict.fromkeys([*suites, *others]))
    raise SuiteError(f"there is no suite {name!r}", closest(name, names) if names else "")


def _declared(folder: Path) -> object:
    """Return what a suite calls itself; None where its file says nothing that can be read."""
    with suppress(SuiteError):
        head = _parsed(folder / FILE).get("suite")
        return head.get("name") if isinstance(head, dict) else None
    return None


def suites_in(home: Path) -> list[str]:
    """Return the names of its suites. Raises SuiteError where the folder is closed to us."""
    with (
        explained(f"{home} cannot be read", kind=SuiteError),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        return sorted(path.name for path in home.iterdir() if os.path.lexists(path / FILE))
    return []


# --- loading


def load(folder: Path) -> Suite:
    """Read a suite. Raises SuiteError with the file, the place and what is wrong."""
    file = folder / FILE
    check_links(folder, file)
    top = TomlTable(f"{file}:", _parsed(file), ("suite", "metrics", "task", "preflight"))
    head = TomlTable(
        f"{file}: [suite]", top.raw("suite", {}), ("name", "preflight", *_OF_SUITE),
        "[[task]]", (*_TASK_KEYS, *_OF_TASK),
    )  # fmt: skip
    name = _name(head, head.raw("name", folder.resolve().name))
    warnings = []
    if name != folder.resolve().name:
        warnings.append(f"the suite calls itself {name}, its folder {folder.resolve().name}")
    files = digests(folder)
    pattern = Task(name, "", (), files=hash_of(files), **head.read(_OF_SUITE))
    shared = _metric_tables(f"{file}:", top.raw("metrics", {}))
    entries = top.raw("task", [])
    if isinstance(entries, dict):
        top.fail("[task] is one table", "write [[task]]")
    if not isinstance(entries, list) or not entries:
        top.fail("has no task", "add a [[task]] with a name and a command")
    tasks: dict[str, Task] = {}
    for number, entry in enumerate(entries, 1):
        body = TomlTable(f"{file}: task {_label(entry, number)}", entry, (*_TASK_KEYS, *_OF_TASK))
        for task in _tasks(body, pattern, shared, folder, warnings):
            if task.name in tasks:
                body.fail(f"is defined twice: {task.name}")
            tasks[task.name] = task
    checks = TomlTable(f"{file}: [preflight]", top.raw("preflight", {}), _OF_PREFLIGHT)
    first = head.read({"preflight": toml_table.truth}).get("preflight", False)
    suite = Suite(
        name, folder, tuple(tasks.values()), tuple(warnings), files, first,
        **checks.read(_OF_PREFLIGHT),
    )  # fmt: skip
    for check in suite.checks:
        script, _, function = check.partition(":")
        if script not in files or not function.isidentifier():
            checks.fail(f"checks has {check!r}", "write FILE.py:FUNCTION, of a file of the suite")
    return suite


def _parsed(file: Path) -> dict[str, object]:
    if not os.path.lexists(file):
        raise SuiteError(f"{file.parent} is not a suite: it has no {FILE}", "`celedger init`")
    if not file.is_file():
        raise SuiteError(f"{file} is not a file", "remove it, then `celedger init`")
    return read_toml(file, SuiteError)


def _label(entry: object, number: int) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return repr(name) if isinstance(name, str) else f"number {number}"


def _name(where: TomlTable, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        where.fail(f"has an invalid name: {value!r}", "ASCII letters, digits, and any of _ . -")
    return value


_LIMITS: dict[str, Reader] = {  # of the suite, or of one task
    "timeout": toml_table.seconds,
    "silence": toml_table.seconds,
    "memory": toml_table.size,
    "threads": toml_table.integer(1, 1024),
    "seeds": toml_table.seeds,
}
_OF_SUITE = {
    "python": toml_table.string,
    "pythonpath": toml_table.inside,
    "pass_env": toml_table.strings,
    "preload": toml_table.modules,
    "build": toml_table.build,
    "inputs": toml_table.inside,
    "venv": toml_table.inside,
    "sandbox": toml_table.truth,
    "trace": toml_table.truth,
    **_LIMITS,
}
_OF_PREFLIGHT: dict[str, Reader] = {
    "checks": toml_table.strings,
    "waivers": toml_table.reasons,
}
_OF_TASK = {
    "steps": toml_table.truth,
    "stop_after": toml_table.integer(1, 10**9),
    "pattern": toml_table.patterns,
    "tensorboard": toml_table.event_folder,
    "cwd": lambda value: toml_table.inside(toml_table.string(value))[0],
    **_LIMITS,
}
_OF_METRIC: dict[str, Reader] = {
    "unit": lambda value: value and toml_table.string(value),
    "direction": toml_table.one_of(Direction),
    "kind": toml_table.one_of(Kind),
    "floor": toml_table.floor,
    "summary": toml_table.summary,
}
_TASK_KEYS = ("name", "command", "commands", "params", "grid", "sample", "alias", "metrics")


# --- one [[task]]


def _tasks(
    body: TomlTable, pattern: Task, shared: MetricTables, folder: Path, warnings: list[str]
) -> list[Task]:
    """Return the tasks of one entry: one, or one per combination of its grid."""
    if "name" not in body:
        body.fail("has no name")
    name = _name(body, body.raw("name"))
    points = _points(body)
    params = dict.fromkeys(key for _, point in points for key in point)
    used, lines = _commands(body, (*params, *toml_table.PLACEHOLDERS), folder)
    task = pattern._replace(commands=lines, metrics=_metrics(body, shared))
    task = task._replace(**body.read(_OF_TASK))
    alias = _aliases(body)
    warnings += [
        f"task {name}: no command uses the parameter {key}"
        for key in params
        if not used.intersection({key}.union(*alias.get(key, {}).values()))
    ]
    only_timed = task.metrics and {metric.kind for metric in task.metrics} <= CLOCKED
    if len(task.seeds) > 1 and "seed" not in used and not only_timed:
        warnings.append(
            f"task {name}: no command uses {{seed}}; its {len(task.seeds)} seeds differ only if "
            "the script reads CELEDGER_SEED"
        )
    distinct: dict[tuple[object, ...], Task] = {}  # what runs the same runs once
    for label, point in points:
        one = task._replace(name=name + label, params=point)
        runs = toml_table.command_lines(
            one, python="", suite_dir=folder, tree=folder, seed="", out=folder
        )
        distinct.setdefault(tuple(runs), one)
    return list(distinct.values())


def _metric_tables(where: str, value: object) -> MetricTables:
    """Return the `[metrics.NAME]` tables at a place, names and keys checked, values not yet."""
    if not isinstance(value, dict):
        parent = "" if where.endswith(":") else "task."
        raise SuiteError(f"{where} metrics is not a table", f"write [{parent}metrics.NAME]")
    by_name = {}
    for name, entry in value.items():
        body = TomlTable(f"{where} metric {name!r}", entry, _OF_METRIC)
        if not METRIC.fullmatch(name):
            body.fail("has an invalid name", "up to 64 ASCII letters, digits, and any of _ . / -")
        by_name[name] = body.values
    return by_name


def _metrics(body: TomlTable, shared: MetricTables) -> tuple[Metric, ...]:
    """Return a task's metrics: the suite's, with what the task says of them or adds to them."""
    tables = _metric_tables(body.where, body.raw("metrics", {}))
    declared = []
    for name in dict.fromkeys([*shared, *tables]):
        values = {**shared.get(name, {}), **tables.get(name, {})}
        table = TomlTable(f"{body.where} metric {name!r}", values, _OF_METRIC)
        if "direction" not in table:
            table.fail("has no direction", 'direction = "lower", "higher" or "info"')
        own = {"unit": usual_unit(name), **table.read(_OF_METRIC)}
        declared.append(Metric(name, **{"kind": usual_kind(name, own["unit"]), **own}))
    return tuple(declared)


def _commands(
    body: TomlTable, placeholders: tuple[str, ...], folder: Path
) -> tuple[set[str], tuple[Command, ...]]:
    """Return the placeholders used, and the commands."""
    if ("command" in body) == ("commands" in body):
        body.fail("needs `command` or `commands`, and not both")
    named = {"run": body.raw("command")} if "command" in body else body.raw("commands")
    if not isinstance(named, dict) or not named:
        body.fail("commands is not a table of named commands")
    used: set[str] = set()
    lines = []
    for name, value in named.items():
        where = "command" if "command" in body else f"commands.{name!r}"
        if not NAME.fullmatch(name):
            body.fail(f"{where}: the name has other characters than ASCII letters, digits, _ . -")
        try:
            words = toml_table.split(value)
            used |= toml_table.check(words, placeholders)
        except ValueError as error:
            body.fail(f"{where} {error}")
        for word in words:
            script = word.removeprefix("{suite}/")
            if script != word and "{" not in script and not (folder / script).exists():
                names = sorted(path.name for path in folder.iterdir() if path.name != FILE)
                hint = closest(script, names) if names else f"{folder} has no script"
                body.fail(f"{where} names {word!r}, which is not there", hint)
        lines.append(Command(name, words))
    return used, tuple(lines)


# --- the parameters of a task: values, grids that make a task of every combination, and aliases


_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_TASKS = 1000  # of one grid: more is a mistake in the file, or a week of training

Aliases = Mapping[str, Mapping[str, Mapping[str, object]]]  # name -> value -> what it sets


def _points(body: TomlTable) -> Sequence[tuple[str, Mapping[str, object]]]:
    """Return what stands behind the task's name, and all parameters, for each combination of a
    task: one where it has no grid; only some of a grid with a `sample`. Its grid, and an alias that
    sets what it stands for, take the place of `params`; an alias stays a parameter of its own.
    Raises SuiteError."""
    params = _values(body, "params", body.raw("params", {}))
    grid, alias = _grid(body), _aliases(body)
    for key in alias:
        if key not in params and key not in grid:
            body.fail(f"has an alias {key!r} that neither params nor grid gives a value")
    combinations = []
    for point in _sampled(body, grid):
        chosen = {**params, **point}
        for key, meanings in alias.items():
            word = toml_table.text(chosen[key])
            if word not in meanings:
                body.fail(f"alias {key!r} has no {word!r}", closest(word, list(meanings)))
            chosen |= meanings[word]
        text = ",".join(f"{key}={_in_name(value)}" for key, value in point.items())
        combinations.append((f"[{text}]" if text else "", chosen))
    return combinations


def _sampled(body: TomlTable, grid: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return the combinations of a grid, or the first of them that a fixed seed draws: a larger
    `sample` keeps those of a smaller one."""
    total = math.prod(len(values) for values in grid.values())
    size = body.read({"sample": toml_table.integer(1, _MOST_TASKS)}).get("sample", total)
    if "sample" in body and not grid:
        body.fail("has a sample and no grid")
    if size > _MOST_TASKS:
        body.fail(f"grid has more than {_MOST_TASKS} combinations", "sample = 20 draws 20 of them")
    numbers: Iterable[int] = range(total)
    if size < total:
        draw, drawn = Random(0), dict[int, None]()
        while len(drawn) < size:
            drawn[draw.randrange(total)] = None
        numbers = sorted(drawn)
    combinations = []
    for number in numbers:
        point, rest = {}, number
        for key in reversed([*grid]):
            rest, place = divmod(rest, len(grid[key]))
            point[key] = grid[key][place]
        combinations.append({key: point[key] for key in grid})
    return combinations


def _aliases(body: TomlTable) -> Aliases:
    """Return what each value of each alias sets. Nothing may get its value from two sides."""
    tables = _params(body, "alias", body.raw("alias", {}))
    owners = {**dict.fromkeys(_grid(body), "grid"), **dict.fromkeys(tables, "alias")}
    alias: dict[str, dict[str, Mapping[str, object]]] = {}
    for key, meanings in tables.items():
        if not isinstance(meanings, dict) or not meanings:
            body.fail(f"alias {key!r} is not a table of values")
        where = f"alias {key!r}"
        alias[key] = {word: _values(body, where, sets) for word, sets in meanings.items()}
        names, *others = map(set, alias[key].values())
        if any(other != names for other in others):
            body.fail(f"{where} does not set the same parameters with each of its values")
        for name in sorted(names):
            if name in owners:
                body.fail(f"has {name!r} in {where} and in {owners[name]}")
            owners[name] = where
    return alias


def _values(body: TomlTable, where: str, values: object) -> Mapping[str, object]:
    """Return a table's parameters, each one value."""
    return {name: _param(body, name, value) for name, value in _params(body, where, values).items()}


def _params(body: TomlTable, where: str, values: object) -> Mapping[str, object]:
    if not isinstance(values, dict):
        body.fail(f"{where} is not a table of parameters")
    for name in values:
        if name in toml_table.PLACEHOLDERS:
            body.fail(f"{where} has {name!r}, which celedger fills in itself")
        if not _PARAM.fullmatch(name):
            body.fail(f"{where} has {name!r}: a name is made of ASCII letters, digits and _")
    return values


def _param(body: TomlTable, name: str, value: object) -> object:
    """Return a value that JSON can hold and a command line can carry."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (str, int, float)):
        hint = "a list of values goes into grid, a date into quotes"
        body.fail(f"parameter {name!r} is not a string, number or boolean", hint)
    if "\0" in toml_table.text(value):
        body.fail(f"parameter {name!r} holds a NUL character")
    return value


def _grid(body: TomlTable) -> dict[str, list[object]]:
    grid: dict[str, list[object]] = {}
    for key, values in _params(body, "grid", body.raw("grid", {})).items():
        if not isinstance(values, list) or not values:
            body.fail(f"grid {key!r} is not a list of values")
        distinct: dict[str, object] = {}
        for value in values:
            checked = _param(body, key, value)
            distinct.setdefault(toml_table.text(checked), checked)
        grid[key] = list(distinct.values())
    return grid


def _in_name(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", toml_table.text(value))
