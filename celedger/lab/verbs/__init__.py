"""The verbs of the lab, and what several of them share: the sides of a diagnosis, and the command
line that repeats one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from celedger.cli import synthetic
from celedger.cli.session import Sides
from celedger.service.measure import Session, load_suite

Seed = Annotated[
    int | None,
    typer.Option(min=0, max=2**32 - 1, metavar="N", help="The seed [default: the task's first]."),
]


@contextmanager
def apart_for(session: Session, words: Sequence[str]) -> Iterator[Sides]:
    """Yield these revisions (or a range) as the sides of a diagnosis: by their hashes, and in a
    session `apart`, where one is synthetic. Unattended, both use the suite as it is."""
    from celedger import suite as suites
    from celedger.suite.loading import hash_of

    repository = session.repository
    if len(words) == 1 and ".." in words[0]:
        words = words[0].split("..", 1)
    revisions = [synthetic.find(repository, word) for word in words]
    if not any(revisions):
        yield Sides(session, tuple(words))
        return
    with synthetic.apart(session) as own_session:
        names, files = [], {}
        for word, revision in zip(words, revisions, strict=True):
            commit = revision.commit if revision else repository.resolve(word or "HEAD")
            names.append(commit.sha)
            if not session.gate.attended:
                continue  # a person allowed the suite as it is now, and no other
            with synthetic.suite_at(own_session, load_suite(own_session), commit, word) as suite:
                copies = own_session.repository.state_dir / "suites"
                files[commit.sha] = suites.snapshot(suite.folder, hash_of(suite.files), copies)
        yield Sides(own_session, tuple(names), files)


_OF_ONE_ANSWER = ("json", "output", "dump")  # say nothing of what is answered


def command_line(context: typer.Context, **values: str | list[str]) -> str:
    """Return the verb and its arguments as they were typed, with other values for some of them."""
    words = [str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        was_typed = source is not None and source.name == "COMMANDLINE"
        if name in _OF_ONE_ANSWER or (name not in values and not was_typed):
            continue
        value = values.get(name, context.params[name])
        for word in value if isinstance(value, (list, tuple)) else [value]:
            words += [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
            words += [] if word is True else [str(word)]
    return shlex.join(words)
