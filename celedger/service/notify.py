"""Alerts: what got worse, which commit it was, what is good again. Sent by apprise to the addresses
of the user's own configuration, each piece of news once an address.

Lives here: the text, and which address got it already. It must not decide what is worse: the
verdicts and bisects of the ledger do. An alert that cannot be sent is a line for the person, never
an error, and is tried again with the next verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.config import Config
from celedger.base.errors import CeledgerError
from celedger.base.model import BisectRecord, Commit
from celedger.base.text import plain
from celedger.judge.drift import open_regressions
from celedger.judge.drift.open_regressions import News, Regression
from celedger.ledger import Ledger
from celedger.repo import Repository, bisecting
from celedger.service import reported_regressions

Draw = Callable[[Repository, Ledger, BisectRecord], Path]  # a bisect; may raise CeledgerError


def announce(
    repository: Repository,
    ledger: Ledger,
    settings: Config,
    revision: str,
    say: Callable[[str], None],
    draw: Draw | None = None,
) -> None:
    """Send what is new in the history of a commit. Never raises for an alert that fails. Says
    nothing during a `git bisect`, which judges old commits. The picture of a bisect goes along."""
    if not settings.notify or bisecting.start_of(repository):
        return
    log = repository.log(revision, limit=open_regressions.HISTORY)
    history = open_regressions.positions(log)
    regressions = open_regressions.open_regressions(ledger, history)
    commits = {commit.sha: commit for commit in log}
    for address in settings.notify:
        name = f"alerts-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
        changes = open_regressions.changes(
            reported_regressions.read_known(repository, name), regressions, history
        )
        title, body = message(changes, commits)
        problem = ""
        if title:
            pictures = [] if draw is None else _pictures(repository, ledger, changes, draw)
            problem = _send(address, f"{repository.root.name}: {title}", body, pictures)
        if problem:
            say(f"an alert to {address.partition(':')[0]}:// was not sent: {problem}")
        else:
            reported_regressions.write_known(repository, name, changes.known)


def message(changes: News, commits: Mapping[str, Commit]) -> tuple[str, str]:
    """Return the title and the text of an alert; "" where there is nothing to say."""
    titles = [f"{open_regressions.title(r.key)} {r.verdict.kind.value}" for r in changes.regressed]
    titles += [f"first bad commit of {open_regressions.title(r.key)}" for r in changes.named]
    titles += [f"{open_regressions.title(key)} is good again" for key in changes.recovered]
    lines = [
        line for r in changes.regressed for line in (_regressed(r, commits), *_named(r, commits))
    ]
    lines += [line for r in changes.named for line in _named(r, commits)]
    lines += titles[len(changes.regressed) + len(changes.named) :]
    if not titles:
        return "", ""
    more = f" and {len(titles) - 1} more" * (len(titles) > 1)
    return titles[0] + more, "\n".join([*lines, "", "celedger status"])


def _regressed(regression: Regression, commits: Mapping[str, Commit]) -> str:
    verdict, relative = regression.verdict, regression.relative
    text = f"{open_regressions.title(regression.key)} {verdict.kind.value}"
    if relative is not None:
        text += f" {100 * relative:+.1f} %"
    return f"{text} at {_described(verdict.commit, commits)}"


def _named(regression: Regression, commits: Mapping[str, Commit]) -> list[str]:
    first_bad = regression.first_bad
    if first_bad is None:
        return []
    return [f"{first_bad.text()}: {_described(first_bad.commit, commits)}"]


def _described(sha: str, commits: Mapping[str, Commit]) -> str:
    commit = commits.get(sha)
    return f"{sha[:10]} {plain(commit.subject)} ({plain(commit.author)})" if commit else sha[:10]


def _pictures(repository: Repository, ledger: Ledger, changes: News, draw: Draw) -> list[str]:
    """Draw the bisects that are news. An alert goes without a picture that cannot be drawn."""
    paths = []
    for regression in (*changes.regressed, *changes.named):
        if regression.first_bad is not None:
            with suppress(CeledgerError, OSError):
                paths.append(str(draw(repository, ledger, regression.first_bad.bisect)))
    return paths


def _send(address: str, title: str, body: str, pictures: Sequence[str] = ()) -> str:
    """Send an alert. Return why it could not be, "" where it was."""
    try:
        import apprise
    except ImportError:
        return "apprise is not installed (pip install 'celedger[notify]')"
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
