"""Profiles are summed up from a clock's edges, and advice rests on a usual step of the training."""

from __future__ import annotations

from typing import Any

import pytest

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit
from celedger.lab.diagnose.profile import load
from celedger.lab.views.profile import ProfileTarget, profile_text

MS = 1_000_000  # ns
PHASES = {"data": 0, "forward": 1, "backward": 2, "tail": 3}


def event(
    steps: int = 60,
    *,
    stall: dict[int, int] | None = None,
    delayed: int = 0,
    data: int = 1,
    loader: bool = True,
) -> dict[str, Any]:
    """What the probe writes of steps with `data` ms of waiting and three other phases of 2 ms.
    `stall`: ms more of waiting, by step; `delayed`: ms without a core in each forward pass;
    `loader`: a DataLoader is waited for, else there is none."""
    columns: dict[str, list[int]] = {
        name: [] for name in ("edge", "step", "phase", "own", "wall", "cpu", "gc", "loader")
    }
    own = lost = waited = 0
    for step in range(steps + 1):
        for name, phase in PHASES.items():
            row = (
                4 * step + phase,
                step,
                phase,
                own * MS,
                (own + lost) * MS,
                own * MS,
                0,
                waited * MS,
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            spent = data + (stall or {}).get(step, 0) if name == "data" else 2
            own += spent
            waited += spent if loader and name == "data" else 0
            lost += delayed if name == "forward" else 0
    rows = [
        {"name": "aten::mm", "phase": phase, "module": "body", "seconds": [0.002] * 10, "calls": 1,
         "device": 0.0, "memory": 0, "kernels": 0}
        for phase in ("forward", "backward")
    ]  # fmt: skip
    return {
        "torch": "2", "device": "cpu", "threads": 1, "exact": True, "workers": None,
        "optimisers": {"SGD": False},
        "edges": columns, "untimed": [5, 18], "lines": [], "pauses": [], "waits": [],
        "window": {"first": 6, "steps": [0.01] * 10, "rows": rows, "problem": ""},
        "samples": {"edge": [], "line": [], "callers": [], "seconds": []},
    }  # fmt: skip


def test_edges_add_up_to_steps_and_shares() -> None:
    profile = load(event(), {})
    assert [(row["name"], round(row["share"], 3)) for row in profile["phases"]] == [
        ("step", 1.0), ("data", 0.143), ("forward", 0.286), ("backward", 0.286), ("tail", 0.286),
    ]  # fmt: skip
    assert (profile["steps"]["count"], profile["steps"]["timed"]) == (60, 42)
    assert profile["delayed_share"] == 0


def test_operators_are_corrected_for_time_without_a_core_in_their_phase() -> None:
    operators = load(event(delayed=2), {})["operators"]["rows"]
    seconds = {row["phase"]: row["seconds"] for row in operators}
    assert seconds["forward"] == pytest.approx(0.001)
    assert seconds["backward"] == pytest.approx(0.002)


def test_time_without_a_core_is_no_idle_processor() -> None:
    stolen = load(event(delayed=20), {})
    assert stolen["delayed_share"] > 0.7
    assert "idle processor" not in [advice["rule"] for advice in stolen["advice"]]


def test_a_stall_between_steps_is_no_reason_for_loader_workers() -> None:
    stalling = load(event(stall=dict.fromkeys(range(20, 60, 10), 60)), {})
    assert next(row for row in stalling["phases"] if row["name"] == "data")["share"] > 0.4
    assert "loader" not in [advice["rule"] for advice in stalling["advice"]]
    waiting = load(event(data=4), {})
    assert "40 % of a step is spent waiting for data" in [
        advice["figure"] for advice in waiting["advice"]
    ]


def test_without_a_data_loader_nobody_is_told_of_workers() -> None:
    """The gap may be an average of the weights."""
    gap = load(event(data=4, loader=False), {})
    assert [row["name"] for row in gap["phases"]][:2] == ["step", "other"]
    figures = {advice["rule"]: advice["figure"] for advice in gap["advice"]}
    assert figures["between steps"] == "40 % of a step is between two steps"
    assert "loader" not in figures


def test_stolen_time_advises_nothing_of_operators() -> None:
    for delayed, advised in ((0, True), (40, False)):
        seen = event(delayed=delayed)
        seen["window"]["rows"].append({
            **seen["window"]["rows"][0], "name": "(Python)", "phase": "tail", "module": None,
            "seconds": [0.02] * 10,
        })  # fmt: skip
        assert ("Python" in [row["rule"] for row in load(seen, {})["advice"]]) is advised


@pytest.mark.parametrize("fused", [None, True, False])
def test_a_fused_form_is_advised_where_the_optimiser_has_one(fused: bool | None) -> None:
    document = load({**event(), "optimisers": {"Mine": fused}}, {})
    (tail,) = [advice for advice in document["advice"] if advice["rule"] == "optimiser tail"]
    assert ("fused=True for Mine" in tail["try"]) is (fused is False)
    assert tail["switches"] == (["fused"] if fused is False else [])


def test_too_few_steps_are_said() -> None:
    with pytest.raises(CannotJudge, match="has 27 steps, and profiling needs 28"):
        load(event(27), {})


def test_a_training_without_a_step_that_was_seen_is_not_called_short() -> None:
    """One by torch.func has many steps, and none that a hook could see."""
    with pytest.raises(CannotJudge, match="no step of the training was seen"):
        load(event(0), {})


def test_a_line_of_an_evaluation_is_not_waiting_for_data() -> None:
    """The gap is known to be an evaluation only when it is over."""
    seen = event(data=4)
    seen["lines"] = [("net.py", "forward", 3), ("loop.py", "rows", 9)]
    edges = seen["edges"]
    edges["edge"] = [3 * edge for edge in edges["edge"]]
    at = 4 * 30  # the gap of this step begins with an evaluation
    for name, values in edges.items():
        more = {"edge": 2, "phase": 4 - values[at], "own": -MS, "wall": -MS}.get(name, 0)
        values.insert(at, values[at])
        values[at] += more if name == "phase" else 0
        values[at + 1] += more if name == "edge" else 0
    first = edges["edge"][at]
    samples = {"edge": [first, first + 1, first + 2], "line": [0, 0, 1]}
    samples |= {"callers": [[], [], []], "seconds": [9.0, 9.0, 1.0]}
    profile = load({**seen, "samples": samples}, {})
    assert [(line["file"], line["phase"]) for line in profile["lines"]] == [
        ("net.py", "evaluation"), ("loop.py", "data"),
    ]  # fmt: skip
    (loader,) = [advice for advice in profile["advice"] if advice["rule"] == "loader"]
    assert "most of it at loop.py:9" in loader["figure"]


def test_another_rank_may_be_what_a_distributed_training_waits_for() -> None:
    seen = event()
    seen["edges"]["cpu"] = [own // 2 for own in seen["edges"]["own"]]
    python = {"name": "(Python)", "phase": "tail", "module": None, "seconds": [0.02] * 10}
    seen["window"]["rows"].append({**seen["window"]["rows"][0], **python})
    advised = {"idle processor", "Python"}
    assert advised <= {row["rule"] for row in load(seen, {})["advice"]}
    document = load(seen, {}, "rank 0 of 2")
    assert not advised & {row["rule"] for row in document["advice"]}
    commit = Commit("a" * 40, "b" * 40, (), 0, 0, "one", "ddp")
    text = profile_text(ProfileTarget("ddp", (commit,), 0), document)
    assert "seed 0, rank 0 of 2, torch 2" in text


def on_gpu(data: int = 1, **work: float) -> dict[str, Any]:
    """Return the probe's event of a training on a GPU whose step takes 6 ms and the data's."""
    seen = event(data=data)
    edges = seen["edges"]
    seen |= {"device": "cuda", "edges": edges | {"device": edges["own"]}}
    seen["window"]["device"] = {"busy": 0.007, "pageable_copies": 0.0} | work
    return seen


@pytest.mark.parametrize(
    ("work", "rule"),
    [
        ({"pageable_copies": 0.001}, "pageable copies"),
        ({"busy": 0.003}, "idle GPU"),
    ],
)
def test_advice_for_a_gpu_rests_on_its_own_work(work: dict[str, float], rule: str) -> None:
    quiet = [advice["rule"] for advice in load(on_gpu(), {})["advice"]]
    rules = [advice["rule"] for advice in load(on_gpu(**work), {})["advice"]]
    assert set(rules) - set(quiet) == {rule}
