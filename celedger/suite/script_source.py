"""The text of a Python script: what it imports, calls, takes as options, prints and logs, and if it
trains something. Imports and runs nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath

from celedger.suite.loading import METRIC

_LARGEST = 1 << 18  # bytes of a source that is read
_LARGEST_NOTEBOOK = 1 << 23  # most of it pictures
_MAGIC = re.compile(r"(?m)^([ \t]*)(?:%+[A-Za-z]|!|[\w.]+\?+$).*")  # line of a notebook for IPython
_LOWER = frozenset({
    "loss", "error", "err", "mse", "rmse", "mae", "nll", "ppl", "perplexity", "bpc", "wer", "cer",
})  # fmt: skip
_RANKED = frozenset({"recall", "precision", "map", "mrr", "ndcg"})  # of no batch of a training
_HIGHER = _RANKED | {
    "accuracy", "acc", "f1", "auc", "roc", "r2", "bleu", "iou", "miou", "psnr", "ssim", "score",
    "reward",
}  # fmt: skip
VALIDATION = _RANKED | {"val", "valid", "validation", "test", "eval", "dev"}
LATE = VALIDATION | {"final", "best", "top"}
_MOST_METRICS = 3
STEPS, EPOCHS = 300, 5
SMALL = {  # options that say how long to train, and what a small training takes
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), EPOCHS),
    **dict.fromkeys(
        ("steps", "max_steps", "num_steps", "iters", "max_iters", "iterations", "num_batches"),
        STEPS,
    ),
}
LOOP = {"backward", "step"}  # what a loop of its own calls
_DOWNLOADS = frozenset({"load_dataset", "from_pretrained", "hf_hub_download", "urlretrieve"})
_WORD = r"[A-Za-z][\w/.@-]*"
_QUOTE = r"[\x22\x27]?"  # around a key of a printed dictionary; a literal string of TOML has none
_LABEL = re.compile(rf"({_WORD}(?: {_WORD}){{0,2}})({_QUOTE})\s*[:=]?\s*$")  # of a printed number
_NUMBER = r"[-+]?(?:\.?\d[-+.\w]*|nan\b|inf\b)"  # no word: a traceback has `loss = model(x)`
_VALUE = re.compile(r"%[-+0-9.]*[a-z]|\{[^{}]*\}")  # of a format
_SETTING = re.compile(r"( *)([\w-]+):(?: +(\d+))?\s*(?:#.*)?")  # of YAML: a number, or a table
_LIBRARIES = {  # what a script imports -> what it calls to train, and the module that does it
    "lightning": ("fit", "lightning.pytorch"),
    "pytorch_lightning": ("fit", "pytorch_lightning"),
    "transformers": ("train", "transformers.trainer"),
    "trl": ("train", "transformers.trainer"),
}
_ARGUMENT_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})
_SLOW = frozenset({"scipy", "sklearn", "torchvision"})
"""Libraries that take a second to import and start no thread: preloaded, too. A small training of
scikit-learn's digits takes .7 s of processor time instead of 2.5 s."""
_UNIT = re.compile(r"\s*([mun\N{MICRO SIGN}]?s|sec|seconds|[KMG]i?B)\b")  # after a printed number
_CELL = re.compile(r"[A-Za-z][\w ]*")  # of the first line of a table
_ADDRESS = re.compile(r"https?://\S+")


def judged_metrics(names: Sequence[str]) -> dict[str, str]:
    """Return which of these metrics are worth watching, with the direction that is better."""
    metrics = {}
    for name in filter(METRIC.fullmatch, dict.fromkeys(names)):
        words = words_of(name)
        if words & (_LOWER | _HIGHER):
            metrics[name] = "lower" if words & _LOWER else "higher"
    if not metrics:  # a column `valid`, say: of a loss
        metrics = {n: "lower" for n in names if METRIC.fullmatch(n) and words_of(n) <= VALIDATION}
    of_validation = [n for n in metrics if VALIDATION & words_of(n)]
    return {name: metrics[name] for name in (of_validation or [*metrics])[:_MOST_METRICS]}


