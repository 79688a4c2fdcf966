"""The shape of a range: which first bad commit makes which commit bad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.stats.firstbad import inseparable
from celedger.stats.lineage import GOOD, Lineage


@st.composite
def histories(draw: st.DrawFn) -> Lineage:
    n = draw(st.integers(1, 14))
    parents = []
    for i in range(n):
        pool = list(range(i))
        parents.append(tuple(draw(st.sets(st.sampled_from(pool), max_size=2))) if pool else ())
    return Lineage(tuple(parents))


@given(histories(), st.data())
def test_a_split_agrees_with_the_ancestors(lineage: Lineage, data: st.DataObject) -> None:
    places = st.integers(GOOD, len(lineage) - 1)
    positions = data.draw(st.lists(places, unique=True, min_size=1, max_size=6))
    split = lineage.split(positions)
    for column, position in enumerate(positions):
        assert (split.bad[split.group, column] == lineage.ancestors(position)).all()
    assert len(np.unique(split.bad, axis=0)) == len(split.bad)  # no two groups are the same


@given(histories())
def test_reach_agrees_with_the_ancestors(lineage: Lineage) -> None:
    members = list(range(len(lineage)))
    for position, mask in enumerate(lineage.reach(members)):
        assert [bool(mask >> m & 1) for m in members] == lineage.ancestors(position).tolist()
        assert [lineage.descends(position, m) for m in members] == [
            bool(mask >> m & 1) for m in members
        ]


@given(histories(), st.data())
def test_inseparable_commits_make_the_same_testable_commits_bad(
    lineage: Lineage, data: st.DataObject
) -> None:
    n = len(lineage)
    broken = data.draw(st.sets(st.integers(0, n - 1), max_size=5)) - {n - 1}
    masks = lineage.reach(list(range(n)))
    seen = [
        frozenset(q for q in range(n) if q not in broken and masks[q] >> b & 1) for b in range(n)
    ]
    classes = inseparable(lineage, frozenset(broken))
    for a in range(n):
        for b in range(n):
            if classes[a] == classes[b] and a != b and seen[a] and seen[b]:
                assert seen[a] == seen[b]


def test_a_line_is_recognised_and_its_shortcut_gives_the_same_split() -> None:
    line = Lineage.line(9)
    assert line.linear
    # the same history with a redundant edge takes the way of merges
    slow = Lineage((*line.parents[:-1], (7, 6)))
    assert not slow.linear
    for positions in ([GOOD, 8], [GOOD, 3, 8], [0, 3, 4]):
        a, b = line.split(positions), slow.split(positions)
        assert (a.bad[a.group] == b.bad[b.group]).all()


def test_a_parent_after_its_child_is_refused() -> None:
    with pytest.raises(ValueError, match="must come before"):
        Lineage(((), (2,), (0,)))
    with pytest.raises(ValueError, match="without commits"):
        Lineage(())
