"""`celedger profile --try`: a switch does what is written by hand, and what it does is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from conftest import SUITE, UNCOMPILED, celedger, make_project, matrix_after
from lab.conftest import Answered
from lab.edited import START, TrainingServer

from celedger.base.errors import CannotJudge, UsageError
from celedger.lab.diagnose import tries
from celedger.lab.diagnose.probe_records import processes, records
from celedger.lab.diagnose.tries import Switch

torch = pytest.importorskip("torch")

# HAND is replaced by the name of a switch that the script throws itself.
TRAINING = (
    START
    + """\
from torch.utils.checkpoint import checkpoint
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, at):
        made = torch.Generator().manual_seed(at)
        return torch.randn(3, 8, 8, generator=made), at % 2
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(HAND == "inplace")
    def forward(self, x):
        return x + self.relu(self.conv(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            again = HAND == "checkpointing" and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.head(x.mean((2, 3)))
net = Net()
if HAND == "channels_last":
    net = net.to(memory_format=torch.channels_last)
optimiser = torch.optim.Adam(net.parameters(), 0.01, fused=HAND == "fused" or None)
workers = 1 if HAND == "workers" else 0
loader = torch.utils.data.DataLoader(Images(), 4, shuffle=True, num_workers=workers)
for epoch in range(2):
    for images, labels in loader:
        if HAND == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=HAND == "amp"):
            loss = F.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        net(images).argmax(1).sum().numpy()
"""
)


def event(server: TrainingServer, hand: str = "", switch: str = "", value: str = "") -> Any:
    text = TRAINING.replace("HAND ==", f"{hand!r} ==")
    out = server.train(text, "profile", switch=switch, value=value, steps=18)
    (one,) = records(processes(out)[0], "profile")
    return one


@pytest.fixture(scope="module")
def plain(server: TrainingServer) -> Any:
    return event(server)


@pytest.mark.parametrize(
    "name",
    matrix_after(2, ["amp", "fused", "workers", "channels_last", "inplace", "checkpointing"]),
)
def test_a_switch_gives_the_bits_of_the_same_switch_by_hand(
    name: str, server: TrainingServer, plain: Any
) -> None:
    thrown = event(server, switch=name, value="1")
    by_hand = event(server, hand=name)
    assert thrown["losses"] == by_hand["losses"]
    assert (len(thrown["losses"]), thrown["ended"]) == (18, True)
    # Autocast gives other numbers; that the others do something shows in what is left to switch.
    assert (thrown["losses"] != plain["losses"]) >= (name == "amp")
    facts = {"workers": "workers", "inplace": "inplace", "channels_last": "convolutions"}
    if name in facts:
        assert by_hand["facts"][facts[name]] != plain["facts"][facts[name]]
    if name == "workers":
        assert thrown["facts"]["workers"] == 1


def test_checkpointing_computes_again_and_fused_optimisers_are_fused(
    server: TrainingServer,
) -> None:
    counted = TRAINING.replace("HAND ==", "'' ==").replace(
        "        return x + self.relu",
        "        print('block', flush=True)\n        return x + self.relu",
    )
    calls = []
    for switch in ("", "checkpointing"):
        out = server.train(counted, "profile", switch=switch, value="", steps=3)
        calls.append((out / "log.txt").read_text().count("block"))
    assert calls == [6, 12]
    assert event(server, switch="fused")["facts"]["optimisers"] == {"Adam": True}


def test_what_would_change_nothing_is_refused_with_its_reason(plain: Any) -> None:
    reasons = {name: tries.refusal(Switch(name, "0" * (name == "workers")), plain)
               for name in tries.NAMES}  # fmt: skip
    assert reasons == {
        "workers": "the training has 0 workers already",
        "pin_memory": "it needs a CUDA device",
        "cudnn_benchmark": "it needs a CUDA device",
        **dict.fromkeys(
            ("amp", "compile", "channels_last", "fused", "inplace", "checkpointing"), ""
        ),
    }
    facts = {**plain["facts"], "workers": None, "optimisers": {"LBFGS": None}, "blocks": 0}
    other = {**plain, "facts": {**facts, "autocast": True, "inplace": 0, "convolutions": 0}}
    for name in ("workers", "pin_memory"):
        assert tries.refusal(Switch(name, "2"), other) == "the training has no DataLoader"
    assert tries.refusal(Switch("fused"), other) == "the optimiser has no fused form (LBFGS)"
    assert all(tries.refusal(Switch(name), other) for name in ("amp", "inplace", "checkpointing"))


def made(plain: Mapping[str, Any], seconds: float, losses: list[str]) -> dict[str, Any]:
    """Return the event of 30 steps that take so long each."""
    count = 31
    time = [int(n * seconds * 1e9) for n in range(count)]
    zero = [0] * count
    edges = {"step": list(range(count)), "phase": [1] * count, "own": time, "wall": time}
    return {**plain, "edges": {**edges, **dict.fromkeys(("cpu", "gc", "loader"), zero)},
            "losses": losses, "compiled": []}  # fmt: skip


def test_switches_run_in_turns_and_are_told_by_time_and_bits(plain: Any) -> None:
    ran: list[str] = []
    of: dict[str, tuple[float, list[str]]] = {
        "plain": (0.010, ["1.0", "0.5"]),
        "fused": (0.008, ["1.0", "0.500001"]),
        "inplace": (0.010, ["1.0", "0.5"]),
        "workers=2": (0.014, ["1.3", "0.5"]),
    }

    def run(switch: Switch, length: Mapping[str, object]) -> Mapping[str, Any]:
        ran.append(str(switch))
        assert length == ({"seconds": tries.SECONDS} if len(ran) == 1 else {"steps": 30})
        if switch.name == "amp":
            raise CannotJudge("RuntimeError: no bfloat16")
        return made(plain, *of[str(switch)])

    asked = ["fused", "amp", "inplace", "workers=2,2", "pin_memory"]
    document = tries.measure(tries.parse(asked), 2, run, lambda: False)
    assert ran == ["plain", "fused", "amp", "inplace", "workers=2",
                   "workers=2", "inplace", "fused", "plain"]  # fmt: skip
    rows = {row["switch"]: row for row in document["tried"]}
    assert [*rows] == ["fused", "inplace", "workers=2"]
    assert rows["fused"]["change"] == pytest.approx(-0.2)
    assert rows["fused"]["low"] < -0.2 < rows["fused"]["high"] < 0
    assert [row["losses"] for row in rows.values()] == ["rounding", "equal", "changed"]
    assert document["refused"] == [
        {"switch": "amp", "reason": "RuntimeError: no bfloat16"},
        {"switch": "pin_memory", "reason": "it needs a CUDA device"},
    ]


def test_no_run_starts_after_the_time_is_over(plain: Any) -> None:
    answers = iter([False, True, True, True])
    document = tries.measure(
        tries.parse(["inplace", "fused"]), 2, lambda *_: made(plain, 0.01, ["1.0"]),
        lambda: next(answers),
    )  # fmt: skip
    assert [row["switch"] for row in document["tried"]] == ["inplace"]
    assert document["refused"] == [{"switch": "fused", "reason": "not tried: the time was over"}]


@pytest.mark.parametrize("text", ["turbo", "workers", "workers=many", "amp=1", "workers=2,"])
def test_an_unknown_switch_names_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"workers=0,2,4, amp"):
        tries.parse([text])


@pytest.mark.matrix
def test_the_verb_prints_a_table_of_what_was_tried(tmp_path: Any, answered: Answered) -> None:
    seeded = TRAINING.replace("net = Net()", "torch.manual_seed(0)\nnet = Net()")
    text = UNCOMPILED + seeded.replace("HAND ==", "'' ==")
    project = make_project(tmp_path / "project", SUITE, {"fit.py": text})
    project.commit("fit")
    words = ("profile", "HEAD", "fit", "--turns=1", "--try=fused", "--try=pin_memory")
    done = celedger(project.root, *words, "--json", timeout=300)
    assert done.status == 0, done.err
    document = answered("profile", done.out)
    (row,) = document["tried"]
    assert (row["switch"], row["runs"], row["losses"] in ("equal", "rounding")) == (
        "fused",
        2,
        True,
    )
    assert row["low"] < row["change"] < row["high"]
    assert document["refused"] == [{"switch": "pin_memory", "reason": "it needs a CUDA device"}]
    refused = celedger(project.root, "profile", "HEAD", "fit", "--try=turbo")
    assert (refused.status, refused.err.count("\n")) == (129, 1)
