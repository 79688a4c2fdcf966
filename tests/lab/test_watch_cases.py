"""Watchpoints name the cause of what is sick in trainings as people write them, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab.edited import TrainingServer

from celedger.lab.diagnose.watch import WatchpointFinding, judge
from celedger.lab.diagnose.watch_records import read

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

START = """\
import torch
from torch import nn
import torch.nn.functional as F
"""
DIVERGED = (
    START
    + """\
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=30.0, momentum=0.9)
for step in range(40):
    x = torch.randn(16, 8)
    loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[TrainingServer]:
    server = TrainingServer(tmp_path_factory.mktemp("watched"))
    yield server
    server.close()


def watched(server: TrainingServer, text: str) -> list[WatchpointFinding]:
    (training,) = read(server.train(text, "watch"))
    return list(judge(training, {}).findings)


def test_a_divergence_is_told_before_the_operator_that_overflows(server: TrainingServer) -> None:
    first, *rest = watched(server, DIVERGED)
    assert first.watchpoint.name == "weight-change-large"
    (overflow,) = [one for one in rest if one.watchpoint.name == "overflow"]
    assert overflow.first.note.startswith("the training diverged from step 0 on")
