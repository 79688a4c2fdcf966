"""`celedger log --bisects`: what was searched before, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celedger.base.errors import CeledgerError
from celedger.base.model import BisectRecord, Commit
from celedger.ledger.read import Reader
from celedger.views.document import Document, pick
from celedger.views.format import count, iso_time, plain, probability, short
from celedger.views.tables import wrap


@dataclass(frozen=True, slots=True)
class BisectList(Document):
    """The newest first. `commits` are those that the ledger knows."""

    bisects: tuple[BisectRecord, ...]
    commits: Mapping[str, Commit]

    @classmethod
    def of(cls, ledger: Reader, limit: int) -> BisectList:
        """Read the newest bisects. Raises CeledgerError where there is none."""
        bisects = tuple(reversed(ledger.bisects()[-limit:]))
        if not bisects:
            raise CeledgerError("nothing was bisected yet", "type `celedger bisect GOOD..BAD`")
        return cls(bisects, {commit.sha: commit for commit in ledger.commits()})

    def text(self, width: int = 100) -> str:
        lines = []
        for bisect in self.bisects:
            what = f"{bisect.task} {bisect.metric or 'crash'}"
            lines += wrap(f"{bisect.ulid}  {iso_time(bisect.ended)}  {what}", width, 4)
            ends = f"{short(bisect.good)}..{short(bisect.bad)}"
            lines += wrap(f"  {ends}: {self._answer(bisect)}", width, 4)
        return "\n".join([*lines, "", "`celedger plot bisect ID` draws one again"])

    def json(self) -> dict[str, object]:
        return {
            "bisects": [
                {
                    "id": bisect.ulid,
                    **pick(bisect, "ended suite task metric good bad status culprits probability"),
                    "improved": bool(bisect.report.get("improved")),
                    "effect": bisect.report.get("effect"),
                    "trials": bisect.report.get("trials"),
                }
                for bisect in self.bisects
            ]
        }

    def _answer(self, bisect: BisectRecord) -> str:
        kind = "better" if bisect.report.get("improved") else "bad"
        sure = probability(bisect.probability)
        if bisect.status == "found":
            sha = bisect.culprits[0]
            subject = plain(self.commits[sha].subject) if sha in self.commits else ""
            return f"first {kind} commit {short(sha)} ({sure})  {subject}".rstrip()
        if bisect.status == "nothing-changed":
            return f"nothing changed ({sure})"
        among = count(len(bisect.culprits), "commit")
        if bisect.status == "set":
            return f"one of {among} that cannot be told apart"
        return f"undecided among {among}"
