"""The house of docs/architecture.md, enforced on every import, lazy ones too."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("architecture")  # one process parses all modules

PACKAGE = Path(__file__).resolve().parent.parent / "celedger"

# The core, lower rooms first. A module may import its own room and rooms above it in this list.
CORE = [
    "base",
    "stats",
    "repo", "suite", "system",
    "ledger",
    "trial", "child",
    "judge",
    "views",
    "service",
    "cli",
]  # fmt: skip
# A wing may import the core, and no other wing; the core imports no wing.
WINGS = ["lab", "engines", "page"]
# Within the lab. The probes run in the training, and import the child side alone.
LAB = ["probes", "diagnose", "views", "verbs"]
OWNERS = {
    "subprocess": ("system", "repo"),
    "sqlite3": ("ledger",),
    "sqlite_utils": ("ledger",),
    "torch": ("child", "lab/probes"),
    "pynvml": ("system",),
    "matplotlib": ("views", "lab/views", "page"),
    "jinja2": ("page",),
    "typer": ("cli", "lab/verbs", "page"),
    "rich": ("cli",),
    "git": ("repo",),
    "apprise": ("service",),
    "ray": ("engines",),
}
# What a training imports by itself: only the module that is for it may import it, too.
CHILD_SIDE = {
    "torch.py": ("torch", "numpy"),
    "torch_steps.py": ("torch",),
    "probes": ("torch",),  # in diagnostic runs only, once the training has torch
    "lightning.py": ("lightning", "pytorch_lightning"),
    "huggingface.py": ("transformers",),
}
CHILD_LIBRARIES = {"torch", "lightning", "pytorch_lightning", "transformers"}
MAX_LINES = 700


@cache
def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_shipped" not in p.parts)


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return the imports and calls of a module. Each module is parsed once for all tests."""
    nodes = ast.walk(ast.parse(path.read_text(), str(path)))
    return [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom | ast.Call)]


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Every dotted name imported anywhere in the module, relative imports resolved."""
    package = ["celedger", *path.relative_to(PACKAGE).parts[:-1]]
    names = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names += [(node.lineno, f"{stem}.{alias.name}") for alias in node.names]
    return names


def allowed(here: str, there: str) -> bool:
    """Return True if a module of one room may import one of another."""
    if here in CORE:
        return there in CORE and CORE.index(there) <= CORE.index(here)
    return there in CORE or there == here


def test_modules_import_only_from_lower_rooms_and_the_core_from_no_wing() -> None:
    broken = []
    for path in modules():
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        for line, name in imported(path):
            parts = name.split(".")
            if parts[0] != "celedger" or len(parts) < 2 or parts[1] not in CORE + WINGS:
                continue
            if not allowed(here, parts[1]):
                broken.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert not broken, "\n".join(broken)


def test_no_core_module_names_a_wing() -> None:
    """Entry points alone do, in pyproject.toml."""
    wing = re.compile(rf"celedger[./]({'|'.join(WINGS)})[./]\w")
    named = [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if room(path) in CORE and wing.search(path.read_text())
    ]
    assert not named


def test_the_lab_is_in_order() -> None:
    broken = []
    for path in (PACKAGE / "lab").glob("*/*.py"):
        for line, name in imported(path):
            _, _, there, *_ = [*name.split("."), "", ""]
            if not name.startswith("celedger.lab.") or there not in LAB:
                continue
            here = path.parent.name
            if LAB.index(there) > LAB.index(here) or (there == "probes" != here):
                broken.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert not broken, "\n".join(broken)


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {room(p) for p in modules()} - {"__init__", "__main__"}
    assert rooms <= set(CORE + WINGS), rooms - set(CORE + WINGS)


def test_each_library_has_a_single_owner() -> None:
    broken = []
    for path in modules():
        part = "/".join(path.relative_to(PACKAGE).parts[:2])
        for line, name in imported(path):
            owners = OWNERS.get(name.split(".")[0])
            if owners is not None and not {room(path), part} & {*owners}:
                broken.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert not broken, "\n".join(broken)


def test_every_process_begins_in_one_place() -> None:
    """The supervisor and the child side run inside of what was started; git is asked by repo/."""
    starting = re.compile(
        r"popen|spawn|posix_spawnp?|exec[lv]p?e?|fork|forkpty|check_(output|call)"
    )
    callers: dict[str, set[str]] = {}
    for path in modules():
        if room(path) == "child" or path.parent.name == "probes" or path.name == "supervisor.py":
            continue
        file = str(path.relative_to(PACKAGE))
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                shell = name in ("system", "popen", "run") and ast.unparse(node.func) in (
                    "os.system", "os.popen", "subprocess.run",
                )  # fmt: skip
                if shell or starting.fullmatch(name.lower()):
                    callers.setdefault(name, set()).add(file)
    assert callers == {
        "Popen": {"system/process.py", "repo/plumbing.py"},  # the latter: git alone
        "spawn": {"system/process.py", "system/warm.py", "service/allow.py"},
        # What a launcher forks, which `Running.start` asks for.
        "fork": {"system/process.py", "system/warm.py"},
    }


def test_the_worker_asks_before_it_makes_a_bench() -> None:
    """All trials run on a bench, and each is prepared there: both ask what a person allowed."""
    for file, function in (("trial/workplace.py", "local_bench"), ("trial/station.py", "prepare")):
        nodes = ast.walk(ast.parse((PACKAGE / file).read_text()))
        body = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == function)
        lines = list(map(ast.unparse, body.body))
        asked = next(i for i, line in enumerate(lines) if "gate.review(" in line)
        assert not any(re.search("describe|checkout|copy|snapshot", x) for x in lines[1:asked])


def test_torch_is_imported_by_the_harness_and_the_adapters_alone() -> None:
    users = {
        str(p.relative_to(PACKAGE))
        for p in modules()
        for _, name in imported(p)
        if name.split(".")[0] in CHILD_LIBRARIES
    }
    adapters = {f"child/{name}" for name in CHILD_SIDE}
    assert {user for user in users if not user.startswith("lab/probes/")} <= adapters, users


def test_a_view_cannot_write_the_ledger() -> None:
    broken = [
        f"{p.relative_to(PACKAGE)}:{line} imports {name}"
        for p in modules()
        if room(p) in ("views", "page") or p.parent.name == "views"
        for line, name in imported(p)
        if name.startswith(
            ("celedger.ledger.write", "celedger.ledger.write", "celedger.ledger.Ledger")
        )
    ]
    assert not broken, "\n".join(broken)


def test_the_child_side_needs_only_the_standard_library() -> None:
    import sys

    broken = []
    for path in [*(PACKAGE / "child").rglob("*.py"), *(PACKAGE / "lab" / "probes").glob("*.py")]:
        key = "probes" if path.parent.name == "probes" else path.name
        for line, name in imported(path):
            top = name.split(".")[0]
            if top in CHILD_SIDE.get(key, ()):
                continue
            if top == "celedger":
                if not name.startswith(("celedger.child", f"celedger.lab.{key}.")):
                    broken.append(f"{path.name}:{line} imports {name}")
            elif top not in sys.stdlib_module_names:
                broken.append(f"{path.name}:{line} imports {name}")
    assert not broken, "\n".join(broken)


def test_there_is_no_import_cycle() -> None:
    names = {
        ".".join(["celedger", *p.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): p
        for p in modules()
    }

    def targets(path: Path) -> set[str]:
        found = set()
        for _, name in imported(path):
            while name and name not in names:
                name = name.rpartition(".")[0]
            if name:
                found.add(name)
        return found

    graph = {name: targets(path) - {name} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            pytest.fail("cycle: " + " -> ".join([*trail[trail.index(name) :], name]))
        if name in done:
            return
        for target in sorted(graph[name]):
            # A package's __init__ that re-exports its modules, which never import it back.
            visit(target, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_no_module_outgrows_its_reader() -> None:
    lengths = {p.relative_to(PACKAGE): len(p.read_text().splitlines()) for p in modules()}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def test_every_tracked_file_has_a_plain_name_and_content() -> None:
    # A slip at the shell once committed an empty file that was named like a line of code.
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    assert [name for name in listed if not re.fullmatch(r"[\w./@+-]+", name)] == []
    at_top = [root / name for name in listed if "/" not in name]
    assert [path.name for path in at_top if path.exists() and not path.stat().st_size] == []
