"""The first suite of a repository: which of its scripts to train, the command that runs it small,
or else an example that runs anywhere, to be edited; and which packages the scripts of a suite
import. Reads sources as text; imports and runs nothing, and knows no git.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from celedger.base.errors import explained
from celedger.suite import loading
from celedger.suite.script_source import (
    EPOCHS,
    LATE,
    LOOP,
    SMALL,
    STEPS,
    VALIDATION,
    ScriptSource,
    functions_that_train,
    judged_metrics,
    read_script,
    words_of,
)

_MOST = 1000  # sources, those nearest to the root first: parsing one takes 2 ms
_PLAIN = re.compile(r"[\w./+-]+")
_MOST_TRIED = 20  # scripts of which it is asked whether they can import what they need
_ELSEWHERE = re.compile(
    r"(^|/)(tests?|docs?|suites|build|\.[^/]*)/|(^|/)(test_[^/]*|[^/]*_test|setup|conftest)\.py$"
)
_PACKAGE = re.compile(r"(?:(.+)/)?([^/]+)/__init__\.py")
_SETTINGS = re.compile(r"[^.]*conf[^.]*\.ya?ml|config[^./]*\.ya?ml")
_ADAPTERS = {  # modules of `child` that run a script which reports nothing itself
    "lightning.pytorch": "celedger.child.lightning",
    "pytorch_lightning": "celedger.child.lightning",
    "transformers.trainer": "celedger.child.huggingface",
}  # fmt: skip
_TORCH = ("torch", "torch._dynamo")
_BENCHMARKS = re.compile(r"(^|/)(test|bench)[^/]*\.py$")
_TESTS = re.compile(r"(^|/)(test_[^/]*|[^/]*_test)\.py$")  # as pytest takes them
_README = re.compile(r"(?:.*/)?README[^/]*", re.IGNORECASE)
_TYPED = re.compile(r"(?m)^[ \t$>`]*python3? +(?:-m +([\w.]+)|(?:\./)?([\w./-]+\.py))([^\n`]*)")
_MOST_BENCHMARKS = 20
_RUN_BENCHMARKS = "{python} {suite}/benchmarks.py"
_MEASURED = {"cpu_time": "s", "peak_rss": "B"}
"""Measured of every trial; declared where no step of an optimiser is, with their units."""


@dataclass(frozen=True, slots=True)
class TaskProposal:
    """A task that trains a script of the repository."""

    script: str  # relative to the root
    trains_by: str  # what makes it a training, for a person
    command: str
    params: dict[str, int]
    patterns: tuple[str, ...]
    metrics: dict[str, str]  # name -> direction
    preload: tuple[str, ...]
    stops: bool  # nothing makes it short, so it is stopped
    pythonpath: tuple[str, ...]  # folders of its packages; () for the root
    units: Mapping[str, str] = field(default_factory=dict)  # of times and sizes, where none trains
    cwd: str = ""  # folder in which its users type the command

    @property
    def has_steps(self) -> bool:
        """Return True if it has steps of an optimiser, which are measured from outside."""
        return bool(self.preload) and not self.units

    @property
    def is_benchmark(self) -> bool:
        """Return True for benchmarks of pytest-benchmark."""
        return _RUN_BENCHMARKS in self.command

    @property
    def task(self) -> str:
        """Return its tables of suite.toml."""
        lines = [*self._measured(self.units)]
        judged = {n: better for n, better in self.metrics.items() if n not in self.units}
        for name, direction in judged.items():
            lines += [f'[metrics."{name}"]', f'direction = "{direction}"', 'floor = "2%"', ""]
        epochs = any("<epoch>" in pattern for pattern in self.patterns) or not self.units
        for name, direction in [*judged.items()][:epochs]:  # how fast it converges
            lines += [f'[metrics."{name[:59]}_area"]', f'summary = "area of {name}"']
            lines += [f'direction = "{direction}"', 'floor = "5%"', ""]
        stem = "benchmarks" if self.is_benchmark else PurePosixPath(self.script).stem
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem)
        lines += ["[[task]]", f'name = "{name}"']
        lines += [f"command = {json.dumps(self.command)}"]
        lines += [f'cwd = "{self.cwd}"   # where the command is typed'] * bool(self.cwd)
        if self.params:
            params = ", ".join(f"{name} = {value}" for name, value in self.params.items())
            lines += [f"params = {{ {params} }}"]
        if self.stops:
            lines += [f"stop_after = {STEPS}   # steps of its optimiser; no option makes it short"]
        if self.patterns:
            lines += ["pattern = [   # of what it prints; each named group is a metric"]
            lines += [*(f"  '{pattern}'," for pattern in self.patterns), "]"]
        seeds = "[0]  # no option of the script sets one"
        if "{seed}" in self.command or not judged:
            seeds = "[0, 1, 2, 3, 4]"
        if self.is_benchmark:  # each value is a median already
            seeds = "3"
        lines += [f"seeds = {seeds}"]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _measured(units: Mapping[str, str]) -> Iterator[str]:
        """Yield the tables of the times and sizes that benchmarks report."""
        for name, unit in units.items():
            kind = "memory" if unit.endswith("B") else "work" if name in _MEASURED else "speed"
            yield from (f'[metrics."{name}"]', f'unit = "{unit}"', 'direction = "lower"')
            yield from (f'kind = "{kind}"', 'floor = "10%"', "")


def propose(
    root: Path,
    names: Iterable[str],
    can_import: Callable[[str, set[str]], bool] = lambda script, modules: True,
) -> TaskProposal | None:
    """Return a task for the likeliest training among these files of a repository, paths relative to
    its root, one that can import the modules it needs before others. Where nothing trains: for its
    benchmarks, a script that prints a metric, an example, or its tests; None without any."""
    names = [*names]
    packages: dict[str, set[str]] = {}  # folder -> the packages in it
    for match in filter(None, map(_PACKAGE.fullmatch, names)):
        packages.setdefault(match[1] or ".", set()).add(match[2])
    nearest = sorted((n for n in names if _counts(n)), key=lambda n: (n.count("/"), n))[:_MOST]
    sources = [source for name in nearest if (source := read_script(root, name)) is not None]
    trainers = functions_that_train(sources)
    scores = {s: s.score(s.roots(packages), trainers) for s in sources}
    likely = sorted((s for s in sources if scores[s] > 0), key=lambda s: -scores[s])
    if not likely:
        if (benchmarks := _of_benchmarks(root, names, packages)) is not None:
            return benchmarks
        shows = [s for s in sources if s.measures or s.units or s.is_example]
        usable = (s for s in shows if s.runs and not s.required)
        likely = sorted(usable, key=lambda s: (s.downloads, not s.measures, not s.units))
    if not likely:
        return _of_tests(names, packages)
    local = {part for name in names for part in PurePosixPath(name).with_suffix("").parts}
    able = (s for s in likely[:_MOST_TRIED] if can_import(s.name, s.needs - local))
    best = next(able, likely[0])
    roots = best.roots(packages) or [name for name in ("src",) if name in packages]
    prefix = next((s.overrides for s in sources if s.overrides is not None), None)
    if prefix is not None and not best.options:
        best.take_settings(prefix)
    if not best.options and ("hydra" in best.imports or (prefix == "" and "sys" in best.imports)):
        for name in sorted(filter(_SETTINGS.fullmatch, names))[:1]:
            best.take_yaml(root / name)
    options = {o: min(SMALL[o], best.options[o] or SMALL[o]) for o in best.options if o in SMALL}
    options = dict([*options.items()][:1])
    adapter = _ADAPTERS.get(best.library)
    script = f"{{tree}}/{best.name}"
    script = script if _PLAIN.fullmatch(best.name) else shlex.quote(script)
    words = [f"{best.spelling[name]}{{{name}}}" for name in options]
    cwd, module, typed = _typed(root, names, best)
    if best.required:
        words = [*map(shlex.quote, typed), *words]
    if best.is_relative:  # Python refuses it as a script
        module = module or best.module(packages)[1]
    if best.is_notebook:  # whose paths are relative to its folder
        cwd = str(PurePosixPath(best.name).parent).removeprefix(".")
        script = script if adapter else f"-m celedger.child.notebook {script}"
    elif module and not adapter:
        script = f"-m {module}"
    if adapter and not options:  # the adapter ends the training
        options, script = {"epochs": EPOCHS}, f"--epochs {{epochs}} {script}"
    words = ["{python}", *([f"-m {adapter}"] if adapter else []), script, *words, *best.seed()]
    if "output_dir" in best.options:  # else it writes into the checkout
        words += [f"{best.spelling['output_dir']}{{out}}"]
    logged = [n for s in (sources if adapter else [best]) for n in s.logged]
    if adapter and "fit" in best.called and not best.validates:
        logged = [n for n in logged if not VALIDATION.intersection(words_of(n))]
    printed = {} if logged else best.printed()
    if not logged and not judged_metrics([*printed]):  # its loop is a module of the repository
        for source in sources:
            printed |= source.printed() if source.called >= LOOP else {}
    metrics = judged_metrics([*logged, *printed])
    torch = bool(adapter) or any("torch" in source.imports for source in sources)
    preload = [*(_TORCH if torch else ()), *([best.library] if adapter else []), *best.slow]
    trains = scores[best] > 0
    units: dict[str, str] = {}
    if not (torch and trains):  # there is no optimiser of torch to time
        units = {n: unit for n, unit in best.units.items() if n in printed and not trains}
        units |= _MEASURED
    metrics |= dict.fromkeys(units, "lower")
    stops = torch and trains and not adapter and not options
    if stops:  # what its end alone reports would be missing
        early = [n for n in (*logged, *printed) if not LATE.intersection(words_of(n))]
        lines = {best.lines.get(n, n) for n in judged_metrics(early)}  # what a line has is as early
        early = [n for n in (*logged, *printed) if best.lines.get(n, n) in lines]
        metrics = judged_metrics(early) or metrics
    return TaskProposal(
        best.name,
        best.library or ("a training loop" if trains and not best.fits else "a script"),
        " ".join(words), options,
        tuple(text for name, text in printed.items() if name in (*metrics, "epoch")), metrics,
        tuple(preload), stops, tuple(roots), units=units, cwd=cwd,
    )  # fmt: skip


def _typed(root: Path, names: Iterable[str], source: ScriptSource) -> tuple[str, str, list[str]]:
    """Return the folder, the module (of `python -m`) and the words of the first command that runs a
    script, in the nearest README at or above it; empty ones without such a command."""
    above = PurePosixPath(source.name).parents
    readmes = [n for n in names if _README.fullmatch(n) and PurePosixPath(n).parent in above]
    for readme in sorted(readmes, key=lambda n: (-n.count("/"), n)):
        folder = PurePosixPath(readme).parent
        with suppress(OSError, ValueError):
            for module, path, rest in _TYPED.findall((root / readme).read_text(encoding="utf-8")):
                script = path or module.replace(".", "/") + ".py"
                own = {str(folder / script), str(folder / "src" / script)}
                if source.name in own and not {*"<>[]{}$|&;\\"} & {*rest.partition("#")[0]}:
                    typed = shlex.split(rest, comments=True)
                    return str(folder) * (folder != above[-1]), module, typed
    return "", "", []


def _of_benchmarks(
    root: Path, names: Iterable[str], packages: Mapping[str, set[str]]
) -> TaskProposal | None:
    """Return a task that runs the benchmarks of the repository: tests that take pytest-benchmark's
    fixture, with the metrics of their `extra_info`; None without any."""
    named = sorted(n for n in names if _BENCHMARKS.search(n) and _can_be_named(n))[:_MOST]
    sources = [source for name in named if (source := read_script(root, name)) is not None]
    by_file = {source: benchmarks for source in sources if (benchmarks := source.benchmarks)}
    if not by_file:
        return None
    times, others, patterns = {}, {}, []
    functions = {name: keys for each in by_file.values() for name, keys in each.items()}
    for function, keys in [*functions.items()][:_MOST_BENCHMARKS]:
        short = function.removeprefix("test_")
        times[f"{short}_time"] = "s"
        patterns.append(rf"^{function} (?P<{short}_time>\S+)$")
        for key, direction in judged_metrics(keys).items():
            others[f"{short}_{key}"] = direction
            patterns.append(rf"^{function}\.{key} (?P<{short}_{key}>\S+)$")
    words = [_RUN_BENCHMARKS, *(shlex.quote(source.name) for source in by_file)]
    times["peak_rss"] = "B"
    return TaskProposal(
        next(iter(by_file)).name, "pytest-benchmark", " ".join(words), {}, tuple(patterns),
        dict.fromkeys(times, "lower") | others, (), False,
        tuple(dict.fromkeys(root for source in by_file for root in source.roots(packages))),
        units=times,
    )  # fmt: skip


def _of_tests(names: Iterable[str], packages: Mapping[str, set[str]]) -> TaskProposal | None:
    """Return a task that runs the tests: it fails where one does."""
    tests = sorted(name for name in names if _TESTS.search(name))
    roots = tuple(name for name in ("src",) if name in packages)
    return TaskProposal(
        tests[0], "the tests", "{python} -m pytest -q -x", {}, (),
        dict.fromkeys(_MEASURED, "lower"), (), False, roots, units=_MEASURED,
    ) if tests else None  # fmt: skip


def _counts(name: str) -> bool:
    """Return True for Python that is part of the product, and can be named in a command."""
    return name.endswith((".py", ".ipynb")) and not _ELSEWHERE.search(name) and _can_be_named(name)


def _can_be_named(name: str) -> bool:
    """Return False for a name that a command would take for a placeholder."""
    return not {*"{}"} & {*name}


# --- the suite as it is written

TEMPLATES = Path(__file__).parent / "templates"
_TEMPLATES = ("suite.toml.in", "first.py.in", "first.toml", "steps.toml", "benchmarks.py.in")


def scaffold(
    folder: Path, name: str, python: str = "", proposal: TaskProposal | None = None
) -> list[Path]:
    """Write a runnable suite into a folder, for an interpreter unless it is celedger's own; returns
    the files written. One that is there is left as it is. Raises MachineError where nothing can be
    written."""
    texts = {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in _TEMPLATES}
    suite = texts["suite.toml.in"].replace("@name@", name)
    keys: dict[str, object] = {"python": python}
    if proposal is None:
        files = {"first.py": texts["first.py.in"], "suite.toml": suite + texts["first.toml"]}
    else:
        keys["pythonpath"] = [*proposal.pythonpath] if proposal.pythonpath != (".",) else []
        keys["preload"] = list(proposal.preload)
        steps = texts["steps.toml"] if proposal.has_steps else ""
        files = {"suite.toml": suite + steps + proposal.task}
        if proposal.is_benchmark:
            files["benchmarks.py"] = texts["benchmarks.py.in"]
    for key, value in keys.items():
        if value:
            line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
            commented = re.search(rf"(?m)^# {key} = .*?(?=  #)", suite)
            assert commented is not None
            files["suite.toml"] = files["suite.toml"].replace(commented[0], line)
    written = []
    for file, text in files.items():
        target = folder / file
        if os.path.lexists(target):
            continue
        with explained(f"{target} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


# --- which installed packages the scripts of a suite import


def installed_imports(
    folder: Path, roots: Sequence[Path], others: Iterable[Path] = ()
) -> tuple[str, ...]:
    """Return the top-level modules that the scripts of a suite, and these others, cannot do
    without, sorted: not those of Python, of celedger, of the suite, or of the code under test,
    which lies in `roots`. Raises SuiteError where the folder cannot be read."""
    scripts = [*(path for _, path in loading.files(folder) if path.suffix == ".py"), *others]
    names: set[str] = set()
    for script in scripts:
        if (source := read_script(script.parent, script.name)) is not None:
            names |= source.needs
    local_modules = (
        {path.stem for path in scripts} | {path.parent.name for path in scripts} | {"celedger"}
    )
    return tuple(
        sorted(
            name
            for name in names - local_modules
            if not any((root / name).is_dir() or (root / f"{name}.py").exists() for root in roots)
        )
    )
