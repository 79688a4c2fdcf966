"""The program: the list of verbs, and the one place where an exception becomes an exit status.

The verbs are celedger's own, and those that installed packages add as entry points
`celedger.verbs`, each a function as typer takes it. The latter are looked for only where a verb is
none of celedger's own. Statuses are those of docs/cli.md, chosen for `git bisect run`: celedger's
own fault aborts the search (128 and above) instead of blaming a commit.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from celedger.base import VERSION, plugins
from celedger.base.errors import CeledgerError, MachineError, RepositoryError, Status, UsageError
from celedger.cli import unix
from celedger.cli.session import Options
from celedger.cli.unix import complain

# The verbs in the order of `--help`, and the modules that have them.
CORE = {
    "init": "setup", "allow": "service", "run": "run", "log": "reading", "show": "reading",
    "diff": "reading", "drift": "reading", "check": "check", "bisect": "bisect", "noise": "run",
    "table": "reading", "status": "status", "queue": "service", "worker": "service",
    "stop": "service", "demo": "demo", "doctor": "setup", "baseline": "check", "hook": "service",
    "merge": "merge", "import": "merge",
}  # fmt: skip


def names() -> list[str]:
    """Return all verbs."""
    return list(dict.fromkeys([*CORE, *plugins.installed(plugins.VERBS)]))


def _function(name: str) -> Any:
    """Return what a verb is made of: a function, or a group of verbs. Raises MachineError."""
    if name in CORE:
        module = import_module(f"celedger.cli.{CORE[name]}")
        return getattr(module, f"{name}_" if iskeyword(name) else name)
    return plugins.installed(plugins.VERBS)[name].load()


def command(name: str) -> Any:
    """Return the command of a verb. Raises MachineError for one that cannot be loaded."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)  # else a single verb is the whole program
    function = _function(name)
    if isinstance(function, typer.Typer):
        app.add_typer(function, name=name)
    else:
        app.command(name)(function)
    return typer.main.get_group(app).commands[name]


def is_installed(name: str) -> bool:
    """Return True if an installed package has this verb."""
    return name in plugins.installed(plugins.VERBS)


def answer_if_installed(
    words: Sequence[str], options: Options, *, not_in: Collection[Path] = ()
) -> str:
    """Return the answer of a verb with its words; "" where no package has the verb."""
    if not is_installed(words[0]):
        return ""
    return answer_of(words[0], words[1:], options, not_in=not_in)[1]


def answer_of(
    name: str, words: Sequence[str], options: Options, *, not_in: Collection[Path] = ()
) -> tuple[int, str]:
    """Return the exit status and the answer of an installed package's verb, as if it was typed with
    these words. The verb may lie in none of the folders `not_in`. Raises CeledgerError."""
    if plugins.installed(plugins.VERBS)[name].lies_in(*not_in):
        raise UsageError(f"the verb `{name}` lies in this repository", "install it elsewhere")
    with (
        redirect_stdout(StringIO()) as answer,
        command(name).make_context(name, list(words), obj=options) as context,
    ):
        status = context.command.invoke(context)
    return int(status), answer.getvalue()


def drawer(options: Options, *, not_in: Collection[Path] = ()) -> Callable[..., str] | None:
    """Return what draws stored bisects, by their ids, and returns the file: the verb `plot`; None
    where it is not installed. It may raise CeledgerError."""

    def draw(*ids: str, output: Path | None = None) -> str:
        words = ["bisect", *ids, *(["--output", str(output)] if output else [])]
        with redirect_stderr(StringIO()):  # what is said of the ledger was said
            return answer_of("plot", words, options, not_in=not_in)[1].strip()

    return draw if is_installed("plot") else None


class Verbs(TyperGroup):
    """The program. A verb is imported, and its command made, when it is asked for."""

    offered: Sequence[str] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.offered]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands or cmd_name not in self.offered:
            return self.commands.get(cmd_name)
        return command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self.commands = {name: _listed(name) for name in self.offered}
        super().format_commands(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.offered:  # a word that is like it will be named
            self.commands = {name: _listed(name) for name in self.offered}
        return super().resolve_command(ctx, args)


def _listed(name: str) -> Any:
    """Return a command that has no more than a line of help: its parameters take time."""
    try:
        function = _function(name)
    except MachineError as error:
        return TyperCommand(name, short_help=error.cause)
    if isinstance(function, typer.Typer):
        return command(name)
    return TyperCommand(name, help=inspect.getdoc(function))


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


def _program(verb: str, *, complete: bool = False) -> Verbs:
    """Build the command line of one verb, or of all where celedger's own are none of that name.
    What installs the completion of a shell, and answers it, is an option of the program and not of
    a verb."""
    app = typer.Typer(
        name="celedger",
        cls=Verbs,
        no_args_is_help=True,
        add_completion=complete or verb not in CORE,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_options,
    )
    program = typer.main.get_command(app)
    assert isinstance(program, Verbs)
    program.offered = [verb] if verb in CORE else names()
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
        if isinstance(error, OSError):
            sys.stdout.write("\n")  # what exceeds the buffer is gone, and would not fail again
            if unix.finish(Status.GOOD):
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
        words = _TOO_MUCH.sub(r"\1 is unexpected here; a range is one word, A..B", words)
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
