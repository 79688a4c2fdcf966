"""Tables in a room of any width: nothing is cut that a person needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celedger.views.document import GREEN, RED, Column, colourless, table

COLUMNS = (
    Column("metric"), Column("value"), Column("n", right=True), Column("subject", shrink=True),
    Column("remark", wrap=True),
)  # fmt: skip
WORD = st.text("abc", min_size=1, max_size=12)
ROW = st.tuples(
    st.text("abcdefg", min_size=1, max_size=50),
    st.floats(0, 1e6).map(lambda x: f"{x:.4f} ± {x / 9:.4f} MiB"),
    st.integers(0, 10**9).map(str),
    st.lists(WORD, max_size=6).map(" ".join),
    st.lists(WORD, max_size=9).map(" ".join),
)


def test_what_does_not_fit_follows_its_row_with_its_head() -> None:
    columns = (Column("metric"), Column("value"), Column("n", right=True), Column("effect"))
    rows = [("val_loss", "0.41 ± 0.01", "3", "+0.04 (+10 %)"), ("steps", "7", "12", "")]
    assert table(columns, rows, width=30, indent=2).splitlines() == [
        "  metric    value         n",
        "  val_loss  0.41 ± 0.01   3",
        "      effect +0.04 (+10 %)",
        "  steps     7            12",
    ]
    assert len(table(columns, rows, width=44, indent=2).splitlines()) == 3


@given(st.lists(ROW, min_size=1, max_size=4), st.integers(50, 160))
def test_no_number_is_cut_and_no_line_leaves_the_room(
    rows: list[tuple[str, ...]], width: int
) -> None:
    text = table(COLUMNS, rows, width=width)
    coloured = [
        column._replace(colour=lambda cell: RED if "a" in cell else GREEN) for column in COLUMNS
    ]
    assert colourless(table(coloured, rows, width=width)) == text
    for name, value, number, _, remark in rows:
        assert name in text
        assert value in text
        assert number in text
        assert set(remark.split()) <= set(text.replace(",", " ").split())
    assert all(len(line) <= width for line in text.splitlines())
