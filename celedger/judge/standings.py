"""How each metric stands at a commit: worse by an incident in force, the same, or why that cannot
be decided. Only `check` and its views use it; the incidents are derived elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from celedger.base.model import CLOCKED, IN_FORCE, Metric
from celedger.judge.derivation import Derivation
from celedger.judge.incident import (
    TWO_SIDED_95,
    Incident,
    MetricStanding,
    Standing,
    interval,
    share_causes,
)
from celedger.stats import Floats
from celedger.stats.course import Measurements, MetricHistory, MetricKey, Node, Step
from celedger.stats.line_steps import DOUBT, overlap
from celedger.stats.tails import t_quantile
from celedger.trial.protocol import OF_LONG_TRAININGS, TELEMETRY

ERRING = 0.025
"""How often equal seeds call the commit before better by chance."""
ONE_SIDED_95 = 1.644854
"""Standard errors: where the level may be higher by the floor with 5 %, noise hides the floor."""
NO_REPEATS = "noise unknown: too few repeats of one commit"
WORSE = "seems worse, not settled"
HIDDEN = "noise hides changes as small as the floor"
PAIRED = 0.1
"""Share of the floor below which the differences of equal seeds show that nothing was drawn anew:
by chance a redraw falls there about once in twelve times where the noise is as large as the floor.
"""


def at(
    derivation: Derivation, place: int, incidents: Sequence[Incident]
) -> Iterable[MetricStanding]:
    """Yield how every metric stands at a place of the line: first the tasks that fail."""
    in_force = [i for i in incidents if _holds(derivation, i, place)]
    by_key: dict[MetricKey, list[Incident]] = {}
    for incident in incidents:
        for one in {m.key for m in incident.metrics}:
            by_key.setdefault(one, []).append(incident)
    for (suite, name), task in derivation.tasks.items():
        is_newest = place >= max(task.tried, default=-1)
        failing = _worse_by(in_force, (suite, name, ""), is_newest)
        if failing:
            yield MetricStanding(
                suite, name, "", Standing.WORSE, True, tuple(i.id for i in failing),
                note=f"{failing[0].kind}: {failing[0].message}",
            )  # fmt: skip
        for key, metric in task.metrics.items():
            own = by_key.get(key, [])
            worse = tuple(i.id for i in _worse_by(in_force, key, is_newest))
            history, values = derivation.histories.get(key), task.measured.get(key)
            standing = _of_metric(derivation, key, metric, history, values, place, own, worse)
            if standing is None:
                continue
            if standing.searched and _is_explained(derivation, standing, metric, incidents):
                standing = standing._replace(searched=())
            if apart := _of_another_kind(
                derivation, key, metric, [incident for incident in own if incident.id in worse]
            ):
                standing = standing._replace(searched=apart)
            if standing.searched or not (failing and standing.standing is Standing.MISSING):
                yield standing


def _of_another_kind(
    derivation: Derivation, key: MetricKey, metric: Metric, incidents: Sequence[Incident]
) -> tuple[str, ...]:
    """Return GOOD and BAD of the search that tells whether one of these incidents' commits made a
    metric worse, too, where a search of a metric of another kind named it; () where none did. A
    leak may lie anywhere within a stretch in which the loss rose at one commit."""
    history = derivation.histories.get(key)
    steps = history.steps if history is not None else ()
    for incident in incidents:
        if incident.is_named and not share_causes(incident.main.kind, metric.kind):
            place = derivation.place(incident.likeliest)
            for step in steps:
                if step.size > 0 and step.known >= 0 and step.first <= place < step.last:
                    return derivation.sha(step.known), derivation.sha(step.last)
    return ()


def _is_explained(
    derivation: Derivation, standing: MetricStanding, metric: Metric, incidents: Sequence[Incident]
) -> bool:
    """Return True if what would be searched has a commit that a search named: one cause."""
    good, bad = map(derivation.place, standing.searched)
    among = derivation.among(good + 1, bad)
    key = standing.suite, standing.task, standing.metric
    return any(i.explains(key, metric.kind, among) for i in incidents)


def _holds(derivation: Derivation, incident: Incident, place: int) -> bool:
    """Return True if an incident lies wholly at or before a place and was in force there."""
    last = derivation.place(incident.first_bad[-1])
    closed = derivation.place(incident.closed_at) if incident.closed_at else -1
    mended = incident.state == "recovered" and 0 <= closed <= place
    over = incident.state in ("accepted", "withdrawn") or mended
    return 0 <= last <= place and not over


def _worse_by(in_force: Sequence[Incident], key: MetricKey, is_newest: bool) -> list[Incident]:
    """Return the incidents that a metric is worse by, or a task fails by. One that is mended in
    part has metrics that recovered by the newest commit."""
    return [
        incident
        for incident in in_force
        if any(m.key == key and not (is_newest and m.state == "recovered")
               for m in incident.metrics)
    ]  # fmt: skip


def _of_metric(
    derivation: Derivation,
    key: MetricKey,
    metric: Metric,
    history: MetricHistory | None,
    values: Measurements | None,
    place: int,
    own: Sequence[Incident],
    worse: tuple[str, ...],
) -> MetricStanding | None:
    declared = metric not in TELEMETRY
    same_code = derivation.tasks[key[:2]].same_code.get(place, -1)
    numbers = _numbers(metric, history, values, place, same_code)
    if numbers is None:
        if not (worse or (declared and history is not None)):
            return None
        ran = place in derivation.tasks[key[:2]].ended_well[1]
        if ran and not worse and metric.name in OF_LONG_TRAININGS:
            return None
        kind = Standing.WORSE if worse else Standing.MISSING
        return MetricStanding(
            *key, kind, declared, worse, unit=metric.unit, note="not measured here"
        )
    kind, note = _kind(derivation, key, place, own, numbers)
    searched: tuple[str, ...] = ()
    if worse:
        kind, note = Standing.WORSE, ""
    elif kind in (Standing.UNDECIDED, Standing.TOO_NOISY) and numbers.seems_worse:
        searched = derivation.sha(numbers.since), derivation.sha(place)
    return MetricStanding(
        *key, kind, declared, worse, numbers.level, numbers.value, numbers.low, numbers.high,
        numbers.smallest, numbers.floor, numbers.trials, metric.unit, note, searched,
    )  # fmt: skip


class _Numbers:
    """What a commit's own trials tell against the level before it; in the metric's unit, signed
    as the metric is."""

    def __init__(
        self, metric: Metric, history: MetricHistory, node: Node, before: Node | None, own: Floats,
        pairs: Floats, shares_session: bool,
    ) -> None:  # fmt: skip
        sign, noise = metric.direction.sign, history.noise
        self.trials, self.is_first = own.size, before is None
        self.since = -1 if before is None else before.last
        mean = float(own.mean()) if own.size else node.level
        self.value = sign * mean
        level = before.level if before is not None else math.nan
        self.level = sign * level
        self.floor, self.metric_floor = metric.visible_at(level), metric.floor_at(level)
        size = node.level - level
        repeats = before is node
        session = 0.0 if shares_session else noise.session * noise.at(node.level)
        error = math.hypot(node.error, before.error if before is not None else math.nan, session)
        if repeats:  # its bits are equal, or its results re-used: those have no clock
            error = math.nan if metric.kind in CLOCKED else 0.0
        reach = _reach(pairs)
        if history.by_seeds and reach < ONE_SIDED_95 * error:  # a level is known to a seed's spread
            size, error = float(pairs.mean()), reach / ONE_SIDED_95
        self.low, self.high = interval(sign, size, error)
        self.smallest = ONE_SIDED_95 * error
        agree = pairs.size > 0 and float(np.abs(pairs).max()) <= PAIRED * self.floor
        self.hides_floor = not agree and size + ONE_SIDED_95 * error > self.floor
        # by its own trials, as `diff` has it: the level of the node is drawn to that before
        self.is_apart = mean - level > max(self.metric_floor, TWO_SIDED_95 * error)
        self.knows_noise = history.knows_noise or agree or repeats
        self.seems_worse = _is_worse(metric, pairs, before)


def _is_worse(metric: Metric, pairs: Floats, before: Node | None) -> bool:
    """Return True if equal seeds say that a node is worse than the one before by more than the
    floor: their mean difference, by Student's t."""
    if before is None or pairs.size < 2:
        return False
    return bool(pairs.mean() > max(metric.floor_at(before.level), _reach(pairs, ERRING)))


