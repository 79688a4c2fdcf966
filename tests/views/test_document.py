from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.base.model import Direction
from celedger.base.text import escaped
from celedger.views.document import (
    Column,
    UnitScale,
    amount,
    amounts,
    change,
    clip,
    document,
    dumps,
    duration,
    iso_date,
    measure,
    number,
    percent,
    plain,
    probability,
    relative,
    short,
    strict,
    table,
)  # fmt: skip

NAN = math.nan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00042, "420 µs"), (0.84, "840 ms"), (12.34, "12.3 s"), (59.96, "1 m 00 s"),
        (185, "3 m 05 s"), (3599.8, "1 h 00 m"), (3720, "1 h 02 m"), (86399, "23 h 59 m"),
        (90000, "25 h 00 m"), (-185, "-3 m 05 s"), (NAN, "nan"),
    ],
)  # fmt: skip
def test_a_duration_is_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "noise", "text"),
    [
        (0.41324, 0.0021, "0.4132"), (0.41324, 0.0996, "0.41"), (1234567.0, 345.0, "1234567"),
        (1.234e-5, 1e-6, "1.23e-5"), (0.5, 0.0, "0.5000"), (5.0, NAN, "5"), (0.0, NAN, "0"),
        (123.456, NAN, "123.5"), (NAN, 1.0, "nan"), (-math.inf, NAN, "-inf"), (-0.3, 40.0, "0"),
    ],
)  # fmt: skip
def test_the_noise_decides_the_digits(value: float, noise: float, text: str) -> None:
    assert number(value, noise) == text


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(min_value=0))
def test_every_number_can_be_written(value: float, noise: float) -> None:
    text = number(value, noise)
    assert text
    # The very largest numbers round up past what a float can hold.
    if math.isfinite(value) and abs(value) < 1e308 and not noise > 0:
        assert math.isclose(float(text), value, rel_tol=1e-3, abs_tol=1e-300)


def test_bytes_and_seconds_take_the_unit_that_reads_best() -> None:
    assert measure(312.4 * 2**20, 0.31 * 2**20, unit="B", spread=True) == "312.40 ± 0.31 MiB"
    assert measure(1023, unit="B") == "1023 B"
    assert measure(0.0031, unit="s") == "3.100 ms"
    assert measure(71.2, unit="%") == "71.20 %"
    assert UnitScale.of("B", 5e9).unit == "GiB"


def test_a_change_keeps_the_unit_of_what_changed() -> None:
    assert change(-0.38, 0.1, unit="s", scale_of=12.0) == "-0.38 s"
    assert change(2.0**19, unit="B", scale_of=2.0**28) == "+0.500 MiB"
    assert change(0.5, 0.1, unit="%", scale_of=91.0) == "+0.50 pp"


def test_ratios_and_probabilities() -> None:
    assert [relative(x, -1.0) for x in (0.0812, -0.5, 1.23, 0.004, 1e-6)] == [
        "+8.1 %", "-50.0 %", "+123 %", "+0.40 %", "0 %",
    ]  # fmt: skip
    assert percent(0.0812) == "8.1 %"
    assert relative(1.0, 0.0) == ""
    assert [probability(p) for p in (0.9999, 0.97, 0.001)] == ["> 99 %", "97 %", "< 1 %"]


def test_a_change_beyond_ten_times_the_level_is_a_multiple() -> None:
    assert [relative(x, 2.0) for x in (20.0, 22.0, 2001.0)] == ["+1000 %", "× 12", ""]
    assert [relative(x, -1.0) for x in (-10.9, 41.0)] == ["× 11.9", ""]  # no multiple of a loss
    assert amount(629_540.0, 4.0, unit="B") == "+615 KiB"  # a leak, not "× 157386"
    assert amount(131_395.0, 189.0, unit="B") == "+128 KiB"  # nor "× 696": its noise is a third
    assert amount(16_690.0, 344.0, unit="B") == "+16.3 KiB"  # of one task, beside "× 49" of another
    assert amount(16_690.0, 344.0, unit="s") == "× 49.5"
    ends = amounts((10_000.0, 20_000.0), 189.0, unit="B")
    assert ends == ["+9.77 KiB", "+19.5 KiB"]  # both alike, though one had a multiple
    assert percent(31.0) == "× 31"
    assert [percent(x) for x in (3651.7, 2e6)] == ["× 3652", "× 2e06"]


def test_dates_are_utc_and_hashes_short() -> None:
    assert iso_date(1_772_000_000) == "2026-02-25"
    assert short("0123456789abcdef") == "01234567"


def test_a_strangers_text_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[31mred\x1b[0m\n\tb\u202ec\x1b]0;title\x07") == "ared b\\u202ec"
    assert plain("می\u200cخواهم  👩\u200d💻") == "می\u200cخواهم 👩\u200d💻"
    assert escaped("a\x1b[8m\tb\u200b") == "a\\x1b[8m\\tb\\u200b"


def test_a_long_text_is_cut_at_its_end() -> None:
    assert clip("a long subject", 7) == "a long…"
    assert clip("short", 5) == "short"


def test_columns_line_up_and_only_text_is_cut() -> None:
    columns = (Column("name", shrink=True), Column("n", right=True), Column("empty"))
    rows = [("a very long name indeed", "1", ""), ("short", "1000", "")]
    lines = table(columns, rows, width=20, indent=1).splitlines()
    assert lines == [
        " name              n",
        " a very long…      1",
        " short          1000",
    ]
    assert table(columns, [], width=20) == ""


def test_the_last_column_may_go_on_in_the_next_line() -> None:
    columns = (Column("metric"), Column("", wrap=True))
    text = "within noise, detects 0.99 ms (8.3 %), takes about 12 trials"
    lines = table(columns, [("step_time", text)], width=40).splitlines()
    assert " ".join(line[11:] for line in lines[1:]) == text
    assert all(len(line) <= 40 for line in lines)


def test_json_is_strict_whatever_was_measured() -> None:
    answer = document(
        a=NAN, b=[math.inf, -math.inf, 1.5], c=Direction.LOWER, d={"x/y": Path("p"), "~": [[NAN]]},
        e=None,
    )  # fmt: skip
    text = dumps(answer)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "schema": 1, "a": None, "b": [None, None, 1.5], "c": "lower",
        "d": {"x/y": "p", "~": [[None]]}, "e": None,
        "not_finite": {"/a": "nan", "/b/0": "inf", "/b/1": "-inf", "/d/~0/0/0": "nan"},
    }  # fmt: skip
    assert "not_finite" not in json.loads(dumps(document(a=1.0, b=None)))
    with pytest.raises(TypeError):
        strict(object())
