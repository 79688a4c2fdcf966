"""Steps, histories and told incidents made by hand, for tests of what is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celedger.base.model import IncidentState
from celedger.stats.course import (
    MetricHistory,
    MetricKey,
    Node,
    Step,
    StepIncident,
    StepKind,
    ToldIncident,
    TrialNoise,
)

LOSS: MetricKey = ("core", "mlp", "val_loss")
TIME: MetricKey = ("core", "mlp", "step_time")
OTHER: MetricKey = ("core", "cnn", "val_loss")
NOISE = TrialNoise(sd=1.0, freedom=40)
NO_FLOOR: dict[MetricKey, Callable[[float], float]] = {}


def step(
    first: int,
    last: int | None = None,
    *,
    size: float,
    before: float = 100.0,
    error: float = 0.5,
    probability: float = 0.999,
    chain: int = 0,
    kind: StepKind = StepKind.STEP,
    returns: int = -1,
) -> Step:
    """Return a step whose levels have equal errors, measured at each commit."""
    last = first if last is None else last
    level_error = error / 2**0.5
    return Step(
        first=first,
        last=last,
        likeliest=last,
        probability=probability,
        size=size,
        error=error,
        before=before,
        before_error=level_error,
        after=before + size,
        after_error=level_error,
        chain=chain,
        known=first - 1,
        unit=1.0,
        is_newest=False,
        node=last,
        kind=kind,
        returns=returns,
    )


def history(
    *steps: Step,
    noise: TrialNoise = NOISE,
    commits: int = 60,
    chains: Sequence[tuple[int, int, int]] = (),
    level: float = 100.0,
) -> MetricHistory:
    """Return a history with a node a commit: in chain 0, or chains (chain, first, last)."""
    spans = chains or [(0, 0, commits - 1)]
    nodes, rows = [], 0
    for chain, first, last in spans:
        for place in range(first, last + 1):
            height = sum(s.size for s in steps if s.likeliest <= place and s.probability > 0.5)
            nodes.append(Node(chain, place, place, (rows,), level + height, 0.3))
            rows += 1
    marked = []
    for s in steps:
        newest = max((o.last for o in steps if o.chain == s.chain), default=s.last) == s.last
        at = next(i for i, n in enumerate(nodes) if n.chain == s.chain and n.first >= s.likeliest)
        marked.append(s._replace(is_newest=newest, node=at))
    return MetricHistory(noise, tuple(nodes), tuple(marked))


def told(incident: StepIncident, name: str) -> ToldIncident:
    """Return what the next derivation knows of an incident."""
    return ToldIncident(
        name,
        incident.first,
        incident.last,
        incident.state,
        {k: share.state for k, share in incident.shares.items()},
        incident.kind,
        incident.was_sure,
        {k: (share.step.size, share.step.error) for k, share in incident.shares.items()},
    )


def open_at(
    name: str,
    first: int,
    last: int | None = None,
    *,
    keys: Sequence[MetricKey] = (LOSS,),
    state: IncidentState = IncidentState.OPEN,
    was_sure: bool = False,
    size: float = 10.0,
) -> ToldIncident:
    return ToldIncident(
        name,
        first,
        first if last is None else last,
        state,
        dict.fromkeys(keys, state),
        was_sure=was_sure,
        sizes=dict.fromkeys(keys, (size, 0.5)),
    )