def _reach(pairs: Floats, erring: float = 0.05) -> float:
    """Return how far the mean of the differences of equal seeds goes by chance, at one side."""
    if pairs.size < 2:
        return math.inf
    return t_quantile(1 - erring, pairs.size - 1) * float(pairs.std(ddof=1)) / math.sqrt(pairs.size)


def _pairs(values: Measurements, node: Node, other: Node) -> Floats:
    """Return by how much each seed that both nodes have is higher at the first: none of what a
    clock tells, unless it is always 0."""
    mine, there = (np.array(each.rows, dtype=np.int64) for each in (node, other))
    if values.has_sessions and values.value[np.concatenate([there, mine])].any():
        return np.empty(0)
    return np.array(
        [
            values.value[mine][values.seed[mine] == seed].mean()
            - values.value[there][values.seed[there] == seed].mean()
            for seed in np.intersect1d(values.seed[there], values.seed[mine]).tolist()
        ]
    )


def _numbers(
    metric: Metric, history: MetricHistory | None, values: Measurements | None, place: int,
    same_code: int = -1,
) -> _Numbers | None:  # fmt: skip
    """Return what a place's own trials tell, None without any. One that repeats an older one, or
    with no more than the re-used results of `same_code`, stands as that did: a gate that cannot
    decide there does not pass here."""
    if history is None or values is None:
        return None
    here = history.nodes_at(place)
    own = np.flatnonzero(values.place == place)
    if not here or not own.size:
        return None
    node = max(here, key=lambda n: n.chain)
    earlier = [n for n in history.nodes if n.chain == node.chain and n.last < node.first]
    before = earlier[-1] if earlier else None
    older = _repeated(node, values, place) if node.rows else same_code
    repeats = 0 <= older < place
    if repeats:
        numbers = _numbers(metric, history, values, older)
        if numbers is not None and not numbers.is_first:
            return numbers
    if repeats or (before is None and node.first < place):
        before = node
    rows = own[values.chain[own] == node.chain]
    pairs, shares = np.empty(0), False
    if before is not None and before.rows:
        pairs = _pairs(values, node, before)
        of_both = values.session[list(before.rows)], values.session[list(node.rows)]
        shares = not values.has_sessions or bool(np.intersect1d(*of_both).size)
    return _Numbers(metric, history, node, before, values.value[rows], pairs, shares)


