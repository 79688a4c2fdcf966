"""`celedger preflight`, as text and JSON."""

from __future__ import annotations

from textwrap import wrap

from celedger.diagnose.preflight import CheckStatus, PreflightReport
from celedger.views.export import Json, document
from celedger.views.format import cells, plain, short

_WAYS_OUT = {
    "loss at the start": "smaller first weights of the last layer, or its bias set to the classes'"
    " frequencies; a loss far below knows something: look for labels among the inputs",
    "overfits one batch": "look at the loss and the labels' order first, then the learning rate",
    "looks at its inputs": "look at what forward does with its argument",
    "labels balanced": "look at how labels are read; weight the classes or draw them evenly",
    "inputs in range": "scale inputs to zero mean and unit variance",
    "train and validation apart": "split before augmenting, and by what rows have in common",
    "same seed, same result": "seed every generator; torch.use_deterministic_algorithms(True)",
    "train and eval mode": "model.eval() before evaluation, F.dropout(x, p, self.training)",
    "every parameter learns": "look for detach() and unused layers; give all to the optimiser",
    "gradients cleared": "call optimizer.zero_grad() before every backward pass",
    "loader keeps up": "more workers, or the data on the device",
    "inference latency": "torch.set_flush_denormal(True), and clamp what comes in",
    "memory stays flat": "keep numbers, not tensors: loss.item() or loss.detach()",
}


def preflight_text(report: PreflightReport, *, width: int = 100) -> str:
    counts = {status: len(report.having(status)) for status in CheckStatus}
    said = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    task = f"{report.task.suite}/{report.task.name}"
    lines = [f"{task} at {short(report.commit.sha)}, seed {report.seed}: {said}", ""]
    room = max(cells(check.name) for check in report.checks)
    for check in report.checks:
        head = f"{check.status.value:<4}  {check.name:<{room}}  "
        blank = " " * len(head)
        lines += wrap(plain(check.said), width, initial_indent=head, subsequent_indent=blank)
        if check.status in (CheckStatus.FAIL, CheckStatus.WARN) and check.name in _WAYS_OUT:
            way = f"try: {_WAYS_OUT[check.name]}"
            lines += wrap(way, width, initial_indent=blank, subsequent_indent=blank)
    return "\n".join(lines)


def preflight_json(report: PreflightReport) -> dict[str, Json]:
    return document(
        suite=report.task.suite,
        task=report.task.name,
        commit=report.commit.sha,
        seed=report.seed,
        checks=[
            {
                "check": check.name,
                "status": check.status,
                "figure": check.figure,
                "said": check.said,
                "advice": _WAYS_OUT.get(check.name),
            }
            for check in report.checks
        ],
    )
