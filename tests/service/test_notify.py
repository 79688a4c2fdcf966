"""Alerts reach a real HTTP and a real SMTP server, once each; one that fails changes nothing."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import git, with_verbs
from scripted import scripted

from celedger.base import config
from celedger.base.config import Config
from celedger.judge.incident import Incident, IncidentMetric
from celedger.repo import Repository
from celedger.service.notify import News, message, unsent

from .conftest import Crew

WORSE = "fit val_loss is worse: +37.6 %"


@dataclass
class Inbox:
    """What was posted, and the status that the next posts get."""

    port: int = 0
    status: int = 200
    posts: list[dict] = field(default_factory=list)

    def take(self) -> list[str]:
        """Return the titles of what came since, each without the repository's name."""
        titles = [post["title"].partition(": ")[2] for post in self.posts]
        self.posts.clear()
        return titles


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    box = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if box.status == 200:
                box.posts.append(json.loads(body))
            self.send_response(box.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        box.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield box
        server.shutdown()
        thread.join()


@dataclass
class Mailbox:
    """What was mailed; while it is `full`, mail is refused."""

    port: int = 0
    full: bool = False
    mails: list[EmailMessage] = field(default_factory=list)

    def take(self) -> list[str]:
        """Return the subjects of what came since, each without the repository's name."""
        subjects = [mail["Subject"].partition(": ")[2] for mail in self.mails]
        self.mails.clear()
        return subjects


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                verb = line[:4].upper().strip()
                if verb == b"RCPT" and box.full:
                    self.wfile.write(b"452 no room\r\n")
                elif verb == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    text = b"".join(each.removeprefix(b".") for each in lines)
                    mail = message_from_bytes(text, policy=policy.default)
                    box.mails.append(mail)
                    self.wfile.write(b"250 taken\r\n")
                else:
                    self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 fine\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield box
        server.shutdown()
        thread.join()


def configure(*addresses: str) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"notify = {json.dumps(addresses)}\n")


@pytest.mark.matrix
def test_what_another_cause_keeps_worse_is_not_good_again(tmp_path: Path, inbox: Inbox) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.5, 1.5, 2.2, 2.2, 1.5])
    configure(f"json://127.0.0.1:{inbox.port}/")
    project.run("run", f"{shas[0]}..{shas[3]}")
    for sha in (shas[3], shas[5]):
        project.run("check", sha)
    assert len(inbox.take()) == 2
    project.run("check", shas[6])
    rows = json.loads(project.run("status", "--json").out)["incidents"]
    (still,) = [row["id"] for row in rows if row["state"] == "open"]
    assert inbox.take() == [f"fit val_loss: a cause is mended, still worse by {still}"]


def test_telemetry_keeps_no_declared_metric_worse() -> None:
    """A leak of x-transformers was mended, and another commit had raised `peak_rss`, too."""

    def incident(name: str, state: str, *metrics: tuple[str, bool]) -> Incident:
        moved = tuple(
            IncidentMetric("tiny", "fit", metric, 1, 2, 1, 1, 1, state=state, declared=declared)
            for metric, declared in metrics
        )
        return Incident(name, "metric", state, moved, ("b",), "b", 0.99, "b")

    leak = ("memory_growth", True), ("peak_rss", False)
    slow = incident("bbbbbbbb", "open", ("step_time", True), ("peak_rss", False))
    also = incident("cccccccc", "open", ("memory_growth", True))
    sent = {("aaaaaaaa", "opened"), ("bbbbbbbb", "opened"), ("cccccccc", "opened")}
    (news,) = unsent([incident("aaaaaaaa", "recovered", *leak), slow], sent)
    assert news.others == ()
    (news,) = unsent([incident("aaaaaaaa", "recovered", *leak), slow, also], sent)
    assert news.others == ("cccccccc",)


def test_the_title_tells_what_two_incidents_have_in_common_once() -> None:
    metric = IncidentMetric("tiny", "fit", "val_loss", 1, 2, 1, 1, 1)
    every = [
        Incident(name, "metric", "recovered", (metric,), ("b",), "b", 0.99, "b")
        for name in ("aaaaaaaa", "bbbbbbbb")
    ]
    title, text = message([News("recovered", each) for each in every], {})
    assert title == "fit val_loss is good again"
    assert text.count("fit val_loss is good again") == 2