def _repeated(node: Node, values: Measurements, place: int) -> int:
    """Return the first commit that one repeats bit by bit and that was measured as well as it, else
    -1. One that only a bisect tried with a seed or two was never judged."""
    rows = np.array(node.rows, dtype=np.int64)
    seeds: dict[int, set[int]] = {}
    for at, seed in zip(values.place[rows].tolist(), values.seed[rows].tolist(), strict=True):
        seeds.setdefault(at, set()).add(seed)
    mine = seeds.get(place, set())
    return min((at for at, those in seeds.items() if at < place and mine <= those), default=-1)


def _may_share(derivation: Derivation, step: Step) -> bool:
    """Return True if an incident in force may have the cause of a step."""
    return any(i.state in IN_FORCE and overlap(i, step) for i in derivation.derived.incidents)


def _settled_at(derivation: Derivation, incident: Incident) -> int:
    """Return the place since which a metric stands otherwise by an incident that is over, or -1."""
    if incident.state == "recovered":
        return derivation.place(incident.closed_at)
    is_over = incident.state in ("accepted", "withdrawn")
    return derivation.place(incident.first_bad[-1]) if is_over else -1


def _kind(
    derivation: Derivation,
    key: MetricKey,
    place: int,
    own: Sequence[Incident],
    numbers: _Numbers,
) -> tuple[Standing, str]:
    """Return how a metric stands that no incident made worse at this place."""
    if numbers.is_first and any(derivation.place(i.known_good) >= place >= 0 for i in own):
        return Standing.SAME, "good beside what came later"
    if numbers.is_first:
        return Standing.FIRST, "first measurement in this environment, nothing to compare with"
    inside = [
        i for i in own
        if i.in_force
        and derivation.place(i.first_bad[0]) <= place < derivation.place(i.first_bad[-1])
    ]  # fmt: skip
    if inside:
        return Standing.UNDECIDED, f"among the {len(inside[0].first_bad)} commits of {inside[0].id}"
    doubts = [
        step for k, step in derivation.derived.suspected
        if k == key and step.first <= place and step.size > 0
    ]  # fmt: skip
    if doubts:
        return Standing.UNDECIDED, WORSE
    if any(k == key and s.last == place and s.size < 0 for k, s in derivation.derived.changes):
        return Standing.BETTER, ""
    settled = [i for i in own if numbers.since < _settled_at(derivation, i) <= place]
    if settled:
        return Standing.SAME, f"{settled[-1].id} is {settled[-1].state}"
    if any(k == key and numbers.since < s.last <= place for k, s in derivation.derived.reverted):
        return Standing.SAME, "as before the commit that is reverted"
    if any(
        step.first <= place
        and step.probability >= DOUBT
        and step.size > numbers.metric_floor
        and (place <= step.last or (step.is_newest and _may_share(derivation, step)))
        for step in derivation.histories[key].steps
    ):  # the state lists no doubt about the commits of another metric's incident
        return Standing.UNDECIDED, "also seems worse, not settled"
    if not numbers.knows_noise:
        return Standing.TOO_NOISY, NO_REPEATS
    if numbers.seems_worse:  # too little for an incident, of which at most so many may be false
        return Standing.TOO_NOISY, WORSE
    if numbers.hides_floor:
        seen = numbers.smallest <= numbers.floor
        note = "may be worse by more than the floor" if seen else HIDDEN
        return Standing.TOO_NOISY, WORSE if numbers.is_apart else note
    return Standing.SAME, ""
