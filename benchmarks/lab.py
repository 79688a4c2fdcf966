"""Does celedger name what was planted in trainings as people write them? Each fault of
lab/NAME.toml is committed on top of lab/NAME.py, together with a refactor of the same training that
touches other lines, and explained against its parent; watched or profiled, where it is of that
kind. A refactor alone must give no finding. No probe may change a training: it ends as without one
and prints the same figures.

    python benchmarks/lab.py                        # everything
    python benchmarks/lab.py --only unet gan        # two trainings
    python benchmarks/lab.py --only unet/skip-order # one edit, with what celedger says
    python benchmarks/lab.py --each 1               # the first fault and refactor of each training

A fault counts as right where the first hunk shown is the planted one, and module and tensor are as
planted where the TOML names them. Exits 1 below 95 % right, at any finding where nothing was
planted, or at any training that a probe changed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from celedger import suite as suites
from celedger.base import config
from celedger.base.errors import CannotJudge, CeledgerError
from celedger.base.model import Commit, OutcomeKind, Task
from celedger.lab.diagnose.explain import Explanation, Side, SideRunner, explain
from celedger.lab.diagnose.memory_growth import memory
from celedger.lab.diagnose.preflight import preflight
from celedger.lab.diagnose.probe_records import processes
from celedger.lab.diagnose.profile import profile
from celedger.lab.diagnose.trace import read
from celedger.lab.diagnose.watch import WatchReport, watch
from celedger.lab.views.explain import explanation_text
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial.diagnostic import EAGER, FAILED, Diagnostic, diagnose
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench
from celedger.trial.training_variables import child_copy
from celedger.trial.workplace import choose_tasks, local_bench

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "benchmarks" / "lab"
SUITE = """\
[suite]
name = "lab"
preload = []

[metrics.val_loss]
direction = "lower"
kind = "quality"

