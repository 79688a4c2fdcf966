"""The values of changed lines, in plain Python and NumPy too, tell the culprit from its company."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.edited import ROOT, START, TrainingServer, edited, hunks

from celedger.lab.diagnose.changed_values import recorded_values
from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.probes import line_values


def values(
    old: str, new: str, call: str, monkeypatch: pytest.MonkeyPatch,
    describe: Any = lambda value: None, random: Any = dict,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return, for both sides of a change, the last event of each value: `1:mean` of hunk 1."""
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    sides = []
    for side, text in (("a", old), ("b", new)):
        options = json.loads(json.dumps(recorded_values(change, side)))
        recorder = line_values.ValueRecorder()
        monkeypatch.setattr("builtins.__celedger_values__", recorder, raising=False)
        events: list[dict[str, Any]] = []
        recorder.begin(_into(events), lambda: True, describe, random)
        code = line_values.instrumented(
            text.encode(), "fit.py", options["changed"]["fit.py"], options["names"]
        )
        scope: dict[str, Any] = {"np": np}
        exec(code, scope)
        eval(call, scope)
        recorder.flush()
        sides.append({f"{event['h']}:{event['q']}": event for event in events})
    return sides


def _into(events: list[dict[str, Any]]) -> Any:
    return lambda k, **event: events.append(event)


TABLE = """\
def table(rows):
    out = []
    for row in rows:
        out.append(row * 2)
    mean = sum(out) / len(out)
    x = np.array(out, dtype=float)
    return x - mean
"""


def test_a_rewritten_loop_makes_equal_values_and_a_fault_another(monkeypatch: Any) -> None:
    new = edited(
        TABLE,
        (
            "    out = []\n    for row in rows:\n        out.append(row * 2)\n",
            "    out = [row * 2 for row in rows]\n",
        ),
        ("    x = np.array(out, dtype=float)\n", "    x = np.array(out, dtype=float) + 1\n"),
    )
    a, b = values(TABLE, new, "table(range(5))", monkeypatch)
    assert a["0:out"]["v"] == b["0:out"]["v"]
    assert a["1:<out"]["v"] == b["1:<out"]["v"]
    assert a["1:x"]["v"] != b["1:x"]["v"]


def test_a_loop_that_reads_its_items_otherwise_makes_equal_values(monkeypatch: Any) -> None:
    old = (
        "def f(x):\n    kept = {}\n    for name, one in x.items():\n        kept[name] = one + 1\n"
    )
    old += "    n = 1\n    return kept, n\n"
    new = edited(
        old,
        (
            "    kept = {}\n    for name, one in x.items():\n",
            "    kept: dict = {}\n    for name in x:\n        one = x[name]\n",
        ),
        ("n = 1", "n = 2"),
    )
    a, b = values(old, new, "f({'u': 1, 'v': 2})", monkeypatch)
    for name in ("0:kept", "0:name", "0:one"):
        assert a[name] == b[name]
    assert a["1:n"]["v"] != b["1:n"]["v"]


def test_a_container_is_recorded_as_made_and_as_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(x):\n    rows = {}\n    for row in x:\n        rows.setdefault(row, 0)\n"
    old += "    n = sum(rows)\n    rest = [1]\n    rest.clear()\n    return rows, n\n"
    new = edited(old, ("rows = {}", "rows = {0: 0}"), ("sum(rows)", "len(rows)"), ("[1]", "[2]"))
    a, b = values(old, new, "f(range(2))", monkeypatch)
    assert a["0:rows"]["v"] != b["0:rows"]["v"]
    assert a["0:rows"]["z"] == b["0:rows"]["z"]
    assert [a["1:<rows"]["m"], "z" in a["1:<rows"], "z" in a["1:n"]] == [1, False, False]
    assert "z" not in a["1:rest"]


