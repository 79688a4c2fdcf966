"""The first suite of a repository: which of its scripts trains something, the command that runs it
small, or else an example that runs anywhere, to be edited; and which packages the scripts of a
suite import. Reads sources as text; imports and runs nothing, and knows no git.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from celedger.base.errors import explained
from celedger.suite import loading
from celedger.suite.loading import METRIC

_LARGEST = 1 << 18  # bytes of a source that is read
_MOST = 1000  # sources, those nearest to the root first: parsing one takes 2 ms
_PLAIN = re.compile(r"[\w./+-]+")
_LOWER = frozenset({
    "loss", "error", "err", "mse", "rmse", "mae", "nll", "ppl", "perplexity", "bpc", "wer", "cer",
})  # fmt: skip
_RANKED = frozenset({"recall", "precision", "map", "mrr", "ndcg"})  # of no batch of a training
_HIGHER = _RANKED | {
    "accuracy", "acc", "f1", "auc", "roc", "r2", "bleu", "iou", "miou", "psnr", "ssim", "score",
    "reward",
}  # fmt: skip
_VALIDATION = _RANKED | {"val", "valid", "validation", "test", "eval", "dev"}
_LATE = _VALIDATION | {"final", "best", "top"}
_MOST_METRICS = 3
_MOST_TRIED = 20  # scripts of which it is asked whether they can import what they need
_STEPS, _EPOCHS = 300, 5
_SMALL = {  # options that say how long to train, and what a small training takes
    **dict.fromkeys(
        ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), _EPOCHS
    ),
    **dict.fromkeys(
        ("steps", "max_steps", "num_steps", "iters", "max_iters", "iterations", "num_batches"),
        _STEPS,
    ),
}
_LOOP = {"backward", "step"}  # what a loop of its own calls
_DOWNLOADS = frozenset({"load_dataset", "from_pretrained", "hf_hub_download", "urlretrieve"})
_ELSEWHERE = re.compile(
    r"(^|/)(tests?|docs?|suites|build|\.[^/]*)/|(^|/)(test_[^/]*|[^/]*_test|setup|conftest)\.py$"
)
_PACKAGE = re.compile(r"(?:(.+)/)?([^/]+)/__init__\.py")
_WORD = r"[A-Za-z][\w/.@-]*"
_QUOTE = r"[\x22\x27]?"  # around a key of a printed dictionary; a literal string of TOML has none
_LABEL = re.compile(rf"({_WORD}(?: {_WORD}){{0,2}})({_QUOTE})\s*[:=]?\s*$")  # of a printed number
_NUMBER = r"[-+]?(?:\.?\d[-+.\w]*|nan\b|inf\b)"  # no word: a traceback has `loss = model(x)`
_VALUE = re.compile(r"%[-+0-9.]*[a-z]|\{[^{}]*\}")  # of a format
_SETTING = re.compile(r"( *)([\w-]+):(?: +(\d+))?\s*(?:#.*)?")  # of YAML: a number, or a table
_SETTINGS = re.compile(r"[^.]*conf[^.]*\.ya?ml|config[^./]*\.ya?ml")
_ADAPTERS = {  # modules of `child` that run a script which reports nothing itself
    "lightning.pytorch": "celedger.child.lightning",
    "pytorch_lightning": "celedger.child.lightning",
    "transformers.trainer": "celedger.child.huggingface",
}  # fmt: skip
_LIBRARIES = {  # what a script imports -> what it calls to train, and the module that does it
    "lightning": ("fit", "lightning.pytorch"),
    "pytorch_lightning": ("fit", "pytorch_lightning"),
    "transformers": ("train", "transformers.trainer"),
    "trl": ("train", "transformers.trainer"),
}
_ARGUMENT_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})
_TORCH = ("torch", "torch._dynamo")
_SLOW = frozenset({"scipy", "sklearn", "torchvision"})
"""Libraries that take a second to import and start no thread: preloaded, too. A small training of
scikit-learn's digits takes .7 s of processor time instead of 2.5 s."""
_BENCHMARKS = re.compile(r"(^|/)(test|bench)[^/]*\.py$")
_UNIT = re.compile(r"\s*([mun\N{MICRO SIGN}]?s|sec|seconds|[KMG]i?B)\b")  # after a printed number
_CELL = re.compile(r"[A-Za-z][\w ]*")  # of the first line of a table
_ADDRESS = re.compile(r"https?://\S+")
_README = re.compile(r"(?:.*/)?README[^/]*", re.IGNORECASE)
_TYPED = re.compile(r"(?m)^[ \t$>`]*python3? +(?:-m +([\w.]+)|(?:\./)?([\w./-]+\.py))([^\n`]*)")
_MOST_BENCHMARKS = 20
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
    benchmarks: tuple[str, ...] = ()  # functions of pytest-benchmark, where nothing trains
    units: Mapping[str, str] = field(default_factory=dict)  # of what a script of benchmarks prints
    cwd: str = ""  # folder in which its users type the command

    @property
    def has_steps(self) -> bool:
        """Return True if it has steps of an optimiser, which are measured from outside."""
        return bool(self.preload) and not self.units

    @property
    def task(self) -> str:
        """Return its tables of suite.toml."""
        if self.benchmarks:
            return self._benchmarks
        lines = [*self._measured(self.units)]
        judged = {n: better for n, better in self.metrics.items() if n not in self.units}
        for name, direction in judged.items():
            lines += [f'[metrics."{name}"]', f'direction = "{direction}"', 'floor = "2%"', ""]
        epochs = any("<epoch>" in pattern for pattern in self.patterns) or not self.units
        for name, direction in [*judged.items()][:epochs]:  # how fast it converges
            lines += [f'[metrics."{name[:59]}_area"]', f'summary = "area of {name}"']
            lines += [f'direction = "{direction}"', 'floor = "5%"', ""]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", PurePosixPath(self.script).stem)
        lines += ["[[task]]", f'name = "{name}"']
        lines += [f"command = {json.dumps(self.command)}"]
        lines += [f'cwd = "{self.cwd}"   # where the command is typed'] * bool(self.cwd)
        if self.params:
            params = ", ".join(f"{name} = {value}" for name, value in self.params.items())
            lines += [f"params = {{ {params} }}"]
        if self.stops:
            lines += [f"stop_after = {_STEPS}   # steps of its optimiser; no option makes it short"]
        if self.patterns:
            lines += ["pattern = [   # of what it prints; each named group is a metric"]
            lines += [*(f"  '{pattern}'," for pattern in self.patterns), "]"]
        seeds = "[0]  # no option of the script sets one"
        if "{seed}" in self.command or not judged:
            seeds = "[0, 1, 2, 3, 4]"
        lines += [f"seeds = {seeds}"]
        return "\n".join(lines) + "\n"

    @property
    def _benchmarks(self) -> str:
        patterns = [
            rf"  '\b{function} (?P<{name}>\S+)',"
            for name, function in zip(self.metrics, self.benchmarks, strict=True)
        ]
        lines = [
            *self._measured(dict.fromkeys(self.metrics, "s")),
            "[[task]]",
            'name = "benchmarks"',
            f"commands.measure = {json.dumps(self.command)}",
        ]
        lines += ['commands.report = "{python} {suite}/benchmarks.py {out}/benchmarks.json"']
        return "\n".join([*lines, "pattern = [", *patterns, "]", "seeds = 3"]) + "\n"

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
    its root, one that can import the modules it needs before others; of its benchmarks, where
    nothing trains; None where there are none either."""
    names = [*names]
    packages: dict[str, set[str]] = {}  # folder -> the packages in it
    for match in filter(None, map(_PACKAGE.fullmatch, names)):
        packages.setdefault(match[1] or ".", set()).add(match[2])
    nearest = sorted((n for n in names if _counts(n)), key=lambda n: (n.count("/"), n))[:_MOST]
    sources = [source for name in nearest if (source := _read(root, name)) is not None]
    scores = {source: source.score(source.roots(packages)) for source in sources}
    likely = sorted((s for s in sources if scores[s] > 0), key=lambda s: -scores[s])
    if not likely:
        return _of_benchmarks(root, names)
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
    options = {o: min(_SMALL[o], best.options[o] or _SMALL[o]) for o in best.options if o in _SMALL}
    options = dict([*options.items()][:1])
    adapter = _ADAPTERS.get(best.library)
    script = f"{{tree}}/{best.name}"
    script = script if _PLAIN.fullmatch(best.name) else shlex.quote(script)
    words = [f"{best.spelling[name]}{{{name}}}" for name in options]
    cwd, module, typed = _typed(root, names, best)
    if best.required:
        words = [*map(shlex.quote, typed), *words]
    if module and not adapter:
        script = f"-m {module}"
    if adapter and not options:  # the adapter ends the training
        options, script = {"epochs": _EPOCHS}, f"--epochs {{epochs}} {script}"
    words = ["{python}", *([f"-m {adapter}"] if adapter else []), script, *words, *best.seed()]
    if "output_dir" in best.options:  # else it writes into the checkout
        words += [f"{best.spelling['output_dir']}{{out}}"]
    logged = [n for s in (sources if adapter else [best]) for n in s.logged]
    if adapter and "fit" in best.called and not best.validates:
        logged = [n for n in logged if not _VALIDATION.intersection(_words(n))]
    printed = {} if logged else best.printed()
    if not logged and not _judged([*printed]):  # its loop is a module of the repository
        for source in sources:
            printed |= source.printed() if source.called >= _LOOP else {}
    metrics = _judged([*logged, *printed])
    torch = bool(adapter) or any("torch" in source.imports for source in sources)
    preload = [*(_TORCH if torch else ()), *([best.library] if adapter else []), *best.slow]
    units = {} if torch else dict(_MEASURED)  # there is no optimiser of torch to time
    metrics |= dict.fromkeys(units, "lower")
    stops = torch and not adapter and not options
    if stops:  # what its end alone reports would be missing
        early = [n for n in (*logged, *printed) if not _LATE.intersection(_words(n))]
        lines = {best.lines.get(n, n) for n in _judged(early)}  # others of a line are as early
        early = [n for n in (*logged, *printed) if best.lines.get(n, n) in lines]
        metrics = _judged(early) or metrics
    return TaskProposal(
        best.name, best.library or ("a fit" if best.fits else "a training loop"),
        " ".join(words), options,
        tuple(text for name, text in printed.items() if name in (*metrics, "epoch")), metrics,
        tuple(preload), stops, tuple(roots), units=units, cwd=cwd,
    )  # fmt: skip


def _typed(root: Path, names: Iterable[str], source: _Source) -> tuple[str, str, list[str]]:
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


def _of_benchmarks(root: Path, names: Iterable[str]) -> TaskProposal | None:
    """Return a task that runs the benchmarks of the repository: tests that take pytest-benchmark's
    fixture, or else a script that prints times or sizes."""
    named = sorted(n for n in names if _BENCHMARKS.search(n) and _can_be_named(n))[:_MOST]
    sources = [source for name in named if (source := _read(root, name)) is not None]
    functions = [name for source in sources for name in source.benchmarks]
    files = [source.name for source in sources if source.benchmarks]
    functions = [*dict.fromkeys(functions)][:_MOST_BENCHMARKS]
    if not functions:
        return next(filter(None, map(_of_script, sources)), None)
    words = ["{python} -m pytest -q --benchmark-only --benchmark-json {out}/benchmarks.json"]
    words += map(shlex.quote, files)
    metrics = {f"{name.removeprefix('test_')}_time": "lower" for name in functions}
    return TaskProposal(
        files[0], "pytest-benchmark", " ".join(words), {}, (), metrics, (), False, (),
        tuple(functions),
    )  # fmt: skip


def _of_script(source: _Source) -> TaskProposal | None:
    """Return a task that runs a script of benchmarks; None for one that prints no time or size, or
    that cannot be run without a word."""
    printed = source.printed()
    units = {name: source.units[name] for name in printed if name in source.units}
    if not units or not source.runs or source.required:
        return None
    units |= _MEASURED
    return TaskProposal(
        source.name, "a benchmark", f"{{python}} {{tree}}/{source.name}", {},
        tuple(text for name, text in printed.items() if name in units),
        dict.fromkeys(units, "lower"), ("torch",) if "torch" in source.imports else (), False, (),
        units=units,
    )  # fmt: skip


def _judged(names: Sequence[str]) -> dict[str, str]:
    """Return which of these metrics are worth watching, with the direction that is better."""
    metrics = {}
    for name in filter(METRIC.fullmatch, dict.fromkeys(names)):
        words = _words(name)
        if words & (_LOWER | _HIGHER):
            metrics[name] = "lower" if words & _LOWER else "higher"
    if not metrics:  # a column `valid`, say: of a loss
        metrics = {n: "lower" for n in names if METRIC.fullmatch(n) and _words(n) <= _VALIDATION}
    of_validation = [n for n in metrics if _VALIDATION & _words(n)]
    return {name: metrics[name] for name in (of_validation or [*metrics])[:_MOST_METRICS]}


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _counts(name: str) -> bool:
    """Return True for Python that is part of the product, and can be named in a command."""
    return name.endswith(".py") and not _ELSEWHERE.search(name) and _can_be_named(name)


def _can_be_named(name: str) -> bool:
    """Return False for a name that a command would take for a placeholder."""
    return not {*"{}"} & {*name}


def _read(root: Path, name: str) -> _Source | None:
    """Return a file's source; None where it cannot be read or is too large. What Python would warn
    of in it is not said."""
    with (
        warnings.catch_warnings(action="ignore"),
        suppress(OSError, ValueError, SyntaxError, RecursionError),
    ):
        path = root / name
        if path.stat().st_size <= _LARGEST:
            return _Source(name, ast.parse(path.read_bytes()))
    return None


class _Source:
    """What the text of a Python file tells."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        modules: list[str] = []
        self.calls: list[tuple[str, ast.Call]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.append(node.module)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                function = node.func
                called = function.id if isinstance(function, ast.Name) else function.attr
                self.calls.append((called, node))
        self.imports = {name.partition(".")[0] for name in modules}
        self.needs = {*_imported(tree)} - sys.stdlib_module_names
        self.slow = sorted({name for name in modules if name.partition(".")[0] in _SLOW})
        self.called = {called for called, _ in self.calls}
        self.spelling: dict[str, str] = {}  # name of an option -> what is typed before its value
        self.options: dict[str, int | None] = {}  # name -> default
        self.required = 0
        self.units: dict[str, str] = {}  # of the numbers that it prints
        self.lines: dict[str, int] = {}  # name of a number -> the line that first prints it
        for called, node in self.calls:
            if called in ("add_argument", "option", "argument"):
                self._add_option(node)
            elif called in _ARGUMENT_PARSERS:  # it has an option for each of TrainingArguments
                self.options |= {"num_train_epochs": None, "seed": None, "output_dir": None}
                self.spelling |= {name: f"--{name} " for name in self.options}

    def _add_option(self, node: ast.Call) -> None:
        flags = [text for word in node.args if isinstance(text := _constant(word), str)]
        keywords = {word.arg: _constant(word.value) for word in node.keywords}
        typed = next((flag[2:] for flag in flags if flag.startswith("--")), "")
        self.required += bool(keywords.get("required")) or (
            not typed
            and not any(flag.startswith("-") for flag in flags)
            and "nargs" not in keywords
        )
        default = keywords.get("default")
        name = typed.replace("-", "_")
        self.spelling[name] = f"--{typed} "
        self.options[name] = default if isinstance(default, int) else None

    @property
    def benchmarks(self) -> list[str]:
        """Return its test functions that measure something by pytest-benchmark."""
        return [
            node.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            if any(word.arg == "benchmark" for word in node.args.args)
        ]

    @cached_property
    def overrides(self) -> str | None:
        """Return what its users type before KEY=VALUE, where it takes such words apart itself; None
        where it does not."""
        if not any(called in ("split", "partition") and any(_constant(w) == "=" for w in node.args)
                   for called, node in self.calls):  # fmt: skip
            return None
        return "--" if any(_constant(n) == "--" for n in ast.walk(self.tree)) else ""  # type: ignore[arg-type]

    def take_settings(self, prefix: str) -> None:
        """Add the settings that it gives a value (`config.system.seed = 1`, or `max_iters = 9`) to
        its options, as KEY=VALUE changes them."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                target = node.targets[0]
                path = ast.unparse(target)
                key = path.partition(".")[2] if isinstance(target, ast.Attribute) else path
                name, value = key.rpartition(".")[2], node.value.value
                if isinstance(value, int) and (name in _SMALL or name == "seed"):
                    self.options[name], self.spelling[name] = value, f"{prefix}{key}="

    def take_yaml(self, path: Path) -> None:
        """Add the settings of a YAML file to its options, as KEY.KEY=VALUE changes them."""
        parents: list[tuple[int, str]] = []  # indentation and name of the tables around a line
        with suppress(OSError, ValueError):
            for match in filter(None, map(_SETTING.fullmatch, path.read_text().splitlines())):
                indent, name, value = len(match[1]), match[2], match[3]
                parents = [(i, n) for i, n in parents if i < indent]
                if value is None:
                    parents.append((indent, name))
                elif name in _SMALL or name == "seed":
                    key = ".".join([*(n for _, n in parents), name])
                    self.options[name], self.spelling[name] = int(value), f"{key}="

    @cached_property
    def library(self) -> str:
        """Return the module whose loop it trains by; "" for its own."""
        for name, (method, module) in _LIBRARIES.items():
            if name in self.imports and method in self.called:
                return module
        return ""

    @property
    def fits(self) -> bool:
        """Return True if it fits a model, in a call, and prints how good that is."""
        return (
            not self.called >= _LOOP and "fit" in self.called and bool(_judged([*self.printed()]))
        )

    @property
    def runs(self) -> bool:
        """Return True for a script: it has a guard of `__main__`, or a loop or call of its own."""
        top = [node for node in self.tree.body if isinstance(node, ast.If | ast.For | ast.While)]
        calls = [
            n for n in self.tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
        ]
        return bool(top or calls)

    def roots(self, packages: Mapping[str, set[str]]) -> list[str]:
        """Return the folders above it (and `src` in them) with packages that it imports."""
        above = [str(folder) for folder in PurePosixPath(self.name).parents]
        beside = [*above, *(str(PurePosixPath(folder, "src")) for folder in above)]
        return [f for f in dict.fromkeys(beside) if self.imports & packages.get(f, set())]

    def score(self, roots: Sequence[str]) -> int:
        """Return how likely it is a training to watch; 0 or less for none. `roots` has folders of
        packages of the repository that it imports."""
        stem, folders = PurePosixPath(self.name).stem.lower(), PurePosixPath(self.name).parts[:-1]
        loop = self.called >= _LOOP or bool(self.library)
        uses_own = bool(roots)
        named = "train" in stem
        trains = named or "train" in self.called
        if not self.runs or not (loop or self.fits or (uses_own and trains)):
            return 0
        downloads = self.called & _DOWNLOADS or any(
            (isinstance(node, ast.keyword) and node.arg == "download")
            or (isinstance(node, ast.Constant) and _ADDRESS.fullmatch(str(node.value)))
            for node in ast.walk(self.tree)
        )
        likely = 6 + 4 * loop + 2 * uses_own + 2 * named
        likely += any(folder.startswith("example") for folder in folders) - len(folders)
        likely += bool(self.options.keys() & _SMALL) + bool(self.seed())
        return likely - 4 * bool(downloads) - 3 * self.required

    def seed(self) -> list[str]:
        """Return the words that hand the seed on."""
        if "seed" in self.options:
            return [f"{self.spelling['seed']}{{seed}}"]
        for node in ast.walk(self.tree):  # `sys.argv[1]`, within a call or name of a seed
            if isinstance(node, ast.Call | ast.Assign):
                text = ast.unparse(node)
                if len(text) < 200 and "sys.argv[1]" in text and "seed" in text.lower():
                    return ["{seed}"]
        return []

    @property
    def logged(self) -> list[str]:
        """Return the metrics that it reports by celedger, or by its library's logger."""
        names: list[str] = []
        for called, node in self.calls:
            if called == "log" and "celedger" in self.imports:
                names += [word.arg for word in node.keywords if word.arg not in (None, "epoch")]
            elif called == "log" and self.library != "transformers.trainer" and node.args:
                names += [n for n in (_constant(node.args[0]),) if isinstance(n, str)]
        if self.library == "transformers.trainer":  # its trainer may have a class of its own
            words = {word.arg for _, node in self.calls for word in node.keywords}
            names.append("eval_loss" if "eval_dataset" in words else "loss")
        return names

    @property
    def validates(self) -> bool:
        """Return False if it hands Lightning's `fit` one loader, of the training, alone."""
        text = ast.unparse(self.tree)
        for called, node in self.calls:
            data = [*node.args[1:], *(word.value for word in node.keywords)]
            loader = rf"\b{re.escape(ast.unparse(data[0]))} = [\w.]*DataLoader\(" if data else ""
            if called == "fit" and (len(data) != 1 or not re.search(loader, text)):
                return True
        return "def val_dataloader" in text

    def printed(self) -> dict[str, str]:
        """Return the numbers that it prints with a name, each with a pattern that finds it."""
        patterns: dict[str, str] = {}
        rows: dict[tuple[str, ...], None] = {}  # what is printed, parted by `|`; 0 for a value
        for called, node in self.calls:
            if called not in ("print", "info", "write", "echo"):
                continue
            text = name = ""
            written = node.args
            if len(written) > 1 and "%" in str(_constant(written[0])):  # as `logging` has it
                written = [ast.BinOp(written[0], ast.Mod(), written[1])]
            parts = [part for word in written for part in [*_parts(word), " "]]
            for part in parts:
                if part is not None:
                    if name and not text and (unit := _UNIT.match(part)):
                        self.units[name] = unit[1]
                    text += part
                    continue
                label = _LABEL.search(text)
                text = name = ""
                if label is not None:
                    words = re.split(r"[^A-Za-z0-9]+", label[1].lower())
                    name = "_".join(filter(None, words))
                    spaced = " +".join(map(re.escape, label[1].split()))
                    self.lines.setdefault(name, node.lineno)
                    patterns.setdefault(
                        name,
                        rf"(?<![A-Za-z] )\b{spaced}{_QUOTE * bool(label[2])}\s*[:=]?\s*"
                        rf"(?P<{name}>{_NUMBER})",
                    )
            cells = "".join("0" if part is None else part for part in parts).split("|")
            rows[tuple(cell.strip() for cell in cells)] = None
        return patterns | _of_table(rows)


def _of_table(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return by the names of its columns the patterns of a table that is printed as `| 3 | 0.5 |`
    below a line `| epoch | loss |`; {} without one."""
    values = {len(row) for row in rows if len(row) > 2 and {*row} <= {"", "0"}}
    patterns = {}
    for row in rows:
        if len(row) in values and all(map(_CELL.fullmatch, filter(None, row))):
            for i, cell in enumerate(row):
                name = "_".join(cell.lower().split())
                before = rf"(?:[^|]*\|){{{i}}}"
                if name:
                    patterns[name] = rf"^{before}\s*(?P<{name}>{_NUMBER})\s*(?:\||$)"
    return patterns


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _parts(node: ast.expr) -> Iterator[str | None]:
    """Yield what an argument of `print` writes: text, and None for a value."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _parts(value) if isinstance(value, ast.Constant) else (None,)
        case ast.Dict(keys=keys) | ast.Call(args=[ast.Dict(keys=keys), *_]):  # `json.dumps`, say
            for key in keys:
                yield from (f"'{key and _constant(key)}': ", None, ", ")
        case (
            ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod())
            | ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"))
        ):
            first, *others = _VALUE.split(text)
            yield first
            for other in others:
                yield None
                yield other
        case _:
            yield None


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
        if proposal.benchmarks:
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
        with suppress(OSError, ValueError, SyntaxError):  # the training will say so
            names.update(_imported(ast.parse(script.read_bytes())))
    local_modules = (
        {path.stem for path in scripts} | {path.parent.name for path in scripts} | {"celedger"}
    )
    return tuple(
        sorted(
            name
            for name in names - local_modules - sys.stdlib_module_names
            if not any((root / name).is_dir() or (root / f"{name}.py").exists() for root in roots)
        )
    )


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the top-level names that code imports, but for those that it tries or chooses."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module.partition(".")[0]
        elif not isinstance(child, ast.Try | ast.If):
            yield from _imported(child)
