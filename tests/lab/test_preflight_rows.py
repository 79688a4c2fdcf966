"""Preflight's checks of rows and labels: what is planted in them is found, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import matrix_after
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.probe_records import processes, records

pytest.importorskip("torch")

CLASSES = (
    START
    + """\
centres = 2 * torch.randn(4, 300)
y = torch.randint(4, (400,))
x = centres[y] + 3 * torch.randn(400, 300)
net = nn.Linear(300, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(26):
    rows = torch.arange(16 * step, 16 * step + 16) % 400
    loss = F.cross_entropy(net(x[rows]), y[rows])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
NUMBERS = edited(
    CLASSES,
    ("x = centres", "z = centres"),
    (
        "net = nn.Linear(300, 4)",
        "x = z[:, :6]; y = x[:, :1].sin() + x[:, 1:2]; net = nn.Linear(6, 1)",
    ),
    ("F.cross_entropy", "F.mse_loss"),
)
WORDS = edited(
    CLASSES,
    (
        "x = centres[y] + 3 * torch.randn(400, 300)",
        "x = torch.randint(40, (400, 12)) + 20 * y[:, None]",
    ),
    ("nn.Linear(300, 4)", "nn.EmbeddingBag(120, 4)"),
)
PADDED = edited(
    WORDS,
    ("nn.EmbeddingBag(120, 4)", "Bag()"),
    ("net(x[rows])", "net(*padded(x[rows]))"),
    (
        "net = ",
        """class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(120, 4, mode="sum")
    def forward(self, x, mask):
        return self.words(x, per_sample_weights=mask)
def padded(x):
    more = int(torch.randint(8, ()))
    mask = F.pad(torch.ones(x.shape), (0, more))
    return F.pad(x, (0, more)), mask
net = """,
    ),
)
NAMES = ("labels follow inputs", "labels agree with near rows", "no outlying rows")


def checks(server: TrainingServer, text: str, *names: str) -> list[dict[str, Any]]:
    out = server.train(text, "preflight", steps=200)
    (event,) = records(processes(out)[0], "preflight")
    found = {check["check"]: check for check in event["checks"]}
    return [found[name] for name in names or NAMES]


@pytest.mark.parametrize(
    ("text", "statuses"),
    matrix_after(1, [
        (CLASSES, "pass pass pass"),
        (NUMBERS, "pass n/a pass"),
        (WORDS, "pass pass n/a"),
        (PADDED, "pass pass pass"),
    ]),
    ids=["classes", "numbers", "words", "padded"],
)  # fmt: skip
def test_healthy_rows_pass(text: str, statuses: str, server: TrainingServer) -> None:
    found = checks(server, text)
    assert [one["status"] for one in found] == statuses.split(), found


@pytest.mark.matrix
@pytest.mark.parametrize(
    "text", matrix_after(1, [CLASSES, NUMBERS, WORDS]), ids=["classes", "numbers", "words"]
)
def test_labels_of_other_rows_tell_nothing(text: str, server: TrainingServer) -> None:
    mixed = edited(text, ("optimiser = torch", "y = y[torch.randperm(400)]\noptimiser = torch"))
    follow, agree, _ = checks(server, mixed)
    assert (follow["status"], abs(follow["figure"]) < 3) == ("warn", True)
    assert "permuted ones" in follow["said"]
    assert agree["status"] == "n/a"


@pytest.mark.matrix
def test_a_column_that_is_the_target_and_a_class_that_never_comes_are_told(
    server: TrainingServer,
) -> None:
    for text in (NUMBERS, edited(CLASSES, ("300, 4", "200, 4"), ("(4, 300)", "(4, 200)"),
                                 ("(400, 300)", "(400, 200)"))):  # fmt: skip
        follow, *_ = checks(server, text)
        assert follow["status"] == "pass", follow
        target = "x[:, 4] = 3 * y.squeeze() - 1\noptimiser = torch"
        follow, *_ = checks(server, edited(text, ("optimiser = torch", target)))
        assert (follow["status"], follow["said"][:21]) == ("warn", "column 4 of input 0 a"), follow
    few = edited(CLASSES, ("y = torch.randint(4", "y = torch.randint(3"))
    assert checks(server, few, "labels balanced")[0]["said"].endswith("none is 3")


def test_wrong_labels_and_broken_rows_are_named_by_step_and_row(server: TrainingServer) -> None:
    planted = edited(
        CLASSES,
        ("net = ", "y[torch.tensor([20, 100, 333])] += 1; y %= 4\nnet = "),
    )
    _, agree, _ = checks(server, planted)
    assert agree["status"] == "warn"
    assert agree["figure"] == pytest.approx(3 / 400)
    for row in (20, 100, 333):
        assert f"row {row % 16} in step {row // 16} (" in agree["said"]
    _, _, outlying = checks(server, edited(CLASSES, ("net = ", "x[77, 5] = 900.0\nnet = ")))
    assert (outlying["status"], outlying["figure"]) == ("warn", 1 / 400)
    assert outlying["said"].endswith("900 of row 13 in step 4")


@pytest.mark.matrix
def test_a_second_pass_over_the_rows_counts_none_twice(server: TrainingServer) -> None:
    (_, agree, _) = checks(server, edited(CLASSES, ("range(26)", "range(60)")))
    assert "of 400 labels" in agree["said"]


EVALUATED = edited(
    CLASSES,
    ("    optimiser.step()\n", "    optimiser.step()\nwith torch.no_grad():\n    net(x[300:])\n"),
    ("16 * step, 16 * step + 16) % 400", "16 * step, 16 * step + 16) % 300"),
    ("range(26)", "range(18)"),
)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        ("x[300:305] = x[300]", "pass", "0 of 96 validation rows"),
        ("x[300:340] = x[:40]", "fail", "40 of 100 validation rows were met in training before"),
        # A row is one of 90: they equal each other in validation, too.
        ("x = torch.randint(90, (400, 1)) * torch.ones(300) / 90", "n/a",
         "but they equal each other as often"),
    ],
    ids=["apart", "shared", "few rows"],
)  # fmt: skip
def test_validation_rows_that_equal_each_other_are_no_leak(
    data: str, status: str, sentence: str, server: TrainingServer
) -> None:
    text = edited(EVALUATED, ("net = ", f"{data}\nnet = "))
    (found,) = checks(server, text, "train and validation apart")
    assert (found["status"], sentence in found["said"]) == (status, True), found
