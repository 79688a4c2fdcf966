"""Small trainings as texts, observed by a probe in forks of one process that has imported torch,
and what `explain` says of two of them."""

from __future__ import annotations

import difflib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celedger.lab.diagnose.blame import Blamed
    from celedger.lab.diagnose.difference import TraceComparison
    from celedger.lab.diagnose.finding import ExplainFinding

ROOT = Path(__file__).resolve().parents[2]
START = """\
import torch
from torch import nn
import torch.nn.functional as F
"""


class TrainingServer:
    """Train texts under a probe, each in a fork."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def train(self, text: str, kind: str, **options: Any) -> Path:
        """Return the folder of what the probe wrote; the script's output is in `log.txt` there."""
        self.runs += 1
        tree, out = self.folder / str(self.runs), self.folder / f"{self.runs}-out"
        tree.mkdir()
        out.mkdir()
        (tree / "fit.py").write_text(text)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"tree": str(tree), "out": str(out), "probe": {"kind": kind, **options}}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "0\n", (out / "log.txt").read_text()
        failed = out / "probe-failed.txt"
        assert not failed.exists(), failed.read_text()
        return out

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def explain(
        self, old: str, new: str, *, full: Sequence[int] = (0, 1, 2, 3, 4), **options: Any
    ) -> tuple[ExplainFinding | None, tuple[Blamed, ...], TraceComparison]:
        """Return what explains the first difference (None: there is none), the hunks that it
        blames, the likeliest first, and the comparison."""
        from celedger.lab.diagnose.blame import blame
        from celedger.lab.diagnose.causes import judge
        from celedger.lab.diagnose.changed_values import hunk_values, recorded_values
        from celedger.lab.diagnose.code_change import CodeChange
        from celedger.lab.diagnose.difference import TraceComparison
        from celedger.lab.diagnose.probe_records import processes
        from celedger.lab.diagnose.trace import read

        options = {"full": list(full), "steps": 30, **options}
        change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
        traces = []
        for side, text in (("a", old), ("b", new)):
            out = self.train(text, "trace", **options, **recorded_values(change, side))
            # Both sides are checked out in one place.
            events = processes(out)[0] / "events.jsonl"
            place = str(out).removesuffix("-out")
            events.write_text(events.read_text().replace(f"{place}/", "/tree/"))
            traces.append(read(processes(out)[0]))
        comparison = TraceComparison(*traces)
        front = comparison.front()
        if front is None:
            return None, (), comparison
        tree = Path("/tree")
        values = hunk_values(comparison, front, change)
        finding, blamed = blame(judge(comparison, front), change, tree, ["/tree/fit.py"], values)
        return finding, blamed, comparison


def hunks(old: str, new: str) -> list[Any]:
    """Return the hunks between two texts of `fit.py`, without context, as git gives them."""
    from celedger.repo.hunks import Hunk

    a, b = old.splitlines(), new.splitlines()
    return [
        Hunk(
            "fit.py", "fit.py", i1 + 1 if i2 > i1 else i1, i2 - i1, j1 + 1 if j2 > j1 else j1,
            j2 - j1, "", (*(f"-{line}" for line in a[i1:i2]), *(f"+{line}" for line in b[j1:j2])),
        )
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, False).get_opcodes()
        if tag != "equal"
    ]  # fmt: skip


def edited(text: str, *changes: tuple[str, str]) -> str:
    """Return the text with each change made once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def serve() -> None:
    import importlib
    import traceback

    import torch
    import torch._dynamo  # what making an optimiser imports

    from celedger.lab.probes import line_values, observe

    torch.set_num_threads(1)
    # Else a search for garbage in a fork copies every page of torch, and a look at all objects
    # takes most of the time of a training.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                log = os.open(f"{job['out']}/log.txt", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.chdir(job["tree"])
                sys.path.insert(0, job["tree"])
                os.environ["CELEDGER_PROBE_OUT"] = job["out"]
                kind = job["probe"]["kind"]
                probes = importlib.import_module(f"celedger.lab.probes.{kind}")
                torch.manual_seed(0)
                if "early" in job["probe"]:
                    line_values.install(job["probe"])
                probes.attach(job["probe"])
                path = f"{job['tree']}/fit.py"
                code = compile(Path(path).read_text(), path, "exec", dont_inherit=True)
                script = sys.modules["__main__"] = ModuleType("__main__")  # lives until the end
                script.__file__ = path
                exec(code, vars(script))
            except SystemExit as end:
                status = int(bool(end.code))
            except BaseException:
                traceback.print_exc()
                status = 1
            try:
                assert observe._observer is not None
                observe._observer._ends()
                sys.stdout.flush()
            finally:
                os._exit(status)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