@with_verbs("plot")
def test_each_piece_of_news_is_sent_once(tmp_path: Path, inbox: Inbox) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5, 1.5, 1.0])
    configure(f"json://127.0.0.1:{inbox.port}/")
    project.run("run", f"{shas[0]}..{shas[2]}")
    project.run("check", shas[2])
    assert inbox.take() == []

    assert project.run("check", shas[4]).status == 1
    (post,) = inbox.posts
    assert "fit val_loss is worse: +3" in post["message"]
    assert f"{shas[4][:10]} level 1.5, number 4 (Ada)" in post["message"]
    assert inbox.take() == [WORSE]
    project.run("check", shas[4])
    assert inbox.take() == []

    project.run("bisect", f"{shas[2]}..{shas[4]}", "--metric", "val_loss")
    project.run("check", shas[4])
    (post,) = inbox.posts
    assert f": {shas[3][:10]} level 1.5, number 3 (Ada)" in post["message"]
    (picture,) = post["attachments"]
    assert picture["mimetype"] == "image/png"
    assert inbox.take() == ["first bad commit of fit val_loss"]

    project.run("check", shas[5])
    assert inbox.take() == ["fit val_loss is good again"]
    project.run("check", shas[5])
    assert inbox.take() == []


@pytest.mark.matrix
def test_two_commands_at_once_send_one_alert(tmp_path: Path, inbox: Inbox) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5])
    project.run("run", f"{shas[0]}..{shas[2]}")
    assert project.run("check", shas[3]).status == 1
    configure(f"json://127.0.0.1:{inbox.port}/")
    words = [sys.executable, "-m", "celedger", "check", shas[3], "--budget", "0"]
    every = [subprocess.Popen(words, cwd=project.root, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [each.wait() for each in every] == [1] * 2
    assert inbox.take() == [WORSE]


@with_verbs("plot")
def test_mails_have_the_picture_and_come_once_each(tmp_path: Path, mailbox: Mailbox) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5])
    configure(f"mailto://127.0.0.1:{mailbox.port}/?from=lab@example.org&to=ada@example.org")
    project.run("run", f"{shas[0]}..{shas[2]}")
    mailbox.full = True
    done = project.run("check", shas[3])
    assert (done.status, "an alert to mailto:// was not sent" in done.err) == (1, True), done.err
    mailbox.full = False
    assert project.run("check", shas[3]).status == 1
    assert mailbox.take() == [WORSE]

    project.run("bisect", f"{shas[2]}..{shas[3]}", "--metric", "val_loss")
    project.run("check", shas[3])
    (mail,) = mailbox.mails
    assert mail["To"] == "ada@example.org"
    text = mail.get_body()
    assert text is not None
    assert f": {shas[3][:10]} level 1.5, number 3 (Ada)" in text.get_content()
    (picture,) = mail.iter_attachments()
    assert picture.get_content_type() == "image/png"
    assert mailbox.take() == ["first bad commit of fit val_loss"]
    project.run("check", shas[3])
    assert mailbox.take() == []


def test_an_alert_that_fails_is_tried_again_and_changes_no_answer(
    tmp_path: Path, inbox: Inbox
) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5])
    project.run("run", f"{shas[0]}..{shas[2]}")
    secret = f"json://user:secret@127.0.0.1:{inbox.port}/"
    configure(secret, "nonsense://x")
    inbox.status = 500
    done = project.run("check", "HEAD")
    assert (done.status, "Traceback" in done.err, "secret" in done.err) == (1, False, False)
    assert "an alert to json:// was not sent" in done.err
    assert "an alert to nonsense:// was not sent: apprise does not understand" in done.err
    inbox.status = 200
    project.run("check", "HEAD")
    assert inbox.take() == [WORSE]


def test_the_worker_sends_what_it_opened_and_named_in_one_alert(crew: Crew, inbox: Inbox) -> None:
    configure(f"json://127.0.0.1:{inbox.port}/")
    project = crew.project
    shas = project.history([1.0, 1.0, 1.0, 1.5, 1.5])
    project.run("run", f"{shas[0]}..{shas[2]}")
    project.run("check", shas[2])
    crew.enqueue(shas[4])

    def configured(place: Repository) -> Config:
        return config.load(place.root, dict(os.environ), bisect_on_regression=True)

    crew.configure = configured  # type: ignore[method-assign]
    assert crew.worker(attended=True).drain() == 1
    (post,) = inbox.posts
    assert f": {shas[3][:10]} level 1.5, number 3 (Ada)" in post["message"]
    assert len(inbox.take()) == 1


def test_a_repository_cannot_send_alerts(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    project.history([1.0])
    (project.root / "celedger.toml").write_text('notify = ["json://attacker.example/"]\n')
    done = project.run("check")
    assert (done.status, "your own configuration" in done.err) == (129, True), done.err


def test_a_git_bisect_sends_nothing(tmp_path: Path, inbox: Inbox) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5])
    configure(f"json://127.0.0.1:{inbox.port}/")
    project.run("run", f"{shas[0]}..{shas[2]}")
    git(project.root, "bisect", "start", shas[3], shas[0])
    assert project.run("check", shas[3]).status == 1
    assert inbox.take() == []
