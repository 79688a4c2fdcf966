"""Send alerts: what got worse, which commit it was, what is over. apprise sends them to the
addresses of the user's own configuration, each piece of news once an address.

Lives here: the text, and which address has it already. The state decides what is worse. An alert
that cannot be sent is a line for the person, never an error, and is tried again with the next job.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import SystemRandom
from types import MappingProxyType

from celedger.base import files
from celedger.base.errors import CeledgerError
from celedger.base.model import Commit, SaidRecord
from celedger.base.text import plain, probability
from celedger.judge import memory
from celedger.judge.incident import DRIFT, WORK, Incident, State
from celedger.ledger import ulid
from celedger.repo import tree_files
from celedger.service.measure import Session
from celedger.views import incidents as words

LOCK = "alerts.lock"  # held while alerts are sent, in the ledger's folder
Draw = Callable[[str], str]  # of a bisect, by its id, the file; may raise CeledgerError


OPENED, NAMED, RECOVERED, WITHDRAWN = "opened", "named", "recovered", "withdrawn"  # events


@dataclass(frozen=True, slots=True)
class News:
    """One event of one incident. `others` are the ids of those by which its metrics are worse."""

    event: str
    incident: Incident
    others: tuple[str, ...] = ()


def announce(session: Session, state: State, draw: Draw | None = None) -> None:
    """Send what is new in a state. Never raises for an alert that fails. Says nothing during a `git
    bisect`, which judges old commits. The picture of a bisect goes along."""
    repository, ledger, addresses = session.repository, session.ledger, session.config.notify
    if not addresses or tree_files.start_of(repository):
        return
    # `check` and the worker may have the same news in the same second.
    with files.hold_lock(ledger.private / LOCK):
        commits = memory.commits_of(repository, state)
        rows = ledger.said()
        for address in addresses:
            name = _name(address)
            sent = {(row.incident, row.event) for row in rows if row.address == name}
            news = unsent(state.incidents, sent)
            causes = {
                i.id: words.cause(i, ledger.findings(i.likeliest))
                for i in (item.incident for item in news) if i.is_named
            }  # fmt: skip
            title, body = message(news, commits, causes)
            problem = ""
            if title:
                pictures = [] if draw is None else _pictures(news, draw)
                problem = _send(address, f"{repository.root.name}: {title}", body, pictures)
            if problem:
                session.tell(f"an alert to {address.partition(':')[0]}:// was not sent: {problem}")
            elif news:
                ledger.record_said(_rows(news, state, name))


def _name(address: str) -> str:
    """Return what the ledger keeps of an address, which may hold a password."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def unsent(incidents: Collection[Incident], sent: set[tuple[str, str]]) -> list[News]:
    """Return the news that an address has not got yet. An incident that it was never sent does not
    recover for it."""
    news = []
    for incident in incidents:
        if incident.kind == WORK and not incident.declared:
            continue
        sent_events = {event for name, event in sent if name in incident.names}
        opened = OPENED in sent_events
        if incident.in_force:
            if not opened:
                news.append(News(OPENED, incident))
            elif incident.bisect and NAMED not in sent_events:
                news.append(News(NAMED, incident))
        for event in (RECOVERED, WITHDRAWN):
            is_told = event in sent_events
            if opened and incident.state == event and not is_told and not incident.why:
                news.append(News(event, incident, _others(incident, incidents)))
    return news


def _others(incident: Incident, incidents: Iterable[Incident]) -> tuple[str, ...]:
    """Return which incidents keep a metric worse; of telemetry only where nothing was declared."""
    keys = {m.key for m in incident.metrics if m.declared or not incident.declared}
    return tuple(i.id for i in incidents if i.in_force and keys & {m.key for m in i.metrics})


def _rows(news: Sequence[News], state: State, address: str) -> list[SaidRecord]:
    now, rows = time.time(), []
    for item in news:
        incident, events = item.incident, [item.event]
        if item.event == OPENED and incident.bisect:
            events.append(NAMED)  # one alert told both
        main = incident.main
        rows += [
            SaidRecord(
                ulid.new(now, SystemRandom()), incident.id, incident.state, event,
                incident.kind, main.suite, main.task, main.name, incident.first_bad[0], state.tip,
                "alert", address, now,
            )
            for event in events
        ]  # fmt: skip
    return rows


