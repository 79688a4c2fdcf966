"""Closures of trials and the trials derived from them, written and read.

Lives here: which trials may stand for another at all. It must not know git, nor what a tree
holds: contents are compared by `trial/closure.py`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable

from celedger.ledger.write import Writer
from celedger.model import Closure, Footprint, Trial

# A trial stands for others when it ended by itself and undisturbed: well, without a metric, or by
# an exception (exit statuses of signals, and -9 itself, may be the machine's doing).
_REUSABLE = """
o.marks IN ('', 'early-stopped') AND (o.kind IN ('ok', 'missing')
  OR (o.kind = 'failed' AND o.returncode BETWEEN 1 AND 127))
"""


class Closures(Writer):
    def record_closure(self, ulid: str, footprint: Footprint, content: str) -> None:
        paths = b"\0".join(footprint.paths)
        inputs = json.dumps(footprint.inputs)
        digest = hashlib.sha256(b"\n\0".join((paths, inputs.encode()))).hexdigest()
        with self.transaction():
            self._record(
                "footprints", digest=digest, paths=zlib.compress(paths), inputs=inputs, code=""
            )
            footprint_id = self._id("footprints", "digest", digest)
            self._record(
                "closures", trial=self._trial_id(ulid), footprint=footprint_id, content=content,
                unknown="",
            )  # fmt: skip

    def record_unknown_closure(self, ulid: str, why: str) -> None:
        """Such a trial stands for no other."""
        with self.transaction():
            self._record(
                "closures", trial=self._trial_id(ulid), content="",
                unknown=why.encode("utf-8", "replace").decode(),
            )  # fmt: skip

    def closures(self, *, recipe: str, environment: str, seed: int | None = None) -> list[Closure]:
        """Of the trials that may stand for another, in the order in which they started."""
        return [
            Closure(trial, commit, of_seed, footprint, content, bool(whole), kind != "ok")
            for trial, commit, of_seed, footprint, content, whole, kind in self._rows(
                "SELECT r.ulid, c.sha, r.seed, x.footprint, x.content, o.marks = '', o.kind "
                "FROM tasks t "
                "JOIN trials r ON r.task = t.id JOIN environments e ON e.id = r.environment "
                "JOIN closures x ON x.trial = r.id JOIN outcomes o ON o.trial = r.id "
                "JOIN commits c ON c.id = r.revision "
                "WHERE t.recipe = ? AND e.fingerprint = ? AND (? IS NULL OR r.seed = ?) "
                f"AND x.footprint IS NOT NULL AND {_REUSABLE} "
                "AND r.id NOT IN (SELECT trial FROM derived) ORDER BY r.id",
                (recipe, environment, seed, seed),
            )
        ]

    def footprint(self, number: int) -> Footprint:
        ((paths, inputs),) = self._rows(
            "SELECT paths, inputs FROM footprints WHERE id = ?", (number,)
        )
        # "" alone, the tree itself, packs like nothing at all.
        return Footprint(tuple(zlib.decompress(paths).split(b"\0")), tuple(json.loads(inputs)))

    def derive_trial(
        self, trial: Trial, evidence: Closure, content: str, without: Iterable[str]
    ) -> None:
        """A trial that need not run: it ends as its evidence did, with the summaries of all
        metrics but those `without`. `content` lies at its commit where the evidence looked.
        Raises LedgerError for an evidence that is none itself."""
        with self.transaction() as connection:
            self.start_trial(trial)
            new, old = self._trial_id(trial.ulid), self._trial_id(evidence.ulid)
            connection.execute(
                "INSERT INTO derived SELECT ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM derived WHERE trial = ?)",
                (new, old, old),
            )
            connection.execute(
                "INSERT INTO outcomes SELECT ?, kind, ?, message, returncode, log, marks, epochs "
                "FROM outcomes WHERE trial = ?",
                (new, trial.started, old),
            )
            connection.execute(
                "INSERT INTO summaries SELECT metric, task, ?, value, definition FROM summaries "
                "WHERE trial = ? AND metric NOT IN "
                "(SELECT id FROM metrics WHERE name IN (SELECT value FROM json_each(?))) "
                "AND task = (SELECT task FROM trials WHERE id = ?)",
                (new, old, json.dumps(list(without)), old),
            )
            self._seal("trials", new)
            self._record(
                "closures", trial=new, footprint=evidence.footprint, content=content, unknown=""
            )