def test_a_tensor_of_another_shape_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal bits: what reads it may fail, so the hunk is not acquitted."""
    old = "def f(x):\n    y = x.reshape(2, 3)\n    x += 0\n    n = 1\n    return y, n\n"
    new = edited(old, ("reshape(2, 3)", "reshape(3, 2)"), ("n = 1", "n = 2"))

    def described(value: Any) -> tuple[str, bool, object] | None:
        return (value.tobytes().hex(), False, None) if isinstance(value, np.ndarray) else None

    a, b = values(old, new, "f(np.zeros(6))", monkeypatch, described)
    assert (a["0:y"]["v"], a["0:y"]["s"] == b["0:y"]["s"]) == (b["0:y"]["v"], False)


def test_a_hunk_has_only_its_own_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f():\n    g = lambda: 1\n    np.random.rand()\n    x = np.random.rand() + 1\n"
    old += "    return g(), x\n"
    new = edited(old, ("lambda: 1", "lambda: 2"), ("+ 1", "+ 2"))

    def position() -> dict[str, str]:
        return {"numpy": str(np.random.get_state()[2])}

    for side in values(old, new, "f()", monkeypatch, random=position):
        drawn = {name: event["m"] for name, event in side.items() if "random" in name}
        assert drawn == {"1:<random": 1, "1:random state": 1}


def test_line_numbers_and_results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(x):\n    y = x + 1\n    if y:\n        raise KeyError(y)\n    return y\n"
    recorder = line_values.ValueRecorder()
    monkeypatch.setattr("builtins.__celedger_values__", recorder, raising=False)
    code = line_values.instrumented(text.encode(), "f.py", [[0, 2, 4, 0]], {"0": ["y"]})
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["f"](-1) == 0
    with pytest.raises(KeyError) as raised:
        scope["f"](1)
    assert raised.traceback[-1].lineno == 3  # counted from 0


def test_a_copy_is_told_from_the_thing_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def keep(x):\n    y = x.copy()\n    z = x + 1\n    return y, z\n"
    new = edited(old, ("x.copy()", "x"), ("    return y, z\n", "    return [y, z]\n"))
    a, b = values(old, new, "keep(np.zeros(3))", monkeypatch)
    assert a["0:y"]["v"] == b["0:y"]["v"]
    assert (a["0:y"]["s"], b["0:y"]["s"]) == ("array float64", "array float64 shared")
    assert a["1:return keep"]["v"] == b["1:return keep"]["v"]


class Block:
    """Memory, as a tensor looks at it."""

    shape = (2,)

    def __init__(self, memory: object) -> None:
        self.memory = memory

    is_leaf = False  # so that it has no gradient

    def untyped_storage(self) -> Block:
        return self

    def data_ptr(self) -> int:
        return id(self.memory)

    def view(self) -> Block:
        return Block(self.memory)


def test_a_view_shares_memory_however_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(q):\n    q = q.view()\n    q.view()\n    n = 1\n    return q, n\n"
    new = edited(old, ("q = q.view()", "(q,) = (t.view() for t in [q])"), ("n = 1", "n = 2"))
    monkeypatch.setattr("builtins.Block", Block, raising=False)

    def described(value: Any) -> tuple[str, bool, object] | None:
        return ("bits", False, None) if isinstance(value, Block) else None

    a, b = values(old, new, "f(Block(object()))", monkeypatch, described)
    assert [side["0:q"]["s"] for side in (a, b)] == ["tensor (2,) shared"] * 2


class Net:
    """A model with one weight and a mode."""

    training = True

    def __init__(self) -> None:
        self._parameters = {"weight": Block(object())}

    def parameters(self) -> list[Block]:
        return [*self._parameters.values()]

    def named_parameters(self) -> list[Any]:
        return [*self._parameters.items()]

    def buffers(self) -> list[Block]:
        return []

    def state(self) -> dict[str, Block]:
        return {name: one.view() for name, one in self._parameters.items()}

    def copies(self) -> dict[str, Block]:
        return {name: Block(object()) for name in self._parameters}

    def modules(self) -> list[Net]:
        return [self]

    def eval(self) -> None:
        self.training = False


def test_a_container_tells_what_its_items_share_with_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = "def f(net):\n    kept = net.copies()\n    net.eval()\n    n = 1\n    return kept, n\n"
    new = edited(old, ("net.copies()", "net.state()"), ("n = 1", "n = 2"))
    monkeypatch.setattr("builtins.Net", Net, raising=False)

    def described(value: Any) -> tuple[str, bool, object] | None:
        return ("bits", False, None) if isinstance(value, Block) else None

    a, b = values(old, new, "f(Net())", monkeypatch, described)
    assert [side["0:kept"]["s"] for side in (a, b)] == ["fields", "fields shared"]
    assert a["0:kept"]["v"] == b["0:kept"]["v"]


def test_the_mode_of_a_model_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(net):\n    net.eval()\n    n = 1\n    return n\n"
    new = edited(old, ("    net.eval()\n", ""), ("return n", "return n + 1"))
    monkeypatch.setattr("builtins.Net", Net, raising=False)
    a, b = values(old, new, "f(Net())", monkeypatch)
    assert a["0:net"]["v"] != b["0:net"]["v"]


def test_an_attribute_of_a_tensor_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(p):\n    p.decayed = True\n    q = p\n    q.shape\n    n = 1\n    return q, n\n"
    new = edited(old, ("decayed = True", "decayed = False"), ("n = 1", "n = p.shape"))
    new = edited(new, ("    q = p\n", "    (q,) = [p]\n"))
    monkeypatch.setattr("builtins.Block", Block, raising=False)

    def described(value: Any) -> tuple[str, bool, object] | None:
        return ("bits", False, None) if isinstance(value, Block) else None

    a, b = values(old, new, "f(Block(1))", monkeypatch, described)
    assert a["0:q"]["v"] != b["0:q"]["v"]


def test_what_two_functions_of_a_hunk_return_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f():\n    return 1\ndef g():\n    return 2\nn = 1\nk = 3\n"
    new = old.replace("return 1", "return 2 - 1").replace("def g():", "def g(x=1):")
    new = new.replace("return 2\n", "return 1 + 1\n").replace("k = 3", "k = 4")
    a, _ = values(old, new, "g(), f()", monkeypatch)
    assert {"0:return f", "0:return g"} <= a.keys()


def test_what_a_deleted_line_changed_is_recorded_where_it_stood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = "def f(x):\n    rows = list(x)\n    rows.reverse()\n    rows[0]\n    n = 2 * 3\n"
    old += "    return rows, n\n"
    new = edited(old, ("    rows.reverse()\n", ""), ("2 * 3", "3 * 2"))
    a, b = values(old, new, "f(range(3))", monkeypatch)
    assert a["0:rows"]["v"] != b["0:rows"]["v"]
    assert a["1:n"]["v"] == b["1:n"]["v"]


def test_an_address_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(x):\n    key = id(x)\n    key + 1\n    n = 1\n    return key, n\n"
    new = edited(old, ("id(x)", "id([])"), ("n = 1", "n = 1.0"))
    a, b = values(old, new, "f([])", monkeypatch)
    assert (a["0:key"]["u"], a["0:key"]["v"]) == (1, b["0:key"]["v"])
    assert a["1:n"]["v"] == b["1:n"]["v"]


@pytest.mark.parametrize("made", ["random.Random(0)", "torch.Generator().manual_seed(0)"])
def test_a_generator_is_a_value_by_its_state(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    old = f"import random, torch\ndef f():\n    g = {made}\n    k = 1\n    h = {made}\n"
    old += "    return g, h, k\n"
    other = (f"g = {made}", f"g = {made.replace('0', '1')}")
    a, b = values(old, edited(old, other, ("h =", "h: object =")), "f()", monkeypatch)
    assert a["0:g"]["v"] != b["0:g"]["v"]
    assert (a["1:h"]["u"], a["1:h"]["v"]) == (0, b["1:h"]["v"])


def test_a_value_that_cannot_be_read_ends_no_recording() -> None:
    class Broken:
        @property
        def bit_generator(self) -> None:
            raise RuntimeError

    events: list[dict[str, Any]] = []
    recorder = line_values.ValueRecorder()
    recorder.begin(_into(events), lambda: True, lambda value: None)
    recorder.inputs(0, ["Net"], {"Net": Net})  # a class has no parameters of its own
    for name, value in (("a", Broken()), ("b", np.random), ("c", 1)):
        recorder.value(0, name, value)
    recorder.flush()
    assert [event["s"] for event in events] == ["name", "", "name", "number"]
    assert [event["u"] for event in events] == [0, 1, 0, 0]


def recording(folder: Path, line: int, shown: str) -> dict[str, str]:
    """Return an environment in which Python records `n` in a line of main.py, and prints what."""
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(
        "from celedger.lab.probes import line_values\n"
        f"changed = {{'main.py': [[0, {line}, {line}, 0]]}}\n"
        "line_values.install({'changed': changed, 'names': {'0': ['n']}})\n"
        f"show = lambda k, **event: print({shown})\n"
        "line_values.recorder.begin(show, lambda: True, lambda value: None)\n"
        "import atexit\natexit.register(line_values.recorder.flush)\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)])}


def test_a_spawned_process_records_too(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import multiprocessing\nfrom celedger.lab.probes import line_values\n\n"
        "def work():\n    n = 1\n    line_values.recorder.flush()\n\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n    process.join()\n"
    )
    env = recording(tmp_path, 5, "event['q'], event['s'], flush=True")
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=env,
    )  # fmt: skip
    assert done.stdout == "n number\n", done.stderr


@pytest.mark.parametrize(("last", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_a_script_with_changed_lines_runs_as_itself(tmp_path: Path, last: str, status: int) -> None:
    script = (
        "import sys, atexit\natexit.register(print, 'end')\nassert __spec__ is None\n"
        f"n = 1\nprint(__name__, __file__, sys.argv[1:], n)\n{last}\n"
    )
    (tmp_path / "main.py").write_text(script)
    env = recording(tmp_path, 4, "event['q'], event['m'], event['s']")
    done = subprocess.run(
        [sys.executable, "main.py", "--x"], cwd=tmp_path, capture_output=True, text=True,
        env=env, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [f"__main__ {tmp_path}/main.py ['--x'] 1", "end", "n 1 number"]
    assert ("ValueError" in done.stderr) == (status == 1)


FIT = (
    START
    + """\
