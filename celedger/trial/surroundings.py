"""What surrounds a trial's process: its environment variables, and the copy of the child side
that any interpreter can import. Nothing of the user's working tree may leak in here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import celedger
from celedger.errors import MachineError
from celedger.model import Task

_PACKAGE = Path(celedger.__file__).parent
# A user's own settings of these would bring code, or flags, that no commit contains.
_DROPPED = ("PYTHON", "CELEDGER_", "COVERAGE_", "PYTEST_", "OLDPWD")
# One thread count for every library that reads one: OpenMP, MKL, OpenBLAS, Accelerate, numexpr.
_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS",
)  # fmt: skip
# And what else is the same whatever the user has there.
_GIVEN = frozenset({
    *_THREADS, "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
})  # fmt: skip
# What says where and how somebody sits before the machine; no training goes by it.
_SESSION = re.compile(
    r"_|\w*(?:SESSION|_TTY$|_PID$|AUTH_SOCK)\w*|PWD|SHLVL|TERM(?:INAL)?(?:_.*)?|COLORTERM|COLUMNS|LINES|LS_COLORS|PS[0-4]|PROMPT.*"
    r"|DISPLAY|WAYLAND_.*|XAUTHORITY|WINDOWID|XDG_(?:SESSION|SEAT|VTNR|RUNTIME|CURRENT|MENU).*"
    r"|DBUS_.*|DESKTOP_.*|SESSION_MANAGER|GNOME_.*|GTK_.*|GIO_.*|KDE_.*|QT_.*|GPG_.*|SSH_.*"
    r"|TMUX.*|STY|WINDOW|ZELLIJ.*|KITTY_.*|ALACRITTY_.*|WEZTERM_.*|ITERM_.*|VTE_.*|KONSOLE_.*|WT_.*"
    r"|VSCODE_.*|EDITOR|VISUAL|PAGER|LESS.*|MAIL|MANPATH|INFOPATH|HIST.*|LC_TERMINAL.*|GIT(?:HEAD)?_.*"
    r"|WSL.*|KRB5CCNAME|SUDO_.*|N?VIM.*|INSIDE_EMACS|STARSHIP_.*|P9K_.*|DIRENV_.*|FZF_.*|JPY_.*"
    r"|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_.*|MANAGERPID|MEMORY_PRESSURE_.*|CRON_.*"
    r"|GITHUB_.*|RUNNER_.*|CI_.*|BUILDKITE_.*|CIRCLE_.*"
)


def _inherited(base: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in base.items() if not k.startswith(_DROPPED)}


def fingerprint(base: Mapping[str, str]) -> str:
    """Tells the variables that trials inherit of a user from others (16 hex digits)."""
    own = _inherited(base).items()
    kept = {k: v for k, v in own if not _SESSION.fullmatch(k) and k not in _GIVEN}
    # A hook is run with the folder of git's own programmes in front.
    folders = kept.pop("PATH", "").split(os.pathsep)
    path = [folder for folder in folders if Path(folder).name != "git-core"]
    text = repr((path, sorted(kept.items())))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def variables(
    base: Mapping[str, str],
    task: Task,
    *,
    tree: Path,
    child: Path,
    visible_devices: str,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """The environment of a trial or build. `base` is already without git's variables."""
    roots = [str(tree / root) for root in task.pythonpath]
    # The tree lies with other copies of celedger's own, such as the suite's, in a folder of the
    # user's .git. A ceiling stops a search only below it, so each has one above it.
    ceilings = list(tree.parents)[:3]
    return {
        **_inherited(base),
        # The folder that the shell of the user was in is the user's work tree.
        "PWD": str(tree),
        "PYTHONPATH": os.pathsep.join([*roots, str(child)]),
        # No byte-code is written, and a checkout is cleaned before it moves: a .pyc of a
        # commit left within the same second, with the same size, cannot exist.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        # Two fixed workspaces make cuBLAS deterministic (CUDA toolkit, cuBLAS, "Results
        # reproducibility").
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": visible_devices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # `git status` of a trial need not write its index: the next move is cheaper.
        "GIT_OPTIONAL_LOCKS": "0",
        # Git commands of a trial that lost its own .git, or that run in one of those copies, must
        # not find the user's repository.
        "GIT_CEILING_DIRECTORIES": os.pathsep.join(map(str, ceilings)),
        **dict.fromkeys(_THREADS, str(task.threads)),
        **extra,
    }


# What nearly every training imports of it.
_OFTEN = (
    "sitecustomize.py", "celedger/__init__.py", "celedger/child/__init__.py",
    "celedger/child/torch.py",
)  # fmt: skip


def child_copy(cache: Path) -> Path:
    """A folder, to be put on PYTHONPATH, that holds `celedger.child`, a `sitecustomize` (its
    `finder.py`) and nothing else of celedger."""
    home = child_folder(cache)
    if not home.exists():
        try:
            _copy(_child_files(), _PACKAGE, home)
        except OSError as error:
            raise MachineError(f"{cache} cannot be written: {error.strerror}") from error
    return home


def child_folder(cache: Path) -> Path:
    """Where that copy is. It is named by its content, so an upgrade of celedger makes another."""
    content = hashlib.sha256()
    for file in _child_files():
        content.update(str(file.relative_to(_PACKAGE)).encode() + b"\0" + file.read_bytes())
    return cache / content.hexdigest()[:16]


def _child_files() -> list[Path]:
    return [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "child").rglob("*.py"))]


def _copy(files: Iterable[Path], package: Path, home: Path) -> None:
    import py_compile  # it imports much, and is needed once

    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".draft-", dir=home.parent, ignore_cleanup_errors=True
    ) as draft:
        new = Path(draft) / "new"
        for file in files:
            target = new / "celedger" / file.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        shutil.copyfile(package / "child" / "finder.py", new / "sitecustomize.py")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        for name in _OFTEN:  # no trial writes byte-code itself
            py_compile.compile(str(new / name), invalidation_mode=mode, quiet=2)
        try:
            new.rename(home)
        except OSError:
            if not home.is_dir():  # else somebody was faster, with the same content
                raise