[[task]]
name = "{name}"
command = "{command}"
seeds = [0]
params = {{ epochs = {epochs} }}
timeout = "5m"
"""
SEED = 0
FIGURES = re.compile(r"^\W*epoch\b.*", re.MULTILINE)  # what each training prints


@dataclass(frozen=True)
class Edit:
    """`changes`: texts that each stand once in one file of the training, and what they become.
    `renamed`: texts that become others wherever they stand. `moved`: what goes to a file of its
    own. The other fields are of faults."""

    name: str
    changes: tuple[tuple[str, str], ...]
    renamed: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    verb: str = "explain"
    modules: tuple[str, ...] = ()  # of which one is named
    tensors: tuple[str, ...] = ()  # of which one is named
    expects: tuple[str, ...] = ()  # watchpoints or pieces of advice, of which one is given


class Training(NamedTuple):
    name: str
    command: str
    faults: tuple[Edit, ...]
    refactors: tuple[Edit, ...]
    epochs: tuple[int, int]  # usually, and to measure time and memory
    preload: tuple[str, ...] | None  # imported before its forks; None: each run starts cold
    missing: str  # why it cannot run here


class Row(NamedTuple):
    training: str
    kind: str  # fault, refactor or probe
    name: str
    ok: bool
    answer: str  # in a line
    sure: str = ""
    broken: str = ""  # how a probe changed the training
    seconds: float = 0.0


def training(name: str) -> Training:
    table = tomllib.loads((LAB / f"{name}.toml").read_text())
    command = table.get("command", f"{{python}} {name}.py --seed {{seed}} --epochs {{epochs}}")
    missing = "no compiler" if table.get("compiles") and not shutil.which("g++") else ""
    sides = [tuple(map(_edit, table[kind])) for kind in ("fault", "refactor")]
    epochs = tuple(table.get("epochs", (2, 10)))
    preload = None if table.get("cold") else tuple(table.get("preload", ()))
    return Training(name, command, *sides, epochs, preload, missing)


def _edit(table: dict[str, Any]) -> Edit:
    if "old" in table:
        table["changes"] = [[table.pop("old"), table.pop("new")]]
    changes = tuple((old, new) for old, new in table.pop("changes", ()))
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Edit(changes=changes, **lists)


# --- runs


class TrainingServer:
    """A process that has imported torch and `preload`, and trains in forks of itself."""

    def __init__(self, child: Path, preload: Sequence[str]) -> None:
        child = child_copy(child.parent, ROOT / "celedger" / "lab" / "probes")
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "lab_server.py"), child, *preload],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **EAGER},
        )  # fmt: skip

    def train(self, runner: SideRunner, side: Side, out: Path, seed: int, probe=None) -> Diagnostic:
        """Train as `diagnose` would; without a probe where there is none."""
        out.mkdir(parents=True)
        log, station = out / "log.txt", runner.bench.station
        station.prepare(side.commit, runner.task, {}, log)
        place = station.place(side.commit.sha, runner.task)
        ((_, argv),) = station.lines(runner.task, place, seed, out)
        environment = {"CELEDGER_PROBE": json.dumps(probe or {}), "CELEDGER_PROBE_OUT": str(out)}
        job = {
            "log": str(log), "tree": str(station.tree), "argv": argv[1:],
            "environment": environment,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        if (fault := out / FAILED).exists():
            raise CannotJudge(f"the probe failed: {fault.read_text()[-300:]}")
        kind = OutcomeKind.OK if status == 0 else OutcomeKind.FAILED
        message = log.read_text()[-300:] if status else ""
        return Diagnostic(out, log, kind, message)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class ParentOnce(SideRunner):
    """Runs the same parent once for all its edits: the first time, and once more to see whether
    it repeats itself. In forks of the server, where there is one."""

    def __init__(self, bench, task, folder, known, server):
        super().__init__(bench, task, folder, seed=SEED)
        self.known, self.count, self.server = known, Counter(), server

    def run(self, side, full, **more):
        if side.name != "parent":
            return self.train(side, full, more)
        key = (side.commit.sha, tuple(full), str(more))
        self.count[key] += 1
        key = (*key, self.count[key])
        if key not in self.known:
            self.known[key] = self.train(side, full, more)
        return self.known[key]

    def train(self, side, full, more):
        if self.server is None:
            return super().run(side, full, **more)
        self._runs += 1
        probe = {"kind": "trace", "full": sorted(full), "steps": self.steps, **more}
        out = self.folder / str(self._runs)
        done = self.server.train(self, side, out, self.seed, probe)
        return done, [read(folder) for folder in processes(done.out)]


# --- commits


def git(repo: Path, *words: str) -> str:
    person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", *person, *words], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()


def harmless_edits(folder: Path, draw: random.Random) -> None:
    """Edit up to three files beside the edit that counts."""
    files = sorted(folder.rglob("*.py"))
    for file in draw.sample(files, min(3, len(files))):
        text = file.read_text()
        kind = draw.randrange(3)
        if kind == 0:
            text = text.replace("import torch\n", "import torch  # 2.0 or later\n", 1)
        elif kind == 1:
            text += f"\n\ndef unused_{draw.randrange(100)}(x):\n    return x\n"
        else:
            text = text.replace("\nimport torch\n", "\n# A small training.\nimport torch\n", 1)
        file.write_text(text)


def apply(edit: Edit, folder: Path) -> None:
    """Edit the training's files. Raises ValueError where a text does not stand there once."""
    for old, new in edit.renamed.items():
        for path in folder.glob("*.py"):
            path.write_text(path.read_text().replace(old, new))
    for old, new in edit.changes:
        texts = {path: path.read_text() for path in sorted(folder.glob("*.py"))}
        if sum(text.count(old) for text in texts.values()) != 1:
            raise ValueError(f"{edit.name}: not there once: {old}")
        for path, text in texts.items():
            path.write_text(text.replace(old, new))
    if edit.moved:
        source = next(
            path for path in folder.glob("*.py") if edit.moved["from"] in path.read_text()
        )
        text = source.read_text()
        start, end = (text.index(edit.moved[key]) for key in ("from", "to"))
        target = folder / edit.moved["file"]
        target.write_text(edit.moved["header"] + text[start:end].rstrip() + "\n")
        source.write_text(text[:start] + text[end:])


def commit(repo: Path, training: Training, edit: Edit, kind: str) -> str:
    """Commit the edit on top of main; a fault among harmless edits. Return the commit's hash."""
    folder, draw = repo / "training", random.Random(f"{training.name}/{edit.name}")
    git(repo, "checkout", "-q", "main")
    if kind == "fault":
        refactors = [one for one in training.refactors if not one.moved]
        for refactor in draw.sample(refactors, len(refactors)):
            try:
                apply(refactor, folder)
                apply(edit, folder)
                break
            except ValueError:
                git(repo, "checkout", "-q", ".")
        else:
            apply(edit, folder)
        harmless_edits(folder, draw)
    else:
        apply(edit, folder)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", edit.name)
    sha = git(repo, "rev-parse", "HEAD")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    return sha


