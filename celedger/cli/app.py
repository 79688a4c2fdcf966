"""The program: its verbs, and the one place where an exception becomes an exit status.

Statuses are those of docs/cli.md, chosen for `git bisect run`: celedger's own fault aborts
the search (128 and above) instead of blaming a commit.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from celedger.base import VERSION
from celedger.base.errors import CeledgerError, RepositoryError, Status
from celedger.cli import unix, verbs
from celedger.cli.session import Options
from celedger.cli.unix import complain

_TOO_MUCH = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
_OF_THE_PROGRAM = tuple(f"No such option: {option}" for option in ("--ledger", "-C", "--version"))
_COMPLETE = "_CELEDGER_COMPLETE"  # set by the completion of a shell


def _version(value: bool) -> None:
    if value:
        print(f"celedger {VERSION}")
        raise typer.Exit


def _options(
    context: typer.Context,
    repository: Annotated[
        Path, typer.Option("-C", metavar="DIR", help="Work on the repository at DIR.")
    ] = Path(),
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The ledger [default: ledger.db at the root]."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train a suite at a commit, keep the numbers in SQLite, bisect what got worse.

    Start with `celedger init`, then `celedger run HEAD`.
    """
    try:
        repository.absolute()
    except FileNotFoundError as error:
        raise RepositoryError(
            "the current folder was deleted", "change to an existing folder, or name one: -C"
        ) from error
    context.obj = Options(repository, ledger)


def _program(verb: str, *, complete: bool = False) -> verbs.Verbs:
    """Build the command line of one verb, or of all where celedger's own are none of that name.
    What installs the completion of a shell, and answers it, is an option of the program and not of
    a verb."""
    app = typer.Typer(
        name="celedger",
        cls=verbs.Verbs,
        no_args_is_help=True,
        add_completion=complete or not verbs.is_core(verb),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_options,
    )
    program = typer.main.get_command(app)
    assert isinstance(program, verbs.Verbs)
    program.offered = [verb] if verbs.is_core(verb) else verbs.names()
    return program


def run(arguments: Sequence[str]) -> int:
    """Run one command line to its exit status. Prints; never raises."""
    if _COMPLETE in os.environ:
        return _complete()
    try:
        return unix.finish(_guarded(arguments))
    except BrokenPipeError:
        return unix.broken_pipe()


def _complete() -> int:
    """Answer a shell that asks how the command line may go on."""
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    try:
        _program(words[1] if len(words) > 1 else "", complete=True).main(
            [], prog_name="celedger", complete_var=_COMPLETE
        )
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Status.FAILED
    return Status.GOOD


def _guarded(arguments: Sequence[str]) -> int:
    context = None
    try:
        # Not `app(...)`: typer ends the process itself on a closed pipe and on Ctrl-C.
        program = _program(arguments[0] if arguments else "")
        with program.make_context("celedger", list(arguments)) as context:
            return int(program.invoke(context) or 0)
    except typer.Exit as done:
        return done.exit_code
    except SystemExit as done:  # the options that install completion end the program
        return done.code if isinstance(done.code, int) else Status.FAILED
    except CeledgerError as error:
        options = context.obj if context is not None else None
        complain(options.retyped(str(error)) if isinstance(options, Options) else str(error))
        return error.status
    except KeyboardInterrupt:
        complain("interrupted; what was measured is in the ledger, the same command goes on")
        return Status.INTERRUPTED
    except BrokenPipeError:
        raise
    except typer.Abort:
        return Status.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and unix.finish(Status.GOOD):
            return Status.FAILED
        message = getattr(error, "format_message", None)
        if message is None:
            return _crashed(error)
        # What typer (or its click) says of a wrong command line.
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message(), file=sys.stderr)
        else:
            complain(_usage(message(), getattr(error, "ctx", None)))
        return Status.USAGE


def _usage(words: str, verb: typer.Context | None) -> str:
    """Return what is wrong with a command line, and what to read, in words of ours."""
    words = re.sub(r"a valid int(eger)?( range)?\b", "a whole number", words)
    words = re.sub(r"a valid float( range)?\b", "a number", words)
    if verb is None:
        return f"{words} (see `celedger --help`)"
    usage = " ".join(verb.get_usage().split()).removeprefix("Usage: ")
    if re.search(r"\w\.\.\w", usage):
        words = _TOO_MUCH.sub(r"\1 is too much here; a range is one word, A..B", words)
    if words.startswith("Missing argument"):
        words = f"{words.rstrip('.')}: {usage}"
    if verb.parent and words.startswith(_OF_THE_PROGRAM):
        option = words.rpartition(" ")[2]
        words = f"{option} stands before the verb: celedger {option} … {verb.info_name}"
    return f"{words} (see `{verb.command_path} --help`)"


def _crashed(error: Exception) -> int:
    """Report an unexpected error: one line for the person, the rest in a file to send us."""
    import tempfile
    import traceback

    text = f"internal error: {type(error).__name__}: {error}"
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="celedger-crash-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file,
    ):  # where there is room for it
        print(f"celedger {VERSION}, Python {sys.version}\n{sys.argv!r}\n", file=file)
        traceback.print_exception(error, file=file)
        text += f" (details in {file.name})"
    complain(text)
    return Status.FAILED
