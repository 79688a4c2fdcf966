"""The first difference with an effect is found, and judged by what is known at its place."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.edited import hunks
from lab.made_traces import Writer
from readable import assert_readable

from celedger.base.model import Commit
from celedger.lab.diagnose.causes import judge
from celedger.lab.diagnose.changed_values import Verdict, hunk_values, unsteady_values
from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import Front, Growth, TraceComparison, depth, stored
from celedger.lab.diagnose.explain import (
    Explanation,
    Side,
    TracedRuns,
    _explain_crash,
    _first_process,
    _unseen,
    _values_in_common,
    rounding_ratio,
)
from celedger.lab.diagnose.finding import ExplainFinding, FindingPhase
from celedger.lab.diagnose.tensor_distance import distance, same_distribution
from celedger.lab.diagnose.trace import Frame, Tensor, Trace, read
from celedger.lab.views.error_by_depth import draw
from celedger.lab.views.explain import explanation_text, explanations_json

X = np.arange(6.0)


@pytest.fixture
def make(tmp_path: Path):
    numbers = itertools.count()

    def training(
        *, names: tuple[str, str] = ("body", "head"), out: Any = 2 * X, inside: Any = None,
        literals: str = "_, 1", eps: float = 1e-5, steps: int = 2, draws: int = 0,
        start: Any = X, rate: Any = lambda step: 0.1 / (step + 1), extra: bool = False,
        targets: Any = range(20), batches: Any = range(20), given_: Any = X, keep: bool = True,
        evaluated: bool = True, made: str = "normal_",
    ) -> Trace:  # fmt: skip
        """`out` and `inside` may be functions of the step."""
        inner, outer = inside, out
        w = Writer(tmp_path / str(next(numbers)))
        body, head = names
        w.site(0, ("/tree/net.py", 7, "forward"))
        w.module("", "net.Net")
        w.module(body, "torch.nn.LayerNorm", eps=eps, shapes={"weight": [6]})
        w.module(head, "torch.nn.Linear", shapes={"weight": [6, 1]})
        if extra:
            w.module("drop", "torch.nn.Dropout", p=0.5)
        w.init(f"{body}.weight", start, made)
        w.init(f"{head}.weight", np.ones((6, 1)))
        for step in range(steps):
            out = outer(step) if callable(outer) else outer
            inside = inner(step) if callable(inner) else inner
            w.batch("input", batches)
            w.batch("target", targets)
            w.enter("", given_)
            w.enter(body, given_, "")
            w.call("layer_norm", body, inside if inside is not None else X, literals, site=0)
            w.leave(body, inside if inside is not None else X)
            if extra:
                w.enter("drop", X, "")
                w.leave("drop", X * 2, y="1", z="0")
            w.enter(head, 2 * X if extra else X, "")
            w.leave(head, out)
            w.leave("", out)
            loss = float(np.sum(out)) + float(np.sum(list(targets))) + (0.1 if extra else 0)
            moved = out * step * keep
            gradients = {f"{body}.weight": out, f"{head}.weight": out if keep else None}
            w.learn(loss, gradients, {f"{body}.weight": start - out, f"{head}.weight": moved},
                    lr=rate(step))  # fmt: skip
        return w.done()

    return training


def found(a: Trace, b: Trace) -> Any:
    c = TraceComparison(a, b)
    front = c.front()
    return judge(c, front) if front is not None else None


def test_equal_trainings_have_no_difference(make: Any) -> None:
    c = TraceComparison(make(), make())
    assert c.equal
    assert c.front() is None


def test_of_several_ranks_the_one_whose_numbers_differ_first_is_compared(make: Any) -> None:
    left = [replace(make(), rank=f"rank {number} of 3") for number in range(3)]
    runner: Any = SimpleNamespace(task=SimpleNamespace(metrics=()))
    right = [make(out=3 * X), make(), make(start=X + 1)]
    c = _first_process(runner, left, right)
    assert c is not None and c.a.rank == "rank 2 of 3"
    c = _first_process(runner, left, right[:2])
    assert c is not None and c.a.rank == "rank 0 of 3"


def test_renamed_modules_are_the_same_modules(make: Any) -> None:
    c = TraceComparison(make(), make(names=("trunk", "last")))
    assert {new: old for new, old in c.alignment.modules.items() if new != old} == {
        "trunk": "body", "last": "head",
    }  # fmt: skip
    assert c.alignment.tensors["trunk.weight"] == "body.weight"
    assert c.front() is None


def test_the_module_that_returns_something_else_is_named(make: Any) -> None:
    finding = found(make(), make(out=2 * X + 0.5))
    assert (finding.phase, finding.module, finding.step) == ("forward", "head", 0)
    assert finding.distance.share == 1.0
    assert finding.distance.largest == 0.5


def test_a_difference_that_reaches_nothing_has_vanished(make: Any) -> None:
    c = TraceComparison(make(), make(inside=X + 1e-7))
    assert c.equal
    assert c.front() is None
    finding = found(make(), make(inside=X + 1e-7, keep=False))
    assert (finding.cause, finding.phase) == ("frozen", "backward")


def test_the_figure_draws_the_step_of_the_finding(make: Any) -> None:
    """What differed in an earlier step had no effect, so it is not what the text is about."""
    a = make(steps=3)
    b = make(
        steps=3, inside=lambda step: X + 1e-7 * (step == 0), out=lambda step: 2 * X + (step == 1)
    )
    finding = found(a, b)
    assert (finding.step, finding.module) == (1, "head")
    c = TraceComparison(a, b)
    assert {layer.step for layer in depth(c)} == {0}
    layers = depth(c, finding.step)
    assert {layer.step for layer in layers} == {1}
    commit = Commit("c" * 40, "", (), "", 0, 0, "")
    sides = (Side("parent", commit), Side("culprit", commit))
    answer = Explanation("fit", *sides, 0, 3, "difference", finding, layers=layers)
    figure = draw(answer)
    assert figure.get_suptitle() == "fit: parent against culprit, step 1"
    (panel,) = figure.axes  # the made trace has no gradients of modules
    assert panel.get_title("left").startswith("step 1, forward: ")
    names = [text.get_text() for text in panel.get_xticklabels()]
    (band,) = [line for line in panel.lines if line.get_linewidth() == 6]
    assert names[int(band.get_xdata()[0])] == "head"
    assert_readable(figure)
    update = draw(replace(answer, finding=replace(finding, step=0)))
    assert "step 1 is the first one after it" in update.axes[0].get_title("left")


def test_the_figure_draws_an_evaluation_that_differs_alone_and_stored_tensors(
    tmp_path: Path,
) -> None:
    """As an average of the weights that is not trained itself: every training step is equal."""
    sides = []
    for name, factor in (("a", 1.0), ("b", 1.5)):
        w = Writer(tmp_path / name)
        w.module("", "net.Net")
        w.leave("", X)
        w.learn(1.0, {"weight": X}, {"weight": factor * X})
        w.leave("", factor * X, e=1)
        sides.append(w.done())
    c = TraceComparison(*sides)
    (layer,) = depth(c)
    assert (layer.step, layer.forward) == (1, pytest.approx(0.5))
    (tensor,) = stored(c)
    assert (tensor.name, tensor.error) == ("weight", pytest.approx(0.5))
    commit = Commit("c" * 40, "", (), "", 0, 0, "")
    sides = (Side("parent", commit), Side("culprit", commit))
    answer = Explanation("fit", *sides, 0, 1, "difference", layers=(layer,), stored=(tensor,))
    for drawn, panels in ((answer, 2), (replace(answer, layers=()), 1)):
        figure = draw(drawn)
        assert len(figure.axes) == panels
        assert [label.get_text() for label in figure.axes[-1].get_yticklabels()] == ["weight"]
        assert list(figure.axes[-1].lines[0].get_xdata()) == [pytest.approx(0.5)]
        assert_readable(figure)


def test_changed_settings_and_arguments_are_sure(make: Any) -> None:
    changed = {"inside": X + 1, "out": 3 * X}
    settings = found(make(), make(eps=1e-3, **changed))
    assert (settings.cause, settings.module, settings.sureness) == ("settings", "body", "sure")
    assert "eps 1e-05 → 0.001" in settings.sentence
    argument = found(make(), make(literals="_, 2", **changed))
    assert argument.cause == "argument"
    assert argument.sentence == "`body` calls `layer_norm(_, 2)` instead of `layer_norm(_, 1)`"
    assert argument.places[0].frames[0].line == 7


def test_an_added_dropout_is_named_with_its_random_numbers(make: Any) -> None:
    finding = found(make(), make(extra=True))
    assert (finding.cause, finding.module) == ("added", "drop")
    assert "random numbers" in finding.sentence


def test_values_are_recorded_in_the_step_of_the_first_difference(make: Any) -> None:
    c = TraceComparison(make(steps=6), make(steps=6, out=lambda step: 2 * X + (step == 5)))
    assert _unseen(c, {*range(5)}, values=True) == {4, 5}
    assert _unseen(c, {*range(5)}, values=False) is None
    assert _unseen(c, {*range(6)}, values=True) is None


def test_labels_that_differ_are_counted(make: Any) -> None:
    targets = [0, 99, *range(2, 20)]
    finding = found(make(), make(targets=targets))
    assert (finding.cause, finding.phase) == ("labels", "loss")
    assert "5 % of 40 targets" in finding.sentence


def test_data_in_another_order_is_told_from_other_data(make: Any) -> None:
    c = TraceComparison(make(), make(given_=X[::-1], batches=range(19, -1, -1), out=X))
    finding = judge(c, c.front())
    assert (finding.phase, finding.cause) == ("data", "order")
    scaled = found(make(), make(given_=X / 16, batches=range(50, 70), out=X))
    assert (scaled.phase, scaled.cause) == ("data", "scale")
    assert "0.0625 times" in scaled.sentence
    zeros = found(make(), make(given_=0 * X, batches=range(50, 70), out=X))
    assert zeros.sentence == "the input is zero"


def test_inputs_made_of_equal_rows_are_no_other_rows(tmp_path: Path) -> None:
    """The noise of a diffusion model: the steps that are drawn with it are the same."""
    sides = []
    for name, noised in (("a", X), ("b", X**2 + 1)):
        w = Writer(tmp_path / name)
        w.module("", "net.Net")
        for position, values in enumerate((noised, X)):
            w.batch("input", values.tolist(), position)
        tensors = [w.tensor(noised), w.tensor(X)]
        w.add("enter", p="", n=0, c="", tr=True, u=None, ac=None, w=-1, x=tensors)
        w.leave("", noised)
        w.learn(float(noised.sum()), {"weight": noised}, {"weight": X - noised})
        sides.append(w.done())
    assert found(*sides).sentence == "the input differs in 100 % of its elements"


def test_a_generator_that_draws_other_numbers_is_told_by_its_call(tmp_path: Path) -> None:
    draw, sides = np.random.default_rng(0), []
    for name in "ab":
        w = Writer(tmp_path / name)
        w.module("", "net.Net")
        for _ in range(2):
            noise = draw.uniform(size=6)
            w.call("rand", None, noise, "6, generator=Generator")
            w.call("add", None, X + noise, "_, _", i=["x", "noise"])
            w.enter("", X + noise)
            w.leave("", X + noise)
            w.learn(float(noise.sum()), {"weight": noise}, {"weight": X - noise})
        sides.append(w.done())
    assert found(*sides).sentence.endswith("; `rand(6, generator=Generator)` draws other numbers")


def test_weights_drawn_anew_are_told_from_wrong_weights(make: Any) -> None:
    draw = np.random.default_rng(0)
    one, other = draw.normal(0, 0.02, 6), draw.normal(0, 0.02, 6)
    anew = found(make(start=one, out=X), make(start=other, out=X + 1))
    assert (anew.phase, anew.cause) == ("initialisation", "random")
    wrong = found(make(start=one), make(start=10 * one, out=X))
    assert (wrong.cause, wrong.module) == ("initialisation", "body")
    assert "10 times" in wrong.sentence


def test_a_new_computation_is_named_before_a_look_at_a_part_of_a_tensor(tmp_path: Path) -> None:
    traces = []
    for name, calls, out in (("a", (), X), ("b", (("__getitem__", X), ("div", X / 2)), X / 2)):
        writer = Writer(tmp_path / name)
        writer.module("", "net.Net")
        writer.init("weight", X)
        writer.enter("", X)
        for call, result in calls:
            writer.call(call, "", result)
        writer.leave("", out)
        writer.learn(float(out.sum()), {"weight": out}, {"weight": X - out})
        traces.append(writer.done())
    finding = found(*traces)
    assert finding.sentence == "the model itself computes something else: `div(_)` is new"


def test_what_a_difference_comes_from_is_named_not_who_is_given_it_next(tmp_path: Path) -> None:
    """A division that is gone was told as `masked_fill`, the next call with another result; a mask
    as the longest of calls; and a look at a part of a tensor came before both."""

    def train(name: str, computed: Any) -> Trace:
        writer = Writer(tmp_path / name)
        writer.module("", "net.Net")
        writer.enter("", X)
        last = given = X
        for call, literals, last in computed:
            marks = [writer.tensor(values)["h"] for values in (given, X)]
            writer.call(call, "", last, literals, i=marks[: literals.count("_")])
            given = last
        writer.leave("", last)
        writer.learn(float(last.sum()), {"weight": last}, {"weight": X - last})
        return writer.done()

    sum_ = ("sum", "_", X[:1] + 3)
    whole = [("matmul", "_", 8 * X), ("div", "_, 2", 4 * X), ("fill", "_, _", 4 * X + 1), sum_]
    a = train("a", whole)
    look = ("__getitem__", "_, slice(None)", 8 * X)
    cut = found(a, train("b", [whole[0], look, ("fill", "_, _", 8 * X + 1), ("sum", "_", X[:1])]))
    assert cut.sentence == "the model itself computes something else: `div(_, 2)` is gone"
    assert cut.operator == "div(_, 2)"
    other = ("div", "_, 3", 8 * X / 3)
    masked = found(a, train("c", [whole[0], other, ("fill", "_, _", X + 1), ("sum", "_", X[:1])]))
    assert masked.sentence == "the model itself calls `div(_, 3)` instead of `div(_, 2)`"
    keyed = train("d", [("attention", "_, mask=_", X + 1), sum_])
    bare = found(keyed, train("e", [("attention", "_", X + 2), ("sum", "_", X[:1])]))
    assert bare.sentence == "the model itself calls `attention` without `mask=_`"


def test_an_input_and_a_tie_that_are_cut_are_named(tmp_path: Path) -> None:
    def train(name: str, *, mask: bool, tied: bool) -> Trace:
        writer = Writer(tmp_path / name)
        for path in ("", "block", "embed", "head"):
            writer.module(path, "net.Net")
        writer.init("embed.weight", X)
        writer.init("head.weight", X, **({"tied": "embed.weight"} if tied else {}))
        writer.enter("", X)
        given = [("x", X), ("mask", X > 2)][: 1 + mask]
        tensors = [writer.tensor(values) for _, values in given]
        writer.add("enter", p="block", n=0, c="", tr=True, u="", ac=None, w=-1, x=tensors,
                   of=[name for name, _ in given])  # fmt: skip
        out = X * (2 if mask else 3) + tied
        writer.leave("block", out)
        writer.leave("", out)
        writer.learn(float(out.sum()), {"embed.weight": out}, {"embed.weight": X - out})
        return writer.done()

    a = train("a", mask=True, tied=True)
    unmasked = found(a, train("b", mask=False, tied=True))
    assert unmasked.sentence == "the model itself no longer gives `mask` to `block`"
    untied = found(a, train("c", mask=True, tied=False))
    assert (untied.cause, untied.phase, untied.module) == ("tie", "initialisation", "head")
    assert untied.sentence == "`head.weight` is no longer tied to `embed.weight`"


def test_a_loss_without_modules_is_explained_by_its_calls(tmp_path: Path) -> None:
    traces = []
    for name, factor in (("a", 2), ("b", 3)):
        writer = Writer(tmp_path / name)
        writer.call("mul", None, X * factor, f"_, {factor}")
        writer.call("mul", None, X * factor**2, f"_, {factor}")
        weights = {"parameter 0.0": X * factor}
        writer.learn(float(factor), weights, weights)
        traces.append(writer.done())
    finding = found(*traces)
    assert (finding.phase, finding.cause, finding.sureness) == ("loss", "argument", "sure")
    assert finding.sentence == "the loss calls `mul(_, 3)` instead of `mul(_, 2)`"
    assert finding.facts == ["no longer called: mul(_, 2)", "newly called: mul(_, 3)"]


def test_parameters_without_a_module_are_followed_through_a_new_name(tmp_path: Path) -> None:
    def train(name: str, weight: str, start: Any) -> Trace:
        writer = Writer(tmp_path / name)
        writer.call("mul", None, start * 3, "_, 3")
        writer.add("loss", x=[writer.tensor(start.sum())])
        writer.init(weight, start, made="mul_", literals=f"_, {start.max():g}")  # met by the step
        writer.learn(float(start.sum()), {weight: X}, {weight: start - X})
        return writer.done()

    before = train("a", "w1", X)
    renamed = TraceComparison(before, train("b", 'weights["1"]', X))
    assert (renamed.front(), renamed.equal) == (None, True)
    finding = found(before, train("c", "layers[0].gain", 10 * X))
    assert (finding.cause, finding.module, finding.tensor) == (
        "initialisation", None, "`layers[0].gain`",
    )  # fmt: skip
    assert "it is 10 times what it was" in finding.sentence


def test_two_values_drawn_anew_have_no_distribution_to_differ_in(make: Any) -> None:
    """With two lines of a constructor swapped, a bias of two elements was wrong, and sure."""
    one, other = np.array([0.11, 0.12]), np.array([-0.9, 0.4])
    trained = {"given_": X[:2], "out": X[:2]}
    finding = found(make(start=one, **trained), make(start=other, **trained | {"out": X[1:3]}))
    assert (finding.phase, finding.cause) == ("initialisation", "random")
    zeros = found(make(start=one, **trained), make(start=0 * one, made="zeros_", **trained))
    assert (zeros.cause, zeros.sureness) == ("initialisation", "sure")


def test_a_weight_that_is_written_in_another_part_is_not_drawn_anew(make: Any) -> None:
    """A forget gate's bias of one, set in the quarter before: no number was drawn otherwise."""
    drawn = np.random.default_rng(3).uniform(-0.2, 0.2, 64)
    gates = [np.where(np.arange(64) // 16 == gate, 1.0, drawn) for gate in (0, 1)]
    trained = {"given_": drawn, "out": drawn}
    finding = found(make(start=gates[1], **trained), make(start=gates[0], **trained))
    assert (finding.cause, finding.sureness) == ("initialisation", "sure")
    assert "in 50 % of its elements" in finding.sentence


def test_a_trace_cut_short_by_a_kill_is_read_as_far_as_it_goes(make: Any, tmp_path: Path) -> None:
    make()
    file = tmp_path / "0" / "events.jsonl"
    text = file.read_text()
    file.write_text(text[: len(text) * 3 // 4])
    trace = read(tmp_path / "0")
    assert not trace.ended
    assert trace.steps == 1


def tensor(values: Any, dtype: str = "float32") -> Tensor:
    array = np.asarray(values, dtype=np.float64)
    finite = bool(np.isfinite(array).all())
    return Tensor(str(array.tolist()), dtype, array.shape, False, finite, array)


numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30)


@given(numbers, st.floats(0.01, 100))
def test_a_scaled_tensor_has_its_factor_and_direction(values: list[float], factor: float) -> None:
    a = np.array(values)
    far = distance(tensor(a), tensor(a * factor))
    if np.linalg.norm(a) > 1e-3:
        assert far.ratio == pytest.approx(factor, rel=1e-4)
        assert far.cosine == pytest.approx(1.0)
        assert far.relative == pytest.approx(abs(factor - 1), rel=1e-6, abs=1e-9)


@given(numbers)
def test_what_is_not_finite_on_one_side_is_infinitely_far(values: list[float]) -> None:
    broken = [*values[:-1], float("inf")]
    assert distance(tensor(values), tensor(broken)).largest == np.inf
    assert distance(tensor(broken), tensor(broken)).share == 0.0


def test_other_additions_are_rounding_and_another_epsilon_is_not() -> None:
    draw = np.random.default_rng(1)
    a = draw.normal(size=1000)
    assert distance(tensor(a), tensor(a * (1 + 2.0**-23))).rounding
    assert not distance(tensor(a), tensor(a * 1.0001)).rounding
    assert distance(tensor(a, "bfloat16"), tensor(a * 1.004, "bfloat16")).rounding


@given(st.integers(0, 10_000), st.sampled_from([10, 100, 1000]))
def test_two_draws_of_one_distribution_are_that(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    for law in (draw.standard_normal, draw.random):
        assert same_distribution(tensor(law(size)), tensor(law(size)))
    if size >= 100:
        assert not same_distribution(
            tensor(draw.normal(0, 1, size)), tensor(draw.normal(0, 3, size))
        )


DIVERGED = "the loss is not a finite number at step"
DIFFERS = "the loss differs by 0 at step 0, 0.5 at step"


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((1.0, 1.0, 1.0), "the loss stays the same"),
        ((1.0, 1.0, math.nan), f"{DIVERGED} 2; until then the loss stays the same"),
        ((math.nan, math.nan, math.nan), f"{DIVERGED} 0"),
        ((1.0, 1.5, math.inf), f"{DIVERGED} 2; until then {DIFFERS} 1 of its size"),
        ((1.0, 1.5, 1.5), f"{DIFFERS} 2 of its size; it does not grow"),
    ],
)
def test_a_loss_that_turns_nan_does_not_stay_the_same(
    tmp_path: Path, losses: tuple[float, ...], said: str
) -> None:
    traces = []
    for name, values in (("a", (1.0, 1.0, 1.0)), ("b", losses)):
        writer = Writer(tmp_path / name)
        for value in values:
            writer.learn(value, {}, {})
        traces.append(writer.done())
    growth = TraceComparison(*traces).growth()
    commit = Commit("0" * 40, "0" * 40, (), "", 0, 0, "")
    finding = ExplainFinding(FindingPhase.LOSS, 0, None, "", "", "", "the loss differs")
    sides = Side("a", commit), Side("b", commit)
    explained = Explanation("fit", *sides, 0, 3, "difference", finding=finding, growth=growth)
    then = [x for x in explanation_text(explained, tmp_path).splitlines() if "then  " in x]
    assert then == [f"  then        {said}"]
    (document,) = explanations_json([explained], tmp_path)["explanations"]  # type: ignore[misc]
    diverged = next((s for s, x in enumerate(losses) if not math.isfinite(x)), None)
    assert document["loss_not_finite_at"] == diverged  # type: ignore[index,call-overload]
    if diverged is not None:
        assert document["grows"]  # type: ignore[index,call-overload]
        assert rounding_ratio(growth, TraceComparison(traces[0], traces[0]).growth()) > 30


def test_rounding_is_judged_by_what_rounding_does() -> None:
    steps = tuple(range(20))

    def growth(start: float, rate: float) -> Growth:
        return Growth(steps, tuple(start * rate**s for s in steps))

    assert rounding_ratio(growth(1e-7, 1.5), growth(2e-7, 1.5)) <= 1
    assert rounding_ratio(growth(1e-3, 1.5), growth(2e-7, 1.5)) > 30
    assert rounding_ratio(growth(1e-7, 4.0), growth(1e-7, 1.2)) > 30


def evaluated(folder: Path, out: float, *, value: float | None = None) -> Trace:
    w = Writer(folder)
    w.module("", "net.Net")
    w.enter("", X)
    w.leave("", X)
    w.learn(1.0, {"weight": X}, {"weight": X})
    w.enter("", X, e=1)
    w.leave("", X * out, e=1)
    if value is not None:
        w.add("report", e=0, v={"val_loss": value})
    return w.done()


def test_an_evaluation_counts_where_a_script_reports_nothing(tmp_path: Path) -> None:
    silent = [evaluated(tmp_path / name, out) for name, out in (("a", 1.0), ("b", 2.0))]
    answer = found(*silent)
    assert answer is not None
    assert answer.phase is FindingPhase.EVALUATION
    equal = [evaluated(tmp_path / f"{out}", out, value=3.0) for out in (1.0, 2.0)]
    assert found(*equal) is None  # what is reported of it agrees


@pytest.mark.parametrize("goes_on", [True, False])
def test_of_an_evaluation_that_goes_on_unseen_the_last_calls_tell_nothing(
    goes_on: bool, tmp_path: Path
) -> None:
    """In another order, others are among the first calls that are seen."""
    sides = []
    for name, calls, value in (("a", ("exp", "sub"), 1.0), ("b", ("sub",), 2.0)):
        w = Writer(tmp_path / name)
        w.module("", "net.Net")
        w.learn(1.0, {"weight": X}, {"weight": X})
        w.enter("", X, e=1)
        w.leave("", X, e=1)
        for call in calls:
            w.call(call, None, X * value + len(call), e=1)
        if goes_on:
            w.add("unseen", e=1)
        w.add("report", e=0, v={"acc": value})
        sides.append(w.done())
    assert ("`exp(_)` is gone" in found(*sides).sentence) is not goes_on


def test_weights_first_used_later_are_no_initialisation(tmp_path: Path) -> None:
    sides = []
    for name, decay in (("a", "0.9"), ("b", "0.1")):
        w = Writer(tmp_path / name)
        w.site(0, ("/tree/fit.py", 7, "update"))
        w.module("", "net.Net")
        w.enter("", X)
        w.leave("", X)
        w.learn(1.0, {"weight": X}, {"weight": X})
        w.call("lerp_", None, X * float(decay), f"_, _, {decay}", site=0)
        values = w.tensor(X * float(decay))
        w.events.append({"k": "init", "t": 1, "p": "Average:weight", "r": "parameter", "x": values})
        sides.append(w.done())
    answer = found(*sides)
    assert answer is not None
    assert (answer.phase, answer.step) == (FindingPhase.UPDATE, 1)
    assert "lerp_(_, _, 0.1)" in answer.sentence
    assert answer.places[0].frames[0].line == 7


def test_a_hunk_that_ran_last_before_a_crash_is_not_held_for_later(tmp_path: Path) -> None:
    old = "y = f(x)\nz = g(y)\n"
    change = CodeChange(hunks(old, "y = f(x)\nz = h(y)\n"), ({"fit.py": old}, {"fit.py": old}))
    sides = []
    for side in "ab":
        told = Writer(tmp_path / side)
        told.module("")
        told.enter("", X)
        told.add("value", h=0, q="<y", m=1, v="1", d="1", u=0, s="number")
        sides.append(told.done())
    c = TraceComparison(*sides)
    (pair,) = c.pairs
    assert hunk_values(c, Front(pair, "enter", ()), change) == {change.hunks[0]: Verdict.LATER}
    assert _values_in_common(c, change) == {}
    before = tuple(event for event in sides[1].events if event.kind != "value")
    c = TraceComparison(sides[0], replace(sides[1], events=before))
    assert _values_in_common(c, change) == {change.hunks[0]: Verdict.LATER}


def test_a_crash_is_blamed_on_what_parted_the_trainings_before(tmp_path: Path) -> None:
    """A schedule that is stepped twice ends early: the optimiser fails at a rate that is none."""
    old, new = "y = net(x)\nstep()\nr = f()\n", "z = net(x)\nstep()\nr = g()\n"
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    sides = []
    for side, rates in (("a", (0.1, 0.1, 0.1)), ("b", (0.1, "complex"))):
        told = Writer(tmp_path / side)
        told.site(0, ("/tree/fit.py", 3, "<module>"))
        told.module("")
        for rate in rates:
            told.enter("", X)
            told.leave("", X)
            told.learn(1.0, {"weight": X}, {"weight": X}, lr=rate)
        for event in told.events:
            event |= {"at": 0} if event["k"] == "hyper" else {}
        sides.append(replace(told.done(), files=frozenset({"/tree/fit.py"})))
    raised = (Frame("/tree/fit.py", 2, "<module>"),)
    c = TraceComparison(*sides)
    runs = TracedRuns(sides[:1], sides[1:], [0, 1], c, "no number", raised)
    finding, blamed = _explain_crash(runs, change, Path("/tree"), exact=True)
    assert finding.sentence == "it fails at step 2: no number"
    (fact,) = finding.facts
    assert fact.endswith(
        "diverge earlier, in step 1: optimiser settings differ at step 1: lr 0.1 → complex"
    )
    assert blamed[0].hunk == change.hunks[1]
    _, blamed = _explain_crash(runs, change, Path("/tree"), exact=False)
    assert blamed[0].hunk == change.hunks[0]


def test_what_each_run_makes_otherwise_says_nothing(tmp_path: Path) -> None:
    """The name of a temporary folder."""
    old, new = "y = folder()\n", "y = str(folder())\n"
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    runs = []
    for run in "abc":
        told = Writer(tmp_path / run)
        told.module("")
        told.add("value", h=0, q="y", m=1, v=run, d=run, u=0, s="text")
        told.enter("", X)
        runs.append(told.done())
    c = TraceComparison(*runs[:2])
    front = Front(c.pairs[0], "enter", ())
    assert hunk_values(c, front, change) == {change.hunks[0]: Verdict.FIRST}
    assert hunk_values(c, front, change, unsteady_values(runs[0], runs[2])) == {}


def test_a_line_in_another_block_is_first_where_it_runs_less_often(tmp_path: Path) -> None:
    """`done += 1` after its loop instead of within it."""
    old = "for x in y:\n    step()\n    n += 1\nfor x in z:\n    k = f()\n"
    new = "for x in y:\n    step()\nn += 1\nfor x in z:\n    k = g()\n"
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    for times, verdicts in ((1, {}), (2, {change.hunks[0]: Verdict.FIRST})):
        sides = []
        for side, count in (("a", times), ("b", 1)):
            told = Writer(tmp_path / f"{side}{times}")
            told.module("")
            seen = {"m": 1, "v": f"{count}", "d": f"{count}", "u": 1, "s": "number"}
            told.add("value", h=0, q="<n", **seen)
            told.add("value", h=0, q="n", **{**seen, "m": count})
            told.enter("", X)
            sides.append(told.done())
        c = TraceComparison(*sides)
        assert hunk_values(c, Front(c.pairs[0], "enter", ()), change) == verdicts


def test_another_value_counts_beside_one_that_only_shares_memory(tmp_path: Path) -> None:
    old, new = "x = f(w)\ny = 1\n", "x = g(w)\ny = 2\n"
    change = CodeChange(hunks(old, new), ({"fit.py": old}, {"fit.py": new}))
    sides = []
    for side, shared in (("a", ""), ("b", " shared")):
        told = Writer(tmp_path / side)
        told.module("")
        told.add("value", h=0, q="x", m=1, v="1", d="1", u=0, s=f"tensor (4,){shared}")
        told.add("value", h=0, q="y", m=1, v=side, d=side, u=0, s="number")
        told.enter("", X)
        sides.append(told.done())
    c = TraceComparison(*sides)
    (verdict,) = hunk_values(c, Front(c.pairs[0], "enter", ()), change).values()
    assert verdict is Verdict.FIRST