def repository(training: Training, place: Path) -> Path:
    """Make a repository with the training, its suite and one commit."""
    repo = place / "repo"
    (repo / "training").mkdir(parents=True)
    (repo / "suites" / "lab").mkdir(parents=True)
    shutil.copy(LAB / f"{training.name}.py", repo / "training")
    command = training.command.replace(f"{training.name}.py", f"training/{training.name}.py")
    text = SUITE.format(name=training.name, command=command, epochs=training.epochs[0])
    (repo / "suites" / "lab" / "suite.toml").write_text(text)
    (repo / "pyproject.toml").write_text('[tool.celedger]\nsuite = "lab"\n')
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "A training")
    return repo


@contextmanager
def opened(repo: Path) -> Iterator[tuple[Repository, Bench, Task]]:
    repository = Repository.open(repo)
    settings = config.load(repository.root, {}, worktree=repository.worktree, device="cpu")
    chosen = suites.load(suites.find(None, settings, repository.root))
    (task,) = choose_tasks(chosen, ())
    with (
        Ledger.open(repo / "ledger.db", create=True) as ledger,
        local_bench(
            repository, ledger, settings, chosen, [task],
            gate=Gate.of(repository, attended=True),
        ) as bench,
    ):  # fmt: skip
        yield repository, bench, task


# --- judging


def is_planted(edit: Edit, lines: Sequence[str]) -> bool:
    """Return True if a hunk has a line of the edit."""
    for old, new in edit.changes:
        before, after = old.splitlines(), new.splitlines()
        # A piece of a line counts where the line of the hunk has it.
        gone = [text.strip() for text in before if text not in after and text.strip()]
        fresh = [text.strip() for text in after if text not in before and text.strip()]
        for line in lines:
            pieces = gone if line.startswith("-") else fresh
            if any(piece in line for piece in pieces):
                return True
    return False


def wrong_explanation(edit: Edit, answer: Explanation) -> list[str]:
    """Return what is wrong with the answer."""
    finding = answer.finding
    if answer.verdict != "difference" or finding is None:
        return [answer.verdict]
    wrong = []
    if not answer.blamed or not is_planted(edit, answer.blamed[0].hunk.lines):
        at = [n for n, one in enumerate(answer.blamed) if is_planted(edit, one.hunk.lines)]
        wrong.append(f"hunk {at[0] + 1} of {len(answer.blamed)}" if at else "hunk not named")
    if edit.modules and finding.module not in edit.modules:
        wrong.append(f"module {finding.module!r}")
    if edit.tensors and not any(name in finding.sentence + finding.tensor for name in edit.tensors):
        wrong.append(f"tensor {finding.tensor}")
    return wrong


def wrong_watch(edit: Edit, report: WatchReport) -> tuple[list[str], str]:
    """Return what is wrong, and what was said."""
    places = [
        (one.watchpoint.name, one.first.module, one.first.tensor)
        for judged in report.trainings for one in judged.findings
    ]  # fmt: skip
    answer = "; ".join(" ".join(place) for place in places) or "quiet"
    right = any(
        name in edit.expects
        and (not edit.modules or module in edit.modules)
        and (not edit.tensors or any(part in tensor for part in edit.tensors))
        for name, module, tensor in places[:2]
    )
    return ([] if right else ["watch"]), answer


