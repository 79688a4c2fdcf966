"""`profile --memory` sees what piles up without freeing it, and names what holds it."""

from __future__ import annotations

from typing import Any

import pytest
from lab.edited import TrainingServer, edited

from celedger.base.errors import CannotJudge
from celedger.lab.diagnose.memory_growth import compare, load
from celedger.lab.diagnose.probe_records import records
from celedger.lab.views.memory import leak_text

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

PLAIN = """\
import gc
import torch
from torch import nn
gc.set_threshold(100_000)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
history = []
class Node:
    def __init__(self, value):
        self.value, self.me = value, self
def look(module, args, output):
    pass
for step in range(130):
    x = torch.randn(32, 8)
    out = net(x)
    loss = out.square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    # here
"""


def leaks(server: TrainingServer, line: str = "pass") -> list[dict[str, Any]]:
    out = server.train(edited(PLAIN, ("# here", line)), "memory")
    (event,) = records(out / "0", "memory")
    found: list[dict[str, Any]] = load(event, {})["leaks"]
    return found


def test_nothing_piles_up_in_a_plain_training(server: TrainingServer) -> None:
    assert leaks(server) == []


@pytest.mark.parametrize("kept", ["{}", "(step, {})", '{{"out": {}}}', "[step, ({}, 1)]"])
def test_what_keeps_tensors_is_named_beside_what_makes_them(
    server: TrainingServer, kept: str
) -> None:
    (leak,) = leaks(server, f"history.append({kept.format('out.detach() + 1')})")
    assert (leak["kind"], leak["keeper"]) == ("tensors", "history")
    assert leak_text(leak).endswith("kept in history")


def test_what_a_second_stage_keeps_is_one_leak(server: TrainingServer) -> None:
    """Of a student's logits, objects of eight types were said to pile up, the probe's among them:
    there are none in the time of its teacher."""
    stage = "if step > 60: history.append(out.detach() * 2)\n"
    stage += "    if step % 5 == 4: torch.no_grad()(net)(x)"
    (leak,) = leaks(server, stage)
    assert (leak["kind"], leak["what"], leak["keeper"]) == ("tensors", "aten::mul", "history")


def test_what_a_module_keeps_is_named_by_its_class_and_attribute(server: TrainingServer) -> None:
    """In x-transformers it was `a list of 66`, and the alert said that something piles up."""
    (leak,) = leaks(
        server, "net.kept = getattr(net, 'kept', []); net.kept.append(out.detach() + 1)"
    )
    assert (leak["kind"], leak["keeper"]) == ("tensors", "Sequential.kept")


def test_evaluation_after_a_call_for_a_plot_is_evaluation(server: TrainingServer) -> None:
    """It was counted as the peak of a training step."""
    evaluation = "if step % 10 == 9:\n        with torch.no_grad(): net(torch.randn(4096, 8))"
    for line in (evaluation, f"history.append(net(x).mean().item())\n    {evaluation}"):
        out = server.train(edited(PLAIN, ("# here", line)), "memory")
        (event,) = records(out / "0", "memory")
        hidden = 4096 * 16 * 4  # bytes
        assert event["peaks"]["step"]["bytes"] < hidden < event["peaks"]["evaluation"]["bytes"]


def test_a_tensor_that_keeps_its_graph_is_one_leak(server: TrainingServer) -> None:
    (leak,) = leaks(server, "history.append(loss)")  # its nodes are no objects of the script's
    assert (leak["kind"], leak["keeper"]) == ("tensors", "history")


def test_a_graph_that_grows_is_seen_beside_many_larger_ones(server: TrainingServer) -> None:
    deep = """deep, total = [sum([net[0].bias.sum()] * 1200) for _ in range(50)], 0
for step in range(130):"""
    text = edited(PLAIN, ("for step in range(130):", deep), ("# here", "total = total + loss"))
    (event,) = records(server.train(text, "memory") / "0", "memory")
    (leak,) = load(event, {})["leaks"]
    assert (leak["kind"], leak["line"]) == ("graphs", 21)


def test_cyclic_garbage_takes_memory_until_it_is_collected(server: TrainingServer) -> None:
    first, *_ = leaks(server, "Node(torch.ones(1000))")
    assert (first["kind"], first["bytes"]) == ("garbage", pytest.approx(4000, rel=0.1))
    assert "wait for the garbage collector" in leak_text(first)