def message(
    news: Sequence[News],
    commits: Mapping[str, Commit],
    causes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[str, str]:
    """Return the title and the text of an alert; "" where there is nothing to say. `causes`: what a
    diagnosis says of an incident's commit, by the incident's id."""
    if not news:
        return "", ""
    titles = list(dict.fromkeys(map(_title, news)))  # of two causes of one metric one is enough
    lines = [
        line for item in news
        for line in _lines(item, commits, causes.get(item.incident.id, ()))
    ]  # fmt: skip
    more = [f"{len(titles) - 2} more"] * (len(titles) > 2)
    return "; ".join([*titles[:2], *more]), "\n".join([*lines, "", "celedger status"])


def _title(news: News) -> str:
    incident = news.incident
    name = incident.title()
    if news.event == NAMED:
        return f"first bad commit of {name}"
    if news.event == RECOVERED:
        still = f"a cause is mended, still worse by {', '.join(news.others)}"
        return f"{name}: {still}" if news.others else f"{name} is good again"
    if news.event == WITHDRAWN:
        return f"{name} was a false alarm"
    return words.headline(incident)


def _lines(news: News, commits: Mapping[str, Commit], cause: Sequence[str]) -> list[str]:
    incident = news.incident
    lines = [f"{incident.id}: {_title(news)}"]
    if news.event in (OPENED, NAMED):
        if news.event == NAMED:
            lines.append(words.headline(incident))
        lines.append(_first_bad(incident, commits))
        lines += [f"    {line}" if number else f"why: {line}" for number, line in enumerate(cause)]
        lines += words.also(incident)
        lines += filter(None, [words.reason(incident, cause)])
    if news.event == RECOVERED and incident.closed_at:
        lines.append(f"mended by {words.mended_by(incident, lambda c: _described(c, commits))}")
    return lines


def _first_bad(incident: Incident, commits: Mapping[str, Commit]) -> str:
    if incident.is_named:
        sure = f" ({probability(incident.probability)})" if incident.bisect else ""
        return f"first bad commit{sure}: {_described(incident.likeliest, commits)}"
    if incident.kind == DRIFT:
        return f"since {words.since(incident, commits)}"
    last = _described(incident.first_bad[-1], commits)
    return f"first bad commit: one of {len(incident.first_bad)} up to {last}"


def _described(sha: str, commits: Mapping[str, Commit]) -> str:
    commit = commits.get(sha)
    return f"{sha[:10]} {plain(commit.subject)} ({plain(commit.author)})" if commit else sha[:10]


def _pictures(news: Sequence[News], draw: Draw) -> list[str]:
    """Draw the bisects that are news. An alert goes without a picture that cannot be drawn."""
    events = (OPENED, NAMED)
    paths = []
    for bisect in sorted({i.incident.bisect for i in news if i.event in events} - {""}):
        with suppress(CeledgerError, OSError):
            paths.append(draw(bisect))
    return paths


def _send(address: str, title: str, body: str, pictures: Sequence[str] = ()) -> str:
    """Send an alert. Return why it could not be, "" where it was."""
    try:
        import apprise
    except ImportError:
        return "apprise is not installed (pip install apprise)"
    try:
        service = apprise.Apprise()
        if not service.add(address):
            return "apprise does not understand the address (see `notify` in your configuration)"
        text = apprise.NotifyFormat.TEXT
        attached = [*pictures] or None
        sent = service.notify(body=body, title=title, body_format=text, attach=attached)
        if attached and not sent:  # perhaps it takes no files
            sent = service.notify(body=body, title=title, body_format=text)
    except Exception as error:  # whatever a service does, the work goes on
        return f"{type(error).__name__}: {plain(str(error))}"
    return "" if sent else "the service did not accept it, or could not be reached"
