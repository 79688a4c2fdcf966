"""Install, remove and describe the git hooks. The scripts are in `hooks/`. A hook that was there
before is renamed NAME.legacy, runs first, and is restored on removal.

Knows that a hook manager may rename our hook NAME.legacy in its turn, and that the user owns the
folder named by `core.hooksPath`. Knows nothing of the queue."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from celedger.base import files, shipped
from celedger.base.errors import RepositoryError, explained
from celedger.base.text import plain
from celedger.repo import Repository

NAMES = ("post-merge", "post-rewrite")
QUICK = ("pre-push", "pre-commit")  # are installed where they are asked for
# A script serves the hooks of a group: it looks at the name it runs under.
_SCRIPTS = {name: group[0] for group in (NAMES, QUICK) for name in group}
SIGNATURE = "# celedger-hook "
_BLOCKS = b"\nblock=yes\n"
_MODE = 0o700


class HookState(StrEnum):
    ABSENT = "not installed"
    CURRENT = "installed"
    OUTDATED = "installed, by another version or interpreter"
    FOREIGN = "another hook is there"
    UNCALLED = "does not call celedger"  # a hook in the folder of core.hooksPath
    CALLED = "calls celedger"


@dataclass(frozen=True, slots=True)
class HookStatus:
    name: str
    path: Path
    state: HookState
    chains: bool  # a foreign hook runs first


def script(python: str, name: str = NAMES[0], *, block: bool = False) -> bytes:
    """Return a hook as it is installed, for the interpreter that holds celedger."""
    path = shipped("hooks") / _SCRIPTS[name]
    text = path.read_text(encoding="utf-8").replace("@BLOCK@", "yes" if block else "no")
    return os.fsencode(text.replace("@PYTHON@", shlex.quote(python)))


def elsewhere(repository: Repository) -> Path | None:
    """Return the folder that git reads this repository's hooks from, where that is not git's
    own."""
    configured = repository.configured_hooks_path()
    if configured is None or configured.resolve() == repository.hooks_dir().resolve():
        return None
    return configured


def status(repository: Repository, python: str) -> list[HookStatus]:
    """Return where each hook stands, in the folder that git reads them from."""
    configured = elsewhere(repository)
    with _explained(configured or repository.hooks_dir()):
        if configured is None:
            folder = repository.hooks_dir()
            return [_status(folder, name, python) for name in _asked_for(folder, ())]
        statuses = []
        for name in _asked_for(repository.state_dir / "hooks", ()):
            script = repository.state_dir / "hooks" / name
            calls = script.is_file() and f"celedger/hooks/{name}" in (
                _read(configured / name) or ""
            )
            state = HookState.CALLED if calls else HookState.UNCALLED
            statuses.append(HookStatus(name, configured / name, state, False))
        return statuses


def _status(folder: Path, name: str, python: str) -> HookStatus:
    path, legacy = _paths(folder, name)
    ours = _ours(folder, name)
    if ours is not None:
        text = ours.read_bytes()
        current = text == script(python, name, block=_BLOCKS in text)
        state = HookState.CURRENT if current else HookState.OUTDATED
    else:
        state = HookState.ABSENT if _read(path) is None else HookState.FOREIGN
    return HookStatus(name, path, state, ours == path and os.path.lexists(legacy))


def _asked_for(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the hooks that belong in a folder: those that are always there, that are asked for by
    `names`, and that are there already."""
    return [*NAMES, *(n for n in QUICK if n in names or _ours(folder, n) is not None)]


def install(
    repository: Repository, python: str, names: Sequence[str] = (), *, block: bool = False
) -> list[tuple[Path, str]]:
    """Install or renew the hooks. Where `core.hooksPath` is set, the folder is not ours to write
    in: return those of its hooks and the line to add to each. `names` are those of `QUICK` to
    install, too; they `block` or not, and those that are there do as before.

    Raises RepositoryError where a foreign hook and a kept one are both there, MachineError where
    the folder cannot be written.
    """
    configured = elsewhere(repository)
    folder = repository.hooks_dir() if configured is None else repository.state_dir / "hooks"
    with _explained(folder):
        (repository.state_dir / "queue").mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        if configured is not None:
            every = _asked_for(folder, names)
            for name in every:
                text = _script_for(folder, name, python, names, block=block)
                files.replace(folder / name, text, _MODE)
            # Such a folder may serve many repositories: the line does nothing in the others.
            line = (
                'ours="$(git rev-parse --git-common-dir)/celedger/hooks/{}"; '
                'test ! -x "$ours" || "$ours" "$@"'
            )
            return [(configured / name, line.format(name)) for name in every]
        every = _asked_for(folder, names)
        for name in every:
            path, legacy = _paths(folder, name)
            if _ours(folder, name) is None and _read(path) is not None and os.path.lexists(legacy):
                raise RepositoryError(
                    f"both {path} and {legacy} are there and neither is celedger's",
                    f"merge them by hand into {path}, remove {legacy}, and try again",
                )
        for name in every:
            path, legacy = _paths(folder, name)
            ours = _ours(folder, name)
            text = _script_for(folder, name, python, names, block=block)
            if ours is None and _read(path) is not None:
                path.rename(legacy)
            files.replace(ours or path, text, _MODE)
    return []


def _script_for(
    folder: Path, name: str, python: str, names: Sequence[str], *, block: bool
) -> bytes:
    ours = _ours(folder, name)
    as_before = ours is not None and _BLOCKS in ours.read_bytes()
    return script(python, name, block=block if name in names else as_before)


def uninstall(repository: Repository) -> list[Path]:
    """Remove our hooks, put back what they replaced; the paths that were touched."""
    touched = []
    for folder in (repository.hooks_dir(), repository.state_dir / "hooks"):
        with _explained(folder):
            for name in (*NAMES, *QUICK):
                path, legacy = _paths(folder, name)
                script = _ours(folder, name)
                if script is None:
                    continue
                script.unlink()
                if script == path and os.path.lexists(legacy):
                    legacy.rename(path)
                touched.append(script)
    return touched


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / name, folder / f"{name}.legacy"


def _ours(folder: Path, name: str) -> Path | None:
    """Our script: under its own name, or where a hook manager that came later has kept it."""
    return next((p for p in _paths(folder, name) if SIGNATURE in (_read(p) or "")), None)


def _read(path: Path) -> str | None:
    """Return the text of a hook, "" of a link to nowhere, None where there is nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return "" if path.is_symlink() else None


def _explained(folder: Path) -> AbstractContextManager[None]:
    cause = f"the hooks in {folder} cannot be read or written"
    return explained(cause, "correct that and try again")


# --- the line that the next merge prints, in a small file. One that cannot be written costs a line


def leave_line(repository: Repository, text: str) -> None:
    """Leave a line for the post-merge hook, which prints it once."""
    with suppress(OSError):
        files.replace(_file(repository), f"celedger: {plain(text)}\n".encode())


def take_line(repository: Repository) -> str:
    """Return the line that waits for the next merge, and remove it; "" where none does."""
    path = _file(repository)
    with suppress(OSError):
        text = path.read_text(encoding="utf-8").strip()
        path.unlink()
        return text
    return ""


def _file(repository: Repository) -> Path:
    return repository.state_dir / "last-job"
