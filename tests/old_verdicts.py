"""A verdict as celedger wrote them before it kept incidents. It keeps the rows, and reads none."""

from __future__ import annotations

import hashlib

from celedger.base.model import Commit
from celedger.ledger import Ledger
from celedger.ledger.store import encoded


def record_verdict(ledger: Ledger, commit: Commit, *ulids: str) -> None:
    """Record a verdict on a recorded commit, judged from trials with these ULIDs."""
    text = encoded(ulids)
    digest = hashlib.sha256(text.encode()).digest()
    with ledger.transaction():
        ledger._record("trial_sets", digest=digest, ulids=text)
        trials = ledger._id("trial_sets", "digest", digest)
        ledger._record(
            "verdicts", revision=ledger._id("commits", "sha", commit.sha), suite="core",
            task="mlp", metric="loss", recipe="", environment="", kind="same", trials=trials,
            baseline=trials, rule="", note="",
        )  # fmt: skip