def wrong_profile(edit: Edit, document: dict[str, Any], folder: Path) -> tuple[list[str], str]:
    """Return what is wrong, and what was said: a stall or the first advice names a planted line."""
    texts = [f"{one['rule']}: {one['figure']}" for one in document.get("advice", ())]
    texts += [f"stall: {one['place']}" for one in document.get("stalls", {}).get("found", ())]
    texts += [
        f"leak: {one['file']}:{one['line']} {one['what']}" for one in document.get("leaks", ())
    ]
    lines = [
        f"{path.name}:{number}"
        for path in sorted(folder.glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if is_planted(edit, [f"+{line}"])
    ]
    right = any(
        text.split(":")[0] in edit.expects and re.search(rf"{re.escape(line)}\b", text)
        for text in texts[:3] for line in lines
    )  # fmt: skip
    return ([] if right else [f"line {', '.join(lines)}"]), "; ".join(texts) or "nothing"


def figures(log: Path) -> list[str]:
    return FIGURES.findall(log.read_text())


class Judge:
    """One training and its edits, in a folder of their own."""

    def __init__(self, training: Training, place: Path, show: Callable[[str], None] | None) -> None:
        self.training, self.place, self.show = training, place, show
        self.repo = repository(training, place)
        self.known: dict[object, object] = {}
        self.runs = 0

    def folder(self) -> Path:
        self.runs += 1
        return self.place / "runs" / str(self.runs)

    def rows(self, wanted: Sequence[tuple[str, Edit | None, str]]) -> Iterator[Row]:
        """Judge edits of (kind, edit, name); `probe` is one of the training as it is."""
        shas = {
            name: commit(self.repo, self.training, edit, kind)
            for kind, edit, name in wanted if edit is not None
        }  # fmt: skip
        with opened(self.repo) as (repository, bench, task):
            self.bench, self.task = bench, task
            self.longer = task._replace(params={"epochs": self.training.epochs[1]})
            self.good = repository.resolve("main")
            self.server = None
            if self.training.preload is not None:
                self.server = TrainingServer(bench.setup.child, self.training.preload)
            for kind, edit, name in wanted:
                start = time.monotonic()
                try:
                    if edit is None:
                        row = self.probe(name)
                    else:
                        bad = repository.resolve(shas[name])
                        row = self.edited(kind, edit, bad)
                except CeledgerError as error:
                    row = Row(self.training.name, kind, name, False, str(error), broken=str(error))
                yield row._replace(seconds=time.monotonic() - start)
            if self.server is not None:
                self.server.close()

    def runner(self, folder: Path) -> ParentOnce:
        return ParentOnce(self.bench, self.task, folder, self.known, self.server)

    def bare(self, commit: Commit, verb: str) -> list[str]:
        """Train without a probe; return the figures printed."""
        environment = {} if verb == "profile" else EAGER
        if verb == "explain" and self.server is not None:
            folder = self.folder()
            done = self.server.train(self.runner(folder), Side("bare", commit), folder, SEED)
            return figures(done.log) if done.ok else [done.message]
        done = diagnose(
            self.bench, commit, self.task_of(verb), SEED, self.folder(), {}, environment=environment
        )
        return figures(done.log) if done.ok else [done.message]

    def task_of(self, verb: str) -> Task:
        return self.longer if verb in ("profile", "memory") else self.task

    def edited(self, kind: str, edit: Edit, bad: Commit) -> Row:
        plain = self.bare(bad, edit.verb if kind == "fault" else "explain")
        folder = self.folder()
        if kind == "fault" and edit.verb != "explain":
            wrong, answer, log = self.other_verb(edit, bad, folder)
            sure = ""
        else:
            said = explain(self.runner(folder), Side("parent", self.good), Side("culprit", bad))
            if self.show is not None:
                self.show(explanation_text(said, self.bench.station.tree))
            quiet = said.verdict in ("equal", "rounding")
            wrong = wrong_explanation(edit, said) if kind == "fault" else []
            wrong += [said.verdict] if kind == "refactor" and not quiet else []
            answer = said.finding.sentence if said.finding else said.verdict
            sure = str(said.finding.sureness) if said.finding else ""
            logs = sorted(folder.rglob("log.txt"), key=lambda path: path.stat().st_mtime)
            log = next(path for path in logs if figures(path) == plain or path is logs[-1])
        seen = figures(log)
        broken = "" if seen == plain else f"{seen[-1:]} instead of {plain[-1:]}"
        answer = f"{'; '.join(wrong)}: {answer}" if wrong else answer
        return Row(self.training.name, kind, edit.name, not wrong, answer, sure, broken)

    def other_verb(self, edit: Edit, bad: Commit, folder: Path) -> tuple[list[str], str, Path]:
        if edit.verb == "watch":
            report = watch(self.bench, bad, self.task, SEED, folder, {})
            return *wrong_watch(edit, report), folder / "watch" / "log.txt"
        measure = memory if edit.verb == "memory" else profile
        document = measure(self.bench, bad, self.longer, SEED, folder, {"kind": edit.verb})
        log = next(folder.rglob("log.txt"))
        return *wrong_profile(edit, document, self.bench.station.tree / "training"), log

    def probe(self, name: str) -> Row:
        """Run a probe in the training as it is: nothing to find, and nothing changes."""
        folder, task = self.folder(), self.task_of(name)
        arguments = (self.bench, self.good, task, SEED, folder)
        answer = "quiet"
        if name == "trace":
            runner = SideRunner(self.bench, self.task, folder, seed=SEED)
            answer = "quiet" if runner.run(Side("cold", self.good), (0, 1, 2, 4))[1] else "nothing"
        elif name == "watch":
            _, answer = wrong_watch(NOTHING, watch(*arguments, {}))
        elif name == "preflight":
            failed = [one["check"] for one in preflight(*arguments) if one["status"] == "fail"]
            answer = ", ".join(failed) or answer
        elif name == "profile":
            profile(*arguments, {"kind": name})
        else:
            memory(*arguments, {"kind": name})
        plain, seen = self.bare(self.good, name), figures(next(folder.rglob("log.txt")))
        # Preflight ends a training when it has seen enough.
        same = seen == plain or name == "preflight"
        broken = "" if same else f"{seen[-1:]} instead of {plain[-1:]}"
        return Row(self.training.name, "probe", name, answer == "quiet", answer, broken=broken)


NOTHING = Edit("nothing", ())
PROBES = ("trace", "watch", "profile", "memory", "preflight")


def judge(name: str, only: Sequence[str], each: int | None) -> list[Row]:
    """Judge a training in a process of its own; print each answer."""
    subject = training(name)
    if subject.missing:
        print(f"{name}: not run: {subject.missing}", flush=True)
        return []
    wanted: list[tuple[str, Edit | None, str]] = [
        (kind, edit, edit.name)
        for kind, edits in (("fault", subject.faults), ("refactor", subject.refactors))
        for edit in edits[:each]
    ]
    wanted += [("probe", None, probe) for probe in PROBES[:each]]
    if only:
        wanted = [row for row in wanted if row[2] in only]
    rows = []
    show = (lambda text: print(text, flush=True)) if only else None
    with tempfile.TemporaryDirectory(prefix=f"celedger-lab-{name}-") as folder:
        os.environ |= {
            "CELEDGER_LOCK_DIR": f"{folder}/locks",
            "XDG_CONFIG_HOME": f"{folder}/config",
        }
        for row in Judge(subject, Path(folder), show).rows(wanted):
            mark = "ok " if row.ok and not row.broken else "BAD"
            broken = f" [broken: {row.broken}]" if row.broken else ""
            print(
                f"{mark} {name:13}{row.kind:9}{row.name:26}{row.seconds:4.0f} s  {row.answer}"
                f"{broken}",
                flush=True,
            )
            rows.append(row)
    return rows


def summary(rows: Sequence[Row]) -> tuple[str, bool]:
    """Return a table of the trainings with a total, and whether all is as it should be."""
    lines = [f"{'training':12}{'right':>8}{'unsure':>8}{'quiet':>8}{'probes':>8}{'broken':>8}"]

    def line(name: str, some: Sequence[Row]) -> str:
        def share(kind: str) -> str:
            of = [row for row in some if row.kind == kind]
            return f"{sum(row.ok for row in of)}/{len(of)}"

        unsure = sum(row.kind == "fault" and row.ok and row.sure == "unsure" for row in some)
        broken = sum(bool(row.broken) for row in some)
        return (
            f"{name:12}{share('fault'):>8}{unsure:>8}{share('refactor'):>8}{share('probe'):>8}"
            f"{broken:>8}"
        )

    names = dict.fromkeys(row.training for row in rows)
    lines += [line(name, [row for row in rows if row.training == name]) for name in names]
    lines.append(line("total", rows))
    faults = [row for row in rows if row.kind == "fault"]
    right = sum(row.ok for row in faults) >= 0.95 * len(faults)
    quiet = all(row.ok for row in rows if row.kind != "fault")
    return "\n".join(lines), right and quiet and not any(row.broken for row in rows)


def main() -> int:
    names = sorted(path.stem for path in LAB.glob("*.toml"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="TRAINING[/EDIT]")
    parser.add_argument("--each", type=int, help="so many faults, refactors and probes of each")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    options = parser.parse_args()
    chosen: dict[str, list[str]] = {}
    for text in options.only or names:
        name, _, edit = text.partition("/")
        if name not in names:
            parser.error(f"there is no training {name!r}: there are {', '.join(names)}")
        chosen.setdefault(name, []).extend([edit] if edit else [])
    start, rows = time.monotonic(), []
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        waiting = [pool.submit(judge, name, only, options.each) for name, only in chosen.items()]
        for done in as_completed(waiting):
            rows += done.result()
    text, right = summary(rows)
    print(f"\n{text}\n{time.monotonic() - start:.0f} s")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