def words_of(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def read_script(root: Path, name: str) -> ScriptSource | None:
    """Return a file's source, of a notebook the cells in Python; None where it cannot be read or is
    too large. What Python would warn of in it is not said."""
    is_notebook = name.endswith(".ipynb")
    with (
        warnings.catch_warnings(action="ignore"),
        suppress(OSError, ValueError, SyntaxError, RecursionError, LookupError, TypeError),
    ):
        path = root / name
        if path.stat().st_size > (_LARGEST_NOTEBOOK if is_notebook else _LARGEST):
            return None
        tree = ast.Module([], []) if is_notebook else ast.parse(path.read_bytes())
        for cell in json.loads(path.read_bytes())["cells"] if is_notebook else ():
            if cell["cell_type"] == "code":
                with suppress(SyntaxError):  # of another language
                    tree.body += ast.parse(_MAGIC.sub(r"\1pass", "".join(cell["source"]))).body
        return ScriptSource(name, tree)
    return None


def functions_that_train(sources: Iterable[ScriptSource]) -> set[str]:
    """Return the functions of the repository that have a loop of training, or call one of those."""
    calls: dict[str, set[str]] = {}
    for source in sources:
        for function in ast.walk(source.tree):
            if isinstance(function, ast.FunctionDef) and function.name not in LOOP:
                called = {_called(node) for node in ast.walk(function)}
                calls.setdefault(function.name, set()).update(called)
    trainers: set[str] = set()
    while more := {n for n, c in calls.items() if c >= LOOP or c & trainers} - trainers:
        trainers |= more
    return trainers


def _called(node: ast.AST) -> str:
    """Return the last name of what a call calls; "" for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        return node.func.id if isinstance(node.func, ast.Name) else node.func.attr
    return ""


class ScriptSource:
    """What the text of a Python file tells."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree, self.is_relative = name, tree, False
        self.is_notebook = name.endswith(".ipynb")
        modules: list[str] = []
        self.calls: list[tuple[str, ast.Call]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                self.is_relative |= node.level > 0
                modules += [node.module] if node.module and not node.level else []
            elif isinstance(node, ast.Call) and (called := _called(node)):
                self.calls.append((called, node))
        self.imports = {name.partition(".")[0] for name in modules}
        self.needs = {*imported_modules(tree)} - sys.stdlib_module_names
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
    def benchmarks(self) -> dict[str, list[str]]:
        """Return its test functions that measure something by pytest-benchmark, with the keys of
        `benchmark.extra_info` that each sets."""
        return {
            node.name: re.findall(r"\.extra_info\[['\"](\w+)['\"]\] = ", ast.unparse(node))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            if any(word.arg == "benchmark" for word in node.args.args)
        }

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
                if isinstance(value, int) and (name in SMALL or name == "seed"):
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
                elif name in SMALL or name == "seed":
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
        return "fit" in self.called and not self.called >= LOOP and self.measures

    @cached_property
    def measures(self) -> bool:
        """Return True if it prints a metric."""
        return bool(judged_metrics([*self.printed()]))

    @property
    def is_example(self) -> bool:
        return any(f.startswith("example") for f in PurePosixPath(self.name).parts[:-1])

    @property
    def runs(self) -> bool:
        """Return True for a script: it has a guard of `__main__`, or a loop or call of its own, not
        only one of a module (`torch.manual_seed(0)`) that is handed no function."""
        body = self.tree.body
        modules = {a.asname or a.name for n in body if isinstance(n, ast.Import) for a in n.names}
        functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        calls = [n.value for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
        return any(isinstance(node, ast.If | ast.For | ast.While) for node in body) or any(
            "(" in (name := ast.unparse(call.func))
            or name.partition(".")[0] not in modules
            or functions & {ast.unparse(word) for word in call.args}
            for call in calls
        )

    def roots(self, packages: Mapping[str, set[str]]) -> list[str]:
        """Return the folders above it (and `src` in them) with packages that it imports."""
        above = [str(folder) for folder in PurePosixPath(self.name).parents]
        beside = [*above, *(str(PurePosixPath(folder, "src")) for folder in above)]
        own = [self.module(packages)[0]] * self.is_relative
        return own or [f for f in dict.fromkeys(beside) if self.imports & packages.get(f, set())]

    def module(self, packages: Mapping[str, set[str]]) -> tuple[str, str]:
        """Return the folder of its outermost package, and its name as a module there."""
        parts = PurePosixPath(self.name).with_suffix("").parts
        for folder in reversed(PurePosixPath(self.name).parents):
            depth = len(folder.parts)
            if parts[depth] in packages.get(str(folder), ()):
                return str(folder), ".".join(parts[depth:])
        return ".", ".".join(parts)

    def score(self, roots: Sequence[str], trainers: Set[str] = frozenset()) -> int:
        """Return how likely it is a training to watch; 0 or less for none. `roots` has folders of
        packages of the repository that it imports, `trainers` functions that train."""
        stem = PurePosixPath(self.name).stem.lower()
        loop = self.called >= LOOP or bool(self.library)
        uses_own = bool(roots)
        named = "train" in stem
        trains = named or "train" in self.called or bool(self.called & trainers)
        if not self.runs or not (loop or self.fits or (uses_own and trains)):
            return 0
        likely = 6 + 4 * loop + 2 * uses_own + 2 * named
        likely += self.is_example - self.name.count("/")
        likely += bool(self.options.keys() & SMALL) + bool(self.seed())
        likely -= 4 * self.is_notebook  # takes no options
        return likely - 4 * self.downloads - 3 * self.required

    @property
    def downloads(self) -> bool:
        return bool(self.called & _DOWNLOADS) or any(
            (isinstance(node, ast.keyword) and node.arg == "download")
            or (isinstance(node, ast.Constant) and _ADDRESS.fullmatch(str(node.value)))
            for node in ast.walk(self.tree)
        )

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
            names += self._evaluated()
        return names

    def _evaluated(self) -> Iterator[str]:
        """Yield the names by which a trainer logs what its `compute_metrics` returns."""
        words = [word for _, node in self.calls for word in node.keywords]
        given = {ast.unparse(w.value) for w in words if w.arg == "compute_metrics"}
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef) and function.name in given:
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
                        keys = (key and _constant(key) for key in node.value.keys)
                        yield from (f"eval_{str(k).removeprefix('eval_')}" for k in keys if k)

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
        rows: dict[tuple[str, ...], bool] = {}  # what is printed; whether `|` parts it, not spaces
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
            line = "".join("0" if part is None else part for part in parts)
            cells = line.split("|") if (piped := "|" in line) else line.split()
            rows[tuple(cell.strip() for cell in cells)] = piped
        return patterns | _of_table(rows)


def _of_table(rows: Mapping[tuple[str, ...], bool]) -> dict[str, str]:
    """Return by the names of its columns the patterns of a table that is printed as `| 3 | 0.5 |`
    below a line `| epoch | loss |`, or as `3 0.5` below `epoch loss`; {} without one. A value is
    "0" in its row."""
    values = {(len(r), piped) for r, piped in rows.items() if len(r) > 1 and {*r} <= {"", "0"}}
    patterns = {}
    for row, piped in rows.items():
        if (len(row), piped) in values and all(map(_CELL.fullmatch, filter(None, row))):
            for i, cell in enumerate(row):
                name = "_".join(cell.lower().split())
                before = rf"^(?:[^|]*\|){{{i}}}\s*"
                after = r"\s*(?:\||$)"
                if not piped:
                    before = rf"^\s*(?:{_NUMBER}\s+){{{i}}}"
                    after = rf"(?:\s+{_NUMBER}){{{len(row) - i - 1}}}\s*$"
                if name:
                    patterns[name] = rf"{before}(?P<{name}>{_NUMBER}){after}"
    return patterns


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _parts(node: ast.expr) -> Iterator[str | None]:
    """Yield what an argument of `print` writes: text, and None for a value."""
    match node:
        case (
            ast.Constant(value=str(text)) | ast.FormattedValue(value=ast.Constant(value=str(text)))
        ):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _parts(value)
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


def imported_modules(node: ast.AST) -> Iterator[str]:
    """Yield the top-level names that code imports, but for those that it tries or chooses."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module.partition(".")[0]
        elif not isinstance(child, ast.Try | ast.If):
            yield from imported_modules(child)
