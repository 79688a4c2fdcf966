"""Where the bits of a training changed along a line, and where the work of its steps rose: read
from signatures of commits. A signature that does not repeat is ignored. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from celedger.base.model import STEP_COUNTS, Commit, Metric, SignatureRow
from celedger.judge.incident import SignedCommit

RISE = 0.2
"""Share by which a count of a step rises before that is told. Of 67 refactors that were measured,
39 change a count, most of them by less than .02; 7 of 8 planted slowdowns add more than .2."""
_FEWEST = 10.0  # what a rise adds at least: an edit that adds a line to five is none
_ANY = "waits"  # each stalls the device: one more is told
_UNTOLD = "items"  # how much data a step takes is no work of the code's
_GROWTH = "growth of "  # begins the name of how much a count grows with each step

ORDER = (*STEP_COUNTS, *(f"{_GROWTH}{name}" for name in STEP_COUNTS))  # the most telling first
_CURRENT = ("recipe", "environment")  # of a key: what makes a rise one of the training as it is
_Floor = Callable[[float], float]  # by how much a count may rise from a level
_Sequence = Sequence[tuple[int, SignatureRow]]  # with places, in their order


@dataclass(frozen=True, slots=True)
class WorkRise:
    """A count of a task's steps that rose. `first` to `last` are the places of the commits that may
    have done it, `closed` that of the one at which it is back. `is_current` is False where the
    definition or the environment is another one by now, and no commit links both."""

    suite: str
    task: str
    count: str
    first: int
    last: int
    before: float
    after: float
    floor: float
    is_declared: bool = False
    closed: int | None = None
    is_current: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        return self.suite, self.task, self.count


def repeating(rows: Iterable[SignatureRow]) -> list[SignatureRow]:
    """Return one signature of each tree and key, without those that differ there: such a training
    does not repeat its own bits."""
    first: dict[tuple[str, ...], SignatureRow] = {}
    bits: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        name = (row.suite, row.task, row.tree, row.key)
        first.setdefault(name, row)
        bits.setdefault(name, set()).add(row.numerics)
    return [row for name, row in first.items() if len(bits[name]) == 1]


@dataclass(frozen=True, slots=True)
class SignedLine:
    """Signatures along a line, by task and then by key: only those of one key are comparable. The
    key of a task's newest signature comes last."""

    sequences: Mapping[tuple[str, str], Sequence[_Sequence]]

    @classmethod
    def of(cls, rows: Sequence[SignatureRow], commits: Sequence[Commit]) -> SignedLine:
        """Sort signatures along a line of commits. Each counts at all that have its tree: at a
        revert, too, which nobody signs anew."""
        by_tree: dict[str, list[int]] = {}
        for place, commit in enumerate(commits if rows else ()):
            by_tree.setdefault(commit.tree, []).append(place)
        keys: dict[tuple[str, str], dict[str, dict[int, SignatureRow]]] = {}
        for row in repeating(rows):
            for place in by_tree.get(row.tree, ()):
                own = keys.setdefault((row.suite, row.task), {}).setdefault(row.key, {})
                own.setdefault(place, row._replace(commit=commits[place].sha))
        newest = {(row.suite, row.task): row.key for row in rows}
        return cls({
            task: [sorted(own[k].items()) for k in sorted(own, key=lambda k: k == newest[task])]
            for task, own in keys.items()
        })  # fmt: skip

    def commits(self) -> Iterator[SignedCommit]:
        """Yield the signed commits of each task, beside those before them by the newest key that
        has such a one: a slow machine signs by another scheme from then on."""
        for (suite, task), sequences in self.sequences.items():
            signed: dict[int, SignedCommit] = {}
            for sequence in sequences:
                last: SignatureRow | None = None
                for place, row in sequence:
                    is_new = None if last is None else row.numerics != last.numerics
                    if is_new is not None or place not in signed:
                        signed[place] = SignedCommit(suite, task, row.commit, is_new, row.work)
                    last = row
            yield from (signed[place] for place in sorted(signed))

    def news(self, task: tuple[str, str], first: int, last: int) -> tuple[int, int]:
        """Return the one part of a stretch in which the bits changed; all of it where they changed
        in none or several, or where that is not known."""
        for sequence in reversed(self.sequences.get(task, ())):
            own = [(place, row) for place, row in sequence if first - 1 <= place <= last]
            parts = [(a + 1, b) for (a, x), (b, y) in pairwise(own) if x.numerics != y.numerics]
            if len(parts) == 1 and (own[0][0], own[-1][0]) == (first - 1, last):
                return parts[0]
        return first, last

    def rises(self, metrics: Callable[[str], Sequence[Metric]]) -> list[WorkRise]:
        """Return the counts that rose, the oldest first. `metrics` are those of a recipe."""
        rises: list[WorkRise] = []
        for sequences in self.sequences.values():
            now = _key(sequences[-1])
            declared = {m.name: m.floor_at for m in metrics(str(now.get("recipe"))) if m.is_signed}
            for sequence in reversed(sequences):
                key = _key(sequence)
                is_current = all(key.get(name) == now.get(name) for name in _CURRENT)
                for rise in _rises(sequence, declared):
                    if not any(_is_same(rise, other) for other in rises):
                        alike = _linked(rise, sequence, sequences)
                        goes_on = is_current or any(s is sequences[-1] for s in alike)
                        rises.append(replace(rise, closed=_back(rise, alike), is_current=goes_on))
        return sorted(rises, key=lambda rise: (rise.last, rise.key))


