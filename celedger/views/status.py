"""`celedger status`: what runs, what waits, what is worse, and what to type next. `celedger status
ID`: one incident with its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.errors import command
from celedger.base.model import Commit, Direction, JobState, Metric, QueuedJob, TrialRecord
from celedger.judge.incident import DRIFT, WORK, Doubt, Incident, State
from celedger.views import incidents as words
from celedger.views.document import (
    CYAN,
    RED,
    YELLOW,
    Column,
    Document,
    Listing,
    amount,
    count,
    duration,
    iso_time,
    measure,
    pick,
    plain,
    probability,
    short,
    table,
)

Series = Mapping[str, Sequence[tuple[int, float]]]  # metric -> (epoch, value)
_COLUMNS = (Column(), Column(wrap=True))
_INCIDENTS = (
    Column("id", colour=lambda _: YELLOW), Column("worse"),
    Column("by", right=True, colour=lambda _: RED), Column("since", shrink=True, least=40),
    Column("author", shrink=True), Column("state", shrink=True),
    Column("next", colour=lambda _: CYAN),
)  # fmt: skip
_EVIDENCE = (Column("metric"), Column("before → after"), Column("change", right=True),
             Column("95 %"), Column("state"))  # fmt: skip
_LISTED = 12  # of each kind that are printed; JSON has all


@dataclass(frozen=True, slots=True)
class StatusDocument(Document):
    """`seen` maps the incidents that a person saw here when this was last typed to their state."""

    SCHEMA = 2

    now: float
    running: Sequence[TrialRecord]
    queue: QueueDocument
    state: State
    seen: Mapping[str, str]
    commits: Mapping[str, Commit]  # that incidents name
    next: str  # a command in backquotes, and why; "" where nothing is to be done
    servers: int = 0  # fork servers that wait for a quick answer
    causes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of incidents, by id
    upgrades: Sequence[tuple[str, str]] = ()  # a line, and the command that searches it

    def text(self, width: int = 100) -> str:
        begins = self.state.begins
        nothing = f"nothing since {short(begins)}, where this history begins"
        sections = {
            "running": self._runs() or ["nothing"],
            "waiting": self._waiting(),
            "last job": self._last_job(),
            "worse": [] if self.state.in_force else [nothing if begins else "nothing"],
        }
        parts = [table(_COLUMNS, _titled(sections), width=width)]
        if in_force := self.state.in_force:
            cells = [self._cells(incident) for incident in in_force[:_LISTED]]
            parts += ["", table(_INCIDENTS, cells, width=width)]
            parts += _more(in_force)
        doubts = sorted(self.state.doubts, key=lambda d: d.probability)
        likeliest = {(d.suite, d.task, d.metric): d for d in doubts}
        suspected = sorted(likeliest.values(), key=lambda d: -d.probability)
        others = {
            "why": [f"{name}: {lines[0]}" for name, lines in self.causes.items()],
            "over": [
                f"{i.id} {words.what(i)}: {words.state(i)}"
                for i in self.state.incidents  # over since a person looked last
                if not i.in_force and self.seen.get(i.id, i.state) != i.state
            ],
            "upgrade": [text for text, _ in self.upgrades],
            "suspected": [self._doubt(doubt) for doubt in suspected],
            "noise": list(filter(None, [words.unknown_noise(self.state)])),
            "unknown" if begins else "gone": [
                f"{name}: on commits that this history lacks" for name in self.state.gone
            ],
        }
        if rows := _titled(others):
            parts += ["", table(_COLUMNS, rows, width=width)]
        # Not wrapped: it is there to be pasted.
        typed = [*filter(None, [self.next]), *words.which_package(self.upgrades)]
        return "\n".join([*parts, "", *typed] if typed else parts)

    def json(self) -> dict[str, object]:
        return {
            "running": [
                {
                    **pick(record, "suite task epochs"),
                    **pick(record.trial, "ulid commit seed why started host device"),
                }
                for record in self.running
            ],
            "fork_servers": self.servers,
            "queue": self.queue,
            **state_json(self.state),
            "causes": self.causes,
            "new": [i.id for i in self.state.in_force if i.id not in self.seen],
            "next": self.next.partition("`")[2].partition("`")[0] or None,
        }

    def _cells(self, incident: Incident) -> tuple[str, ...]:
        new = "" if incident.id in self.seen else "new: "
        aside = "" if incident.declared or incident.kind == WORK else ", telemetry"
        return (
            incident.id, new + words.what(incident), words.by_how_much(incident),
            words.since(incident, self.commits), words.whose(incident, self.commits),
            words.state(incident) + aside, f"`{typed}`" if (typed := incident.next()) else "",
        )  # fmt: skip

    def _doubt(self, doubt: Doubt) -> str:
        size = amount(doubt.change, doubt.before, unit=doubt.unit)
        return (
            f"{doubt.task} {doubt.metric} {size} at {short(doubt.seen_at)} "
            f"({probability(doubt.probability)}): not settled"
        )

    def _runs(self) -> list[str]:
        trials = [self._trial(record) for record in self.running]
        # Between trials a job prepares a commit, signs it, or explains what it found.
        jobs = [
            f"the worker, on its job for {short(job.commit)}"
            for job in self.queue.jobs
            if job.state is JobState.RUNNING and self.queue.worker and not trials
        ]
        servers = f"{count(self.servers, 'fork server')} for quick answers: `celedger stop`"
        return [*trials, *jobs, *([servers] if self.servers else [])]

    def _trial(self, record: TrialRecord) -> str:
        trial = record.trial
        spent = duration(max(0.0, self.now - trial.started))
        done = f"{count(record.epochs, 'epoch')} in {spent}"
        return f"{record.task} at {short(trial.commit)}, seed {trial.seed}: {done} ({trial.why})"

    def _waiting(self) -> list[str]:
        lines = []
        for job in self.queue.jobs:
            state, message = self.queue.state(job)
            if state in (JobState.QUEUED, JobState.WAITING, LOST):
                lines.append(
                    f"{short(job.commit)} {state}{f': {plain(message)}' if message else ''}"
                )
        if self.queue.notes:
            why = f": {plain(self.queue.waits)}" if self.queue.waits else ""
            lines.append(f"{count(self.queue.notes, 'merge')} noted{why}")
        return lines

    def _last_job(self) -> list[str]:
        ended = [j for j in self.queue.jobs if j.state in (JobState.DONE, JobState.FAILED)]
        if not ended:
            return []
        job = max(ended, key=lambda job: job.ended or 0.0)
        when = iso_time(job.ended or job.created)
        # What a job that is done said is in the state, or is true no more.
        why = f": {plain(job.message)}" if job.state is JobState.FAILED else ""
        return [f"{short(job.commit)} {job.state.value}, {when} UTC{why}"]


def incident_document(
    incident: Incident,
    commits: Mapping[str, Commit],
    cause: Sequence[str] = (),
    proof: str = "",
) -> Listing:
    """Return one incident with its evidence: `cause` is what a diagnosis says of the named commit,
    `proof` what its revert gives back."""

    def text(width: int) -> str:
        lines = [
            f"{incident.id} {words.sentence(incident, commits)}",
            f"state: {words.state(incident)}",
        ]
        if author := words.whose(incident, commits):
            lines.append(f"author: {author}")
        if incident.message:
            lines.append(f"message: {plain(incident.message)}")
        if incident.log:
            lines.append(f"log: {incident.log}")
        lines.append(f"seen at: {short(incident.seen_at)}")
        if incident.bisect:
            lines.append(f"named by bisect {incident.bisect} ({probability(incident.probability)})")
        if proof:
            lines.append(f"proof: {plain(proof)}")
        for number, line in enumerate(cause):
            lines.append(f"    {line}" if number else f"why: {line}")
        rows = [
            (
                f"{m.suite}/{m.task} {m.name}".rstrip(), words.levels(m), words.moved(m),
                words.interval(m), m.state,
            )
            for m in (*incident.metrics, *incident.work)
            if math.isfinite(m.change)
        ]  # fmt: skip
        if rows:
            lines += ["", table(_EVIDENCE, rows, width=width)]
        if len(incident.first_bad) > 1:
            drifts = incident.kind == DRIFT
            lines += ["", "it drifted over:" if drifts else "the first bad commit is one of:"]
            lines += [f"  {_commit_line(sha, commits)}" for sha in incident.first_bad]
        if incident.inseparable:
            lines += ["", "no bisect can tell them apart: what lies between cannot be tested"]
        elif incident.is_explained and incident.in_force:
            accept = command("baseline", "accept", incident.id, why="TEXT")
            lines += ["", f"{accept} if it is intended"]
        elif typed := incident.next():
            lines += ["", f"`{typed}`"]
        return "\n".join(lines)

    fields = {"incident": incident, "cause": cause, "proof": proof or None}
    return Listing(fields, text, StatusDocument.SCHEMA)


def _commit_line(sha: str, commits: Mapping[str, Commit]) -> str:
    commit = commits.get(sha)
    return f"{short(sha)} {plain(commit.subject)} ({plain(commit.author)})" if commit else sha


def followed_title(record: TrialRecord, before: TrialRecord | None, others: int) -> str:
    """Return what runs, beside `others`, and the trial `before` whose epochs stand in brackets."""
    trial, more = record.trial, f" (and {others} more)" * (others > 0)
    lines = [f"{record.task} at {short(trial.commit)}, seed {trial.seed}{more}"]
    if before is not None:
        other = before.trial
        when = iso_time(other.started)
        lines.append(f"in brackets: {short(other.commit)}, seed {other.seed}, {when} UTC")
    return "\n".join(lines)


def new_epochs(
    metrics: Sequence[Metric], series: Series, points: Series, shown: set[tuple[str, int]]
) -> list[str]:
    """Return a line for each epoch with a value that is not in `shown`, and add it there; `points`
    are those of the trial before. Metrics that are never judged are left out where another one is
    reported."""
    judged = [m for m in metrics if m.direction is not Direction.INFO]
    cells: dict[int, list[str]] = {}
    for metric in [m for m in judged if m.name in series] or metrics:
        then = dict(points.get(metric.name, ()))
        for epoch, value in series.get(metric.name, ()):
            if (metric.name, epoch) not in shown:
                shown.add((metric.name, epoch))
                cell = f"{metric.name} {measure(value, unit=metric.unit)}"
                if epoch in then:
                    cell += f" ({measure(then[epoch], unit=metric.unit)})"
                cells.setdefault(epoch, []).append(cell)
    return [f"epoch {epoch}  {', '.join(cells[epoch])}" for epoch in sorted(cells)]


def state_json(state: State) -> dict[str, object]:
    """Return the rows of the state, as every verb prints them in JSON."""
    return {
        "revision": state.tip,
        "incidents": list(state.incidents),
        "changes": [
            {
                **pick(c, "kind suite task metric before after low high probability seen_at "
                          "better"),
                "change": c.size, "among": list(c.among),
            }
            for c in state.changes
        ],
        "suspected": [
            {**pick(d, "suite task metric probability change seen_at"), "among": list(d.among)}
            for d in state.doubts
        ],
        "pinned": [
            pick(p, "suite task metric pinned level change low high better") for p in state.pinned
        ],
        "gone": list(state.gone),
    }  # fmt: skip


def _titled(sections: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the first lines of each section, its title beside the first of them."""
    return [
        (title if n == 0 else "", line)
        for title, lines in sections.items()
        for n, line in enumerate([*lines[:_LISTED], *_more(lines)])
    ]


