"""`celedger preflight`, as text and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from celedger.base.model import Commit, Task
from celedger.lab.diagnose.preflight import STATUSES
from celedger.views.document import Json, document, plain, short

_ADVICE = {
    "loss at the start": "smaller first weights of the last layer, or its bias set to the classes'"
    " frequencies; a loss far below knows something: look for labels among the inputs",
    "loss stays finite": "celedger watch names the first operator with such a value",
    "overfits one batch": "look at the loss and the labels' order first, then the learning rate",
    "looks at its inputs": "look at what forward does with its argument",
    "labels balanced": "look at how labels are read; weight the classes or draw them evenly",
    "labels follow inputs": "look at what puts inputs and labels together: two shuffles, an offset",
    "labels agree with near rows": "look at these rows; weight them down or correct them",
    "no outlying rows": "look at these rows: a unit, a missing value, a broken record",
    "inputs in range": "scale inputs to zero mean and unit variance",
    "train and validation apart": "split before augmenting, and by what rows have in common",
    "same seed, same result": "seed every generator; torch.use_deterministic_algorithms(True)",
    "train and eval mode": "model.eval() before evaluation, F.dropout(x, p, self.training)",
    "every parameter learns": "look for detach() and unused layers; give all to the optimiser",
    "gradients cleared": "call optimizer.zero_grad() before every backward pass",
    "output fits the loss": "give the loss what its manual says: logits, equal shapes",
    "training data shuffled": "shuffle=True in the training's DataLoader",
    "memory stays flat": "keep numbers, not tensors: loss.item() or loss.detach()",
    "train and validation alike": "draw both from the same data, and scale them alike",
}


Checks = Sequence[Mapping[str, Any]]


def preflight_text(
    task: Task, commit: Commit, seed: int, checks: Checks, *, width: int = 100
) -> str:
    summary = _summary(checks)
    lines = [f"{task.suite}/{task.name} at {short(commit.sha)}, seed {seed}: {summary}", ""]
    room = max(len(check["check"]) for check in checks)
    wide = max(4, *(len(check["status"]) for check in checks))
    for check in sorted(checks, key=lambda check: STATUSES.index(check["status"])):
        name, status = check["check"], check["status"]
        head = f"{status:<{wide}}  {name:<{room}}  "
        blank = " " * len(head)
        lines += wrap(plain(check["said"]), width, initial_indent=head, subsequent_indent=blank)
        if status in ("fail", "warn") and (advice := _advice(check)):
            way = f"try: {advice}"
            lines += wrap(way, width, initial_indent=blank, subsequent_indent=blank)
    return "\n".join(lines)


def _advice(check: Mapping[str, Any]) -> str | None:
    figure = check["figure"]
    if isinstance(figure, float) and not math.isfinite(figure):
        return "`celedger watch` names the operator or the data that are not finite first"
    return _ADVICE.get(check["check"])


def preflight_headline(checks: Checks) -> str:
    """Return how many checks ended in which way, and the names of those that failed."""
    failed = [check["check"] for check in checks if check["status"] == "fail"]
    return ": ".join(filter(None, [_summary(checks), ", ".join(failed)]))


def _summary(checks: Checks) -> str:
    counts = Counter(check["status"] for check in checks)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def preflight_json(task: Task, commit: Commit, seed: int, checks: Checks) -> dict[str, Json]:
    return document(
        suite=task.suite,
        task=task.name,
        commit=commit.sha,
        seed=seed,
        checks=[{**check, "advice": _advice(check)} for check in checks],
    )
