"""Footprints of trials, and the trials that re-use the result of another, written and read.

Lives here: which trials others may re-use at all. It must not know git, nor what a tree holds:
trees are compared by `trial/reuse/`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable

from celedger.ledger.write import Writer
from celedger.model import Footprint, ReusableTrial, Trial

# Others may re-use a trial that ended by itself and undisturbed: well, without a metric, or by an
# exception (exit statuses of signals, and -9 itself, may be the machine's doing).
_REUSABLE = """
o.marks IN ('', 'early-stopped') AND (o.kind IN ('ok', 'missing')
  OR (o.kind = 'failed' AND o.returncode BETWEEN 1 AND 127))
"""


class Footprints(Writer):
    def record_footprint(self, ulid: str, footprint: Footprint, surroundings: str) -> None:
        """`surroundings` is what beside the tree decides what a training reads."""
        paths = b"\0\0".join(map(_packed, (footprint.opened, footprint.looked)))
        inputs = json.dumps(footprint.inputs)
        digest = hashlib.sha256(paths + b"\n\0" + inputs.encode()).hexdigest()
        with self.transaction():
            self._record(
                "footprints", digest=digest, paths=zlib.compress(paths), inputs=inputs, code=""
            )
            number = self._id("footprints", "digest", digest)
            self._record(
                "closures", trial=self._trial_id(ulid), footprint=number, content=surroundings,
                unknown="",
            )  # fmt: skip

    def record_unknown_footprint(self, ulid: str, why: str) -> None:
        """Nobody re-uses such a trial."""
        with self.transaction():
            self._record(
                "closures", trial=self._trial_id(ulid), content="",
                unknown=why.encode("utf-8", "replace").decode(),
            )  # fmt: skip

    def reusable_trials(
        self, *, recipe: str, environment: str, seed: int | None = None
    ) -> list[ReusableTrial]:
        """Return the trials that others may re-use, in the order in which they started."""
        return [
            ReusableTrial(ulid, sha, tree, of_seed, footprint, around, bool(whole), kind != "ok")
            for ulid, sha, tree, of_seed, footprint, around, whole, kind in self._rows(
                "SELECT r.ulid, c.sha, c.tree, r.seed, x.footprint, x.content, o.marks = '', "
                "o.kind FROM tasks t "
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
        opened, _, looked = zlib.decompress(paths).partition(b"\0\0")
        return Footprint(_unpacked(opened), _unpacked(looked), tuple(json.loads(inputs)))

    def reuse_trial(self, trial: Trial, evidence: ReusableTrial, without: Iterable[str]) -> None:
        """Record a trial that need not run: it ends as its evidence did, with the summaries of all
        metrics but those `without`. Raises LedgerError for an evidence that did not run itself."""
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


def _packed(paths: Iterable[bytes]) -> bytes:
    """The tree itself, which has no name, is a dot."""
    return b"\0".join(path or b"." for path in paths)


def _unpacked(paths: bytes) -> tuple[bytes, ...]:
    return tuple(b"" if path == b"." else path for path in paths.split(b"\0") if path)