import numpy as np

def table(rng):
    x = rng.normal(size=(48, 4))
    mean = x.mean(axis=0)
    assert mean.shape == (4,)
    scale = x.std(axis=0)
    assert x.shape == (48, 4)
    kept = []
    for row in (x - mean) / scale:
        kept.append(row)
    seen = {}
    for number, row in enumerate(kept):
        seen.setdefault(number, len(row))
    assert sum(seen.values()) == x.size
    y = (x[:, 0] > 0).astype(int)
    return np.stack(kept).astype("f4"), y

rng = np.random.default_rng(0)
x, y = map(torch.from_numpy, table(rng))
torch.manual_seed(0)
net = nn.Linear(4, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
rate = 0.1
for start in range(0, 48, 16):
    rows = slice(start, start + 16)
    loss = F.cross_entropy(net(x[rows]), y[rows])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    rate = rate * 0.5
    optimiser.param_groups[0]["lr"] = rate
"""
)
HARMLESS = [
    ("    mean = x.mean(axis=0)\n", "    mean = np.mean(x, axis=0)\n"),
    ("    kept = []\n    for row in (x - mean) / scale:\n        kept.append(row)\n",
     "    kept = [row for row in (x - mean) / scale]\n"),
    ("    seen = {}\n", "    seen = dict.fromkeys(range(len(kept)), 4)\n"),
    ("    rows = slice(start, start + 16)\n",
     "    end = start + 16\n    rows = slice(start, end)\n"),
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize(
    "fault",
    [
        ("    scale = x.std(axis=0)\n", "    scale = x.std()\n"),
        ("    y = (x[:, 0] > 0)", "    y = (x[:, 1] > 0)"),
        ("    rate = rate * 0.5\n", "    rate = rate * 0.9\n"),
    ],
)
def test_the_fault_in_plain_python_is_first_and_its_company_equal(
    server: TrainingServer, fault: tuple[str, str]
) -> None:
    _, blamed, _ = server.explain(FIT, edited(FIT, fault, *HARMLESS))
    assert fault[1].splitlines()[0] in "\n".join(blamed[0].hunk.lines)
    mean = next(one for one in blamed if "np.mean" in str(one.hunk.lines))
    assert mean.closeness == 4


LOADED = (
    START
    + """\
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(4, generator=g)
        kept = []
        for k in range(4):
            kept.append(float(x[k]))
        y = (x.sum() > 0).long()
        return torch.tensor(kept), y

net = nn.Linear(4, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(Rows(), batch_size=8, num_workers=2):
    loss = F.cross_entropy(net(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "fault", [("range(4):", "range(3, -1, -1):"), ("x.sum() > 0", "x.sum() > 1")]
)
def test_the_lines_of_a_loader_s_workers_are_recorded(
    server: TrainingServer, fault: tuple[str, str]
) -> None:
    harmless = [
        (
            "    loss = F.cross_entropy(net(x), y)\n",
            "    loss = F.cross_entropy(net(x), target=y)\n",
        ),
        ("randn(4, generator=g)", "randn((4,), generator=g)"),
    ]
    _, blamed, _ = server.explain(LOADED, edited(LOADED, fault, *harmless))
    assert fault[1] in "\n".join(blamed[0].hunk.lines)
    assert next(one for one in blamed if "(4,)" in str(one.hunk.lines)).closeness == 4


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("1 / math.sqrt(24)", "24**-0.5", True),  # they differ in the last bit
        ("-x * 0", "0.0", True),
        ("0.1", "0.1000001", False),
        ("partial(max, x, 3)", "partial(max, x, 4)", False),
        ("partial(max, x, key=abs)", "partial(max, *[x], key=abs)", True),
    ],
)
def test_numbers_count_to_their_14th_digit_and_objects_with_all_that_they_have(
    old: str, new: str, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import math\nfrom functools import partial\ndef f(x):\n    y = {}\n    z = 0\n"
    text += "    n = 1\n    return y, n\n"
    before, after = (edited(text, ("{}", one)) for one in (old, new))
    a, b = values(before, edited(after, ("n = 1", "n = 2")), "f(3.0)", monkeypatch)
    assert (a["0:y"]["v"] == b["0:y"]["v"]) is equal


def test_what_a_hunk_has_bound_it_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "def f(x):\n    for y in (a - x for a in (1, 2)):\n        z = y + 1\n    n = 1\n"
    new = old.replace("for y in (a - x for a in (1, 2)):", "ones = (1, 2)\n    for a in ones:")
    new = edited(new, ("z = y + 1", "y = a - x\n        z = y + 1"), ("n = 1", "n = 2"))
    _, b = values(old, new, "f(3)", monkeypatch)
    assert [name for name in b if "<" in name] == ["0:<x"]


def test_a_call_under_a_condition_may_change_what_it_is_called_on() -> None:
    old, new = (
        "def f(rate):\n    rate.step()\n",
        "def f(rate):\n    rate.step() if rate else None\n",
    )
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    assert [change.variables(change.hunks[0], side) for side in "ab"] == [{"rate"}] * 2
