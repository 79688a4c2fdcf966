"""What `explain`, `profile`, `watch` and `preflight` said, kept with the commit it was said of.

Lives here: the record of a finding, its INSERT and its SELECT. It must not know how a diagnosis
runs; its trainings are not in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celedger.ledger.store import columns_of, encoded
from celedger.ledger.write import Writer

LONGEST_HEADLINE = 500  # letters; a message in it may have any length
LARGEST_DOCUMENT = 2**20  # letters of JSON; a profile of 8,000 steps has about as many


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """The answer of one diagnosis of one task. Commits are full hashes; `before` is the one that
    `commit` was compared with, "" without one."""

    ulid: str
    verb: str
    suite: str
    task: str
    commit: str
    before: str
    command: str  # what gives the same answer again, without `celedger`
    started: float
    headline: str
    document: Mapping[str, object]  # what `--json` prints


class Findings(Writer):
    def record_finding(self, finding: FindingRecord) -> None:
        """Record the finding; its commits must be recorded. Of a document that is too large, only
        the size is kept. Raises LedgerError."""
        row = columns_of(finding)
        row["headline"] = row["headline"][:LONGEST_HEADLINE]
        if (size := len(row["document"])) > LARGEST_DOCUMENT:
            row["document"] = encoded({"left_out": size})
        with self.transaction():
            row["revision"] = self._id("commits", "sha", row.pop("commit"))
            before = row["before"]
            row["before"] = self._id("commits", "sha", before) if before else None
            self._record("findings", **row)

    def findings(self, commit: str | None = None) -> list[FindingRecord]:
        """Return what was found of a commit, by its full hash, or of all; the oldest first."""
        return self._nouns(
            FindingRecord,
            "SELECT f.ulid, f.verb, f.suite, f.task, c.sha, coalesce(b.sha, ''), f.command, "
            "f.started, f.headline, f.document FROM findings f JOIN commits c ON c.id = f.revision "
            "LEFT JOIN commits b ON b.id = f.before WHERE ? IS NULL OR c.sha = ? ORDER BY f.id",
            (commit, commit),
        )
