"""The list of verbs: celedger's own, and those that installed packages add as entry points
`celedger.verbs`, each a function as typer takes it. The latter are looked for only where a verb is
none of celedger's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from keyword import iskeyword
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from celedger.base import plugins
from celedger.base.errors import MachineError, UsageError
from celedger.cli.session import Options

# The verbs in the order of `--help`, and the modules that have them.
CORE = {
    "init": "init", "allow": "service", "run": "run", "log": "reading", "show": "reading",
    "diff": "reading", "drift": "reading", "check": "check", "bisect": "bisect", "noise": "run",
    "table": "reading", "status": "status", "queue": "service", "worker": "service",
    "stop": "service", "demo": "demo", "doctor": "doctor", "baseline": "check", "hook": "service",
    "merge": "merge", "import": "merge",
}  # fmt: skip


def is_core(name: str) -> bool:
    return name in CORE


def names() -> list[str]:
    """Return all verbs."""
    return list(dict.fromkeys([*CORE, *plugins.installed(plugins.VERBS)]))


def _function(name: str) -> Any:
    """Return what a verb is made of: a function, or a group of verbs. Raises MachineError."""
    if is_core(name):
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