def test_hooks_that_pile_up_are_seen(server: TrainingServer) -> None:
    found = leaks(server, "net[0].register_forward_hook(look)")
    (hooks,) = [leak for leak in found if leak["kind"] == "hooks"]
    assert hooks["what"] == "forward hooks of 0"
    assert hooks["number"] == pytest.approx(1.0, abs=0.07)  # the first mark is a step early


def test_the_peak_is_placed_among_the_operators_of_its_step(server: TrainingServer) -> None:
    wide = edited(PLAIN, ("loss = out", "hidden = torch.ones(4096, 8) * 2\n    loss = out"))
    (event,) = records(server.train(wide, "memory") / "0", "memory")
    peak = event["peaks"]["step"]
    course = peak["course"]
    assert max(course["bytes"]) == course["bytes"][course["peak"]] == peak["bytes"]
    names = [name for _, name in course["phases"]]
    assert names in (["forward", "backward", "tail"], ["data", "forward", "backward", "tail"])
    before = course["bytes"][course["peak"] - 1]
    assert peak["bytes"] - before == 4096 * 8 * 4  # of the product, beside the ones
    assert dict(map(reversed, course["phases"]))["backward"] > course["peak"]


def test_python_objects_that_pile_up_are_named_with_what_keeps_them(server: TrainingServer) -> None:
    (leak,) = leaks(server, "history.append(Node(step))")
    assert (leak["kind"], leak["what"], leak["keeper"]) == ("objects", "Node", "history")
    assert leak_text(leak) == "objects of the type Node pile up: 1 a step, kept in history"


def test_an_evaluation_that_records_a_graph_is_no_training_step(server: TrainingServer) -> None:
    evaluation = "net.eval(); step % 10 == 9 and net(torch.randn(4096, 8)); net.train()"
    out = server.train(edited(PLAIN, ("# here", evaluation)), "memory")
    (event,) = records(out / "0", "memory")
    hidden = 4096 * 16 * 4  # bytes
    assert event["peaks"]["step"]["bytes"] < hidden < event["peaks"]["evaluation"]["bytes"]


def test_what_each_evaluation_keeps_piles_up(server: TrainingServer) -> None:
    """Marks every 32 steps, some of them without an evaluation between, saw no leak."""
    keeping = edited(
        PLAIN,
        ("range(130)", "range(240)"),
        ("# here", "if step % 40 == 39:\n        with torch.no_grad(): history.append(net(x))"),
    )
    (event,) = records(server.train(keeping, "memory") / "0", "memory")
    (leak,) = load(event, {})["leaks"]
    assert (leak["kind"], leak["keeper"]) == ("tensors", "history")


def test_a_leak_is_seen_in_a_training_of_three_evaluations(server: TrainingServer) -> None:
    """Its one mark, of the second evaluation, told of no growth."""
    keeping = edited(
        PLAIN,
        ("range(130)", "range(60)"),
        ("# here", "history.append(out.detach())\n    step % 20 == 19 and evaluate()"),
        ("def look", "def evaluate():\n    with torch.no_grad():\n        net(x)\ndef look"),
    )
    (event,) = records(server.train(keeping, "memory") / "0", "memory")
    (leak,) = load(event, {})["leaks"]
    assert (leak["kind"], leak["keeper"], leak["number"]) == ("tensors", "history", 1.0)


@pytest.mark.parametrize(("factor", "told"), [(2.0, 1), (1.05, 0), (0.5, 0)])
def test_a_leak_on_top_of_one_of_the_same_line_is_told(factor: float, told: int) -> None:
    """Twice the bytes were kept a step, and the answer named the peaks alone."""
    leak = {
        "kind": "tensors", "what": "aten::clone", "module": "memory", "file": "memory.py",
        "number": 1.0, "bytes": 4096.0,
    }  # fmt: skip
    before, after = (
        {"leaks": [{**leak, "bytes": size}], "peaks": {}, "peak_rss": 0}
        for size in (4096.0, 4096.0 * factor)
    )
    found = compare(before, after)
    assert (len(found["new_leaks"]), found["verdict"]) == (told, "larger" if told else "same")


def test_a_training_without_a_step_that_was_seen_did_not_end_early() -> None:
    with pytest.raises(CannotJudge, match="no step of the training was seen"):
        load({"steps": {"peak": []}}, {})
