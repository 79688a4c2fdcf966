"""What a training may write on the channel, and what celedger makes of it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.base.model import ALLOCATOR, Command, Direction, Floor, Kind, Metric, Task, is_summary
from celedger.trial import protocol
from celedger.trial.protocol import (
    TELEMETRY,
    Parser,
    missing,
    summaries,
    summarise,
    with_telemetry,
)


def feed(*lines: str | bytes) -> tuple[Parser, list[object]]:
    parser = Parser()
    return parser, [parser.feed(x if isinstance(x, bytes) else x.encode()) for x in lines]


def test_a_report_carries_epoch_values_and_fingerprint() -> None:
    _, (report,) = feed('{"epoch": 3, "val_loss": 0.5, "ok": true, "fingerprint": "9f"}')
    assert (report.epoch, report.fingerprint) == (3, "9f")
    assert report.values == {"val_loss": 0.5, "ok": 1.0}


def test_a_line_without_epoch_follows_the_last_one() -> None:
    _, reports = feed('{"a": 1}', '{"a": 1}', '{"epoch": 7, "a": 1}', '{"epoch": 2, "a": 1}',
                      '{"a": 1}')  # fmt: skip
    assert [r.epoch for r in reports] == [0, 1, 7, 2, 8]


@pytest.mark.parametrize("said", ["NaN", '"nan"', '"NaN"'])
def test_nan_is_kept_as_nan(said: str) -> None:
    _, (report,) = feed(f'{{"epoch": 0, "loss": {said}}}')
    assert math.isnan(report.values["loss"])


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Infinity", math.inf),
        ('"-inf"', -math.inf),
        ("1e999", math.inf),
        ("1" + "0" * 400, math.inf),
    ],
)
def test_infinities_are_kept(said: str, value: float) -> None:
    _, (report,) = feed(f'{{"epoch": 0, "loss": {said}}}')
    assert report.values["loss"] == value


@pytest.mark.parametrize(
    "line",
    ["", "hello", "[1]", "3", '{"epoch": -1, "a": 1}', '{"epoch": true, "a": 1}',
     '{"epoch": "x", "a": 1}', '{"epoch": 1.5, "a": 1}', b"\xff\xfe", "[" * 100_000,
     '{"epoch": 0, "fingerprint": 3, "a": 1}', '{"epoch": 99999999999, "a": 1}',
     b'{"a": 1, "pad": "' + b"x" * protocol.MAX_LINE + b'"}'],
)  # fmt: skip
def test_rubbish_is_counted_and_never_raises(line: str | bytes) -> None:
    parser, (report,) = feed(line)
    assert report is None
    assert parser.rubbish == 1


def test_a_value_that_is_no_number_is_left_out_and_the_rest_kept() -> None:
    parser, (report,) = feed('{"epoch": 0, "a": 1, "b": [2], "c": "x", "9bad": 1, "d": null}')
    assert report.values == {"a": 1.0}
    assert parser.rubbish == 3  # null says "absent", and is no rubbish


def test_an_integer_of_more_digits_than_python_converts_is_infinite_and_the_rest_kept() -> None:
    digits = "9" * 5000
    parser, (report,) = feed(f'{{"epoch": 7, "loss": 0.5, "a": {digits}, "b": -{digits}}}')
    assert (report.epoch, report.values) == (7, {"loss": 0.5, "a": math.inf, "b": -math.inf})
    assert parser.rubbish == 0


def test_a_flood_of_names_is_bounded() -> None:
    parser, reports = feed(*(f'{{"epoch": 0, "m{i}": 1}}' for i in range(protocol.MAX_METRICS + 5)))
    assert sum(r is not None for r in reports) == protocol.MAX_METRICS
    assert parser.rubbish >= 5


@given(st.binary(max_size=200))
def test_no_bytes_whatever_make_the_parser_raise(line: bytes) -> None:
    Parser().feed(line)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).filter(
            lambda n: n not in ("epoch", "fingerprint")
        ),
        st.floats(),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 10_000),
)
def test_every_report_survives_json(values: dict[str, float], epoch: int) -> None:
    report = Parser().feed(json.dumps({"epoch": epoch, **values}).encode())
    assert report is not None
    assert report.epoch == epoch
    assert {k: repr(v) for k, v in report.values.items()} == {k: repr(v) for k, v in values.items()}


SERIES = [(2, 0.2), (0, 0.9), (1, 0.1), (3, 0.4)]  # reported out of order


@pytest.mark.parametrize(
    ("summary", "direction", "value"),
    [
        ("last", Direction.LOWER, 0.4),
        ("best", Direction.LOWER, 0.1),
        ("best", Direction.HIGHER, 0.9),
        ("max", Direction.LOWER, 0.9),
        ("mean-of-last-2", Direction.LOWER, 0.3),
        ("mean-of-last-9", Direction.LOWER, 0.4),
        ("median-after-1", Direction.LOWER, 0.2),
        ("median-after-9", Direction.LOWER, 0.3),
        ("worst", Direction.LOWER, 0.9),
        ("worst", Direction.HIGHER, 0.1),
        ("area", Direction.LOWER, 0.4),
        ("at-1", Direction.LOWER, 0.1),
        ("epochs-to-0.2", Direction.LOWER, 2),
        ("epochs-to-0.5", Direction.HIGHER, 1),
        ("epochs-to--0.5", Direction.LOWER, math.inf),
    ],
)
def test_summaries_follow_the_epochs_not_the_order_of_reports(
    summary: str, direction: Direction, value: float
) -> None:
    metric = Metric("m", direction=direction, summary=summary)
    assert summarise(metric, SERIES) == pytest.approx(value)


@pytest.mark.parametrize(
    "summary", ["best", "worst", "area", "max", "mean-of-last-4", "median-after-1"]
)
def test_a_training_that_diverged_cannot_hide_behind_its_best_epoch(summary: str) -> None:
    metric = Metric("m", direction=Direction.LOWER, summary=summary)
    assert math.isnan(summarise(metric, [(0, 0.5), (1, math.nan), (2, 0.4)]))


def test_an_empty_series_has_no_summary() -> None:
    assert summarise(Metric("m"), []) is None
    assert summarise(Metric("m", summary="at-3"), [(0, 1.0)]) is None
    assert summaries([], {"m": []}) == {}


def test_one_series_has_as_many_summaries_as_wanted() -> None:
    metrics = [
        Metric("accuracy", direction=Direction.HIGHER),
        Metric("slow", direction=Direction.LOWER, summary="epochs-to-0.4 of accuracy"),
        Metric("mean", summary="area of accuracy"),
        Metric("absent", direction=Direction.LOWER, summary="worst of loss"),
    ]
    values = summaries(metrics, {"accuracy": [(0, 0.1), (1, 0.5), (2, 0.6)]})
    assert values == pytest.approx({"accuracy": 0.6, "slow": 2, "mean": 0.4})
    assert missing(Task("s", "t", (), metrics=tuple(metrics)), values) == ("absent",)
    assert not is_summary("at-x of loss")


def test_only_judged_metrics_can_be_missing() -> None:
    task = Task(
        "s", "t", (Command("main", ("true",)),),
        metrics=(Metric("loss", direction=Direction.LOWER), Metric("note"),
                 Metric("peak_rss", direction=Direction.LOWER, kind=Kind.MEMORY)),
    )  # fmt: skip
    assert protocol.missing(task, {}) == ("loss",)
    assert protocol.missing(task, {"loss": math.nan}) == ()


def test_a_suite_may_redefine_what_the_runner_measures() -> None:
    own = Metric("peak_rss", "B", Direction.INFO, Kind.MEMORY)
    task = protocol.with_telemetry(Task("s", "t", (), metrics=(own,)))
    assert task.metric("peak_rss") == own._replace(summary="max")
    assert task.metric("duration") is not None


@pytest.mark.parametrize("preload", [(), ("torch",)])
def test_a_suite_that_declares_telemetry_as_it_is_declares_it(preload: tuple[str, ...]) -> None:
    for metric in TELEMETRY:
        task = with_telemetry(Task("s", "t", (), preload=preload, metrics=(metric,)))
        declared = task.metric(metric.name)
        assert declared is not None and declared not in TELEMETRY
        assert declared.floor.amount == pytest.approx(metric.floor.amount, rel=1e-9)
        if preload or metric.summary not in ("warm", "max-own"):
            silent = metric._replace(summary="last")  # as a suite has it that says nothing of it
            task = with_telemetry(task._replace(metrics=(silent,)))
            assert task.metric(metric.name) == declared


def test_memory_without_what_a_suite_preloads_is_another_definition() -> None:
    declared = Metric("peak_rss", "B", Direction.INFO, Kind.MEMORY, summary="last")
    plain = Task("s", "t", (), preload=())
    for task, rule in ((plain, "max"), (plain._replace(preload=("torch",)), "max-own")):
        own = [m for m in with_telemetry(task).metrics if m.name == "peak_rss"]
        assert [m.summary for m in own] == [rule]
        assert own[0] in TELEMETRY  # so it never fails a check by itself
    task = plain._replace(preload=("torch",), metrics=(declared,))
    assert with_telemetry(task).metric("peak_rss") == declared._replace(summary="max-own")
    assert summarise(Metric("m", summary="max-own"), [(0, 1.0), (1, 3.0), (2, 2.0)]) == 3.0


def test_a_leak_is_as_large_where_it_differs_by_less_than_a_tenth() -> None:
    growth = Metric("memory_growth", "B", Direction.LOWER, Kind.MEMORY, Floor(1024.0))
    assert (growth.floor_at(186.0), growth.floor_at(420e3)) == (1024.0, 42e3)
    assert growth._replace(floor=Floor(0.01, relative=True)).floor_at(420e3) == 4.2e3


def test_a_share_of_memory_without_what_was_preloaded_is_at_least_the_allocators_luck() -> None:
    task = Task("core", "mlp", (), preload=("torch",))
    warm = with_telemetry(task).metric("peak_rss")
    cold = with_telemetry(task._replace(preload=())).metric("peak_rss")
    assert warm.floor_at(20e6) == warm.visible_at(20e6) == ALLOCATOR
    assert warm.floor_at(1e9) == cold.floor_at(1e9) == pytest.approx(0.03e9)
    assert cold.floor_at(20e6) == pytest.approx(0.6e6)
    own = warm._replace(floor=Floor(1e6))  # who asks for a megabyte gets it
    assert own.floor_at(20e6) == 1e6


def test_a_declared_peak_stays_one() -> None:
    """It was the last sample's, of what the task declares to change its floor."""
    declared = Metric("gpu_memory", "B", Direction.LOWER, Kind.MEMORY)
    task = with_telemetry(Task("s", "t", (), metrics=(declared,)))
    assert task.metric("gpu_memory") == declared._replace(summary="max")
    own = declared._replace(summary="area")
    assert with_telemetry(task._replace(metrics=(own,))).metric("gpu_memory") == own
