from __future__ import annotations

import tempfile
from pathlib import Path

from fast_import import NewCommit, create
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celedger.base.errors import UsageError
from celedger.repo import Repository


@st.composite
def graphs(draw: st.DrawFn) -> list[NewCommit]:
    """Histories with merges, octopuses, several roots, and dates that contradict the order."""
    commits: list[NewCommit] = []
    for n in range(draw(st.integers(2, 12))):
        keys = [commit.key for commit in commits]
        parents = draw(st.lists(st.sampled_from(keys), max_size=3, unique=True)) if keys else []
        time = draw(st.integers(10**9, 10**9 + 20))
        commits.append(NewCommit(f"k{n}", f"s{n}", {f"f{n}": "x"}, tuple(parents), time=time))
    return commits


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(graphs(), st.data())
def test_histories_of_any_shape_agree_with_rev_list(
    git, commits: list[NewCommit], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "r"
        ids = create(root, commits, checkout=False)
        repository = Repository.open(root)
        good = ids[data.draw(st.sampled_from(sorted(ids)))]
        bad = ids[data.draw(st.sampled_from(sorted(ids)))]
        first_parent = data.draw(st.booleans())
        ancestors = set(git(root, "rev-list", bad).split())
        assert repository.is_ancestor(good, bad) == (good in ancestors)
        if good == bad or good not in ancestors:
            try:
                repository.history(good, bad, first_parent)
                raise AssertionError("a range that means nothing was taken")
            except UsageError:
                return
        found = repository.history(good, bad, first_parent)
        mode = ["--first-parent"] if first_parent else []
        shas = [commit.sha for commit in found.commits]
        assert sorted(shas) == sorted(git(root, "rev-list", *mode, f"{good}..{bad}").split())
        assert shas[-1] == bad
        assert first_parent or shas == [c.sha for c in repository.commits(f"{good}..{bad}")]
        for i, (commit, parents) in enumerate(zip(found.commits, found.parents, strict=True)):
            assert all(parent < i for parent in parents)
            real = commit.parents[:1] if first_parent else commit.parents
            assert [shas[p] for p in parents] == [p for p in real if p in shas]
            assert not first_parent or len(parents) <= 1


def test_a_log_by_branch_keeps_a_merged_branch_together(tmp_path: Path) -> None:
    start = 10**9
    parents = {"a": (), "b1": ("a",), "c1": ("a",), "b2": ("b1",), "c2": ("c1",), "m": ("b2", "c2")}
    commits = [
        NewCommit(key, key, {key: "x"}, own, time=start + n)
        for n, (key, own) in enumerate(parents.items())
    ]
    ids = create(tmp_path / "r", commits, checkout=False)
    repository = Repository.open(tmp_path / "r")
    dated = [c.subject for c in repository.log(ids["m"])[::-1]]
    assert dated == ["a", "b1", "c1", "b2", "c2", "m"]
    apart = [c.subject for c in repository.log(ids["m"], by_branch=True)[::-1]]
    assert apart in (["a", "b1", "b2", "c1", "c2", "m"], ["a", "c1", "c2", "b1", "b2", "m"])