def _key(sequence: _Sequence) -> dict[str, object]:
    key: dict[str, object] = json.loads(sequence[-1][1].key)
    return key


def _linked(rise: WorkRise, own: _Sequence, sequences: Iterable[_Sequence]) -> list[_Sequence]:
    """Return the sequences in which the count of a rise means what it means in its own, also by
    way of others: an upgrade, then an edit of the suite."""
    linked, others = [own], [s for s in sequences if s is not own]
    for one in linked:  # grows
        linked += [s for s in others if _is_alike(rise, one, s)]
        others = [s for s in others if all(s is not each for each in linked)]
    return linked


def _is_alike(rise: WorkRise, a: _Sequence, b: _Sequence) -> bool:
    """Return True if the count of a rise means the same in another sequence: by another scheme,
    except of how much it grows, or where both counted one commit alike, such as the anchor of an
    upgrade."""
    one, other = _key(a), _key(b)
    by_scheme = one.pop("scheme", None) == other.pop("scheme", None)
    if not by_scheme and rise.count.startswith(_GROWTH):
        return False
    counted = {place: _counts(row).get(rise.count) for place, row in a}
    return one == other or any(
        (n := counted.get(place)) is not None
        and abs(_counts(row).get(rise.count, float("inf")) - n) < rise.floor
        for place, row in b
    )


def _back(rise: WorkRise, sequences: Iterable[_Sequence]) -> int | None:
    """Return the first place after a rise where its count is back. What a step does is the same
    however many steps a scheme takes: a commit that makes steps slow has fewer of them signed from
    then on."""
    return min(
        (
            place
            for sequence in sequences
            for place, row in sequence
            if place > rise.last and _counts(row).get(rise.count, 0.0) < rise.before + rise.floor
        ),
        default=None,
    )


def _is_same(rise: WorkRise, other: WorkRise) -> bool:
    """Return True if another seed or scheme shows the same rise."""
    return rise.key == other.key and rise.first <= other.last and other.first <= rise.last


def _rises(sequence: _Sequence, declared: Mapping[str, _Floor]) -> Iterator[WorkRise]:
    """Yield the rises of all counts among comparable signatures."""
    for (at, old), (place, new) in pairwise(sequence):
        before, after = _counts(old), _counts(new)
        for name in after.keys() & before.keys():
            floor = declared.get(name, _floor_of(name))(before[name])
            if after[name] >= before[name] + floor:
                yield WorkRise(
                    new.suite, new.task, name, at + 1, place, before[name], after[name], floor,
                    name in declared,
                )  # fmt: skip


def _counts(row: SignatureRow) -> dict[str, float]:
    growth = {f"{_GROWTH}{name}": row.growth.get(name, 0.0) for name in row.work}
    return {name: n for name, n in {**row.work, **growth}.items() if not name.endswith(_UNTOLD)}


def _floor_of(name: str) -> _Floor:
    if name.startswith(_GROWTH):
        return lambda level: float("inf") if level else 1.0
    return lambda level: 1.0 if name == _ANY else max(RISE * level, _FEWEST)