def _more(listed: Sequence[object]) -> list[str]:
    """Return a line on what is not printed, where there is any."""
    more = len(listed) - _LISTED
    return [f"and {more} more"] if more > 0 else []


# --- `celedger queue`: waiting and running jobs, and how the last ones ended


LOST = "lost"  # the state of a job whose worker died
_RECENT = 5  # ended jobs that are printed; JSON has all


@dataclass(frozen=True, slots=True)
class QueueDocument(Document):
    jobs: Sequence[QueuedJob]  # the oldest first
    notes: int  # merges that hooks have noted and no worker has read yet
    worker: bool  # whether a worker runs
    waits: str  # why no worker may read the notes
    # Trials on nodes: commit, task, seed, where, and whether the command that sent them lives.
    orders: Sequence[tuple[str, str, int, str, bool]] = ()
    starts: bool = False  # a merge was noted just now, so that its worker may be starting

    @property
    def lacks_worker(self) -> bool:
        """Return True if work waits for a person to start a worker."""
        unfinished = any(j.state in (JobState.QUEUED, JobState.RUNNING) for j in self.jobs)
        waits = unfinished or (self.notes > 0 and not self.waits)
        return waits and not self.worker and not self.starts

    def text(self, width: int = 100) -> str:
        """Return one line a job, and the command to type if no worker is running."""
        ended = [job for job in self.jobs if job.ended is not None]
        hidden = ended[:-_RECENT]
        lines = []
        for job in self.jobs:
            if job not in hidden:
                state, message = self.state(job)
                when = iso_time(job.ended or job.created)
                lines.append(f"{short(job.commit)}  {state:<10}  {when}  {plain(message)}".rstrip())
        if self.notes:
            why = f"; waits: {plain(self.waits)}" if self.waits else ""
            why += "; its worker starts" * (self.starts and not self.worker)
            lines.append(f"{count(self.notes, 'merge')} noted, not yet in the queue{why}")
        if self.lacks_worker:
            lines.append("no worker is running: `celedger worker` goes on")
        for sha, task, seed, engine, attended in self.orders:
            left = "" if attended else "; its command died, the next one on that engine takes it in"
            lines.append(f"{short(sha)}  {plain(task)} seed {seed} runs on {plain(engine)}{left}")
        return "\n".join(lines) or "the queue is empty"

    def json(self) -> dict[str, object]:
        jobs = []
        for job in self.jobs:
            state, message = self.state(job)
            row = {**pick(job, "id commit suite created ended attempts"), "worktree": job.key}
            jobs.append({**row, "state": state, "message": message})
        keys = ("commit", "task", "seed", "engine", "attended")
        orders = [dict(zip(keys, order, strict=True)) for order in self.orders]
        return {**pick(self, "notes waits worker"), "jobs": jobs, "orders": orders}

    def state(self, job: QueuedJob) -> tuple[str, str]:
        """Return the state of a job and its message. A running job without a worker is lost."""
        if job.state is JobState.RUNNING and not self.worker:
            return LOST, "its worker died"
        return job.state.value, job.message
