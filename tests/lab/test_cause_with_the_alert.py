"""A bad merge, and nothing typed: the alert names the commit, proves it, and says why."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, git, make_project
from lab import classifier
from lab.edited import edited

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
seeds = [0, 1, 2]
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
[[task]]
name = "fit"
command = "{python} fit.py {seed}"
"""
LOSS = """\
import torch.nn.functional as F


def criterion(output, target):
    return F.cross_entropy(output, target)
"""
FIT = edited(
    classifier.FIT,
    (
        "from celedger.child import log\n",
        "from celedger.child import log\nfrom loss import criterion\n",
    ),
    ("range(0, 128, 32)", "torch.randperm(128).split(32)"),
    (
        "F.cross_entropy(net(rows[at:at + 32]), labels[at:at + 32])",
        "criterion(net(rows[at]), labels[at])",
    ),
)


@pytest.fixture
def posts() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, received
        server.shutdown()
        thread.join()


def merged(project: Project, changes: list[tuple[str, dict[str, str]]]) -> list[str]:
    """Merge commits, and leave the note that the hook leaves."""
    git(project.root, "checkout", "-q", "-b", "next")
    shas = [project.commit(subject, files) for subject, files in changes]
    git(project.root, "checkout", "-q", "main")
    git(project.root, "merge", "-q", "--ff-only", "next")
    queue = project.root / ".git" / "celedger" / "queue"
    queue.mkdir(parents=True, exist_ok=True)
    (queue / "1.moved").write_text(str(project.root))
    return shas


@pytest.mark.matrix
def test_one_alert_has_the_commit_its_proof_and_the_cause(
    posts: tuple[int, list[dict[str, Any]]], tmp_path: Path
) -> None:
    port, received = posts
    project = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    own = Path(os.environ["XDG_CONFIG_HOME"], "celedger", "config.toml")
    own.parent.mkdir(parents=True)
    own.write_text(f'notify = ["json://127.0.0.1:{port}"]\n')
    settings = "bisect_on_regression = true\n"
    project.commit("start", {"fit.py": FIT, "loss.py": LOSS, "celedger.toml": settings})
    assert project.run("run", "HEAD").status == 0
    shas = merged(project, [
        ("a comment", {"fit.py": FIT + "# done\n"}),
        ("smooth", {"loss.py": LOSS.replace("target)\n", "target, label_smoothing=0.4)\n", 2)
                    .replace("def criterion(output, target, label_smoothing=0.4)",
                             "def criterion(output, target)")}),
        ("another comment", {"fit.py": FIT + "# done now\n"}),
    ])  # fmt: skip
    done = project.run("worker")
    assert done.status == 0, done.err
    (alert,) = received
    assert "fit val_loss is worse" in alert["title"]
    assert f"{shas[1][:10]} smooth" in alert["message"]
    why = next(line for line in alert["message"].splitlines() if line.startswith("why: "))
    assert "label_smoothing=0.4" in why
    assert "    loss.py:5" in alert["message"]
    assert f"reverting {shas[1][:8]} on {shas[2][:8]} restores" in project.run("queue").out
    status = json.loads(project.run("status", "--json").out)
    (incident,) = status["incidents"]
    assert incident["work"]  # label smoothing takes more operators, too
    assert incident["id"] in status["causes"]
    assert "why" in project.run("status").out
    evidence = project.run("status", incident["id"]).out
    assert "proof: reverting" in evidence
    assert "    + " in evidence or "    +" in evidence
