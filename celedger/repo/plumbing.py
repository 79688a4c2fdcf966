"""One git command at a time: the environment it gets, and what becomes of its failure.

The only module that starts git, but for hunks.py, which asks GitPython. Knows how to call git, not
what to ask it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from celedger.base.errors import RepositoryError

# A hook inherits GIT_DIR, GIT_INDEX_FILE and more, which outweigh both cwd and `git -C`: any git
# command of ours, or of the code under test, would then act on the user's repository. What is
# kept says how to reach servers and where configuration is, never which repository is meant.
# The reasoning is pre-commit's (`no_git_env`).
_KEPT = frozenset({
    "GIT_EXEC_PATH", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL", "GIT_HTTP_PROXY_AUTHMETHOD",
    "GIT_TERMINAL_PROMPT", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
})  # fmt: skip
_KEPT_PREFIXES = ("GIT_SSH", "GIT_SSL_", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that tie git to one repository or work tree."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("GIT_") or name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }


def seen_beside(objects: Path) -> dict[str, str]:
    """Return the variable by which git sees a folder of objects beside a repository's own."""
    quoted = str(objects).replace("\\", r"\\").replace('"', r"\"")  # the path may have a colon
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}


class GitAnswer(NamedTuple):
    status: int
    out: bytes
    error: str

    @property
    def text(self) -> str:
        """stdout without its last newline; bytes that are no UTF-8 are replaced."""
        return self.out.removesuffix(b"\n").decode(errors="replace")

    @property
    def path(self) -> Path:
        """stdout as a file name, whatever its bytes."""
        return Path(os.fsdecode(self.out.removesuffix(b"\n")))

    @property
    def reason(self) -> str:
        """Return what git complained of, in one line."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        complaints = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        return complaints[0] if complaints else f"git ended with status {self.status}"


def ask(
    where: Path,
    *words: str,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    holding: int = -1,
) -> GitAnswer:
    """Run `git WORDS` in a folder and hand back what it said, failed or not. A lock on the
    descriptor `holding` is git's too: it lasts as long as git, should we be killed."""
    if not os.access(where, os.X_OK):  # Popen could not tell it from a git that is not there
        raise RepositoryError(
            f"git cannot be run in {where}: it does not exist, or access is denied"
        )
    git = None
    try:
        git = subprocess.Popen(
            ["git", "--no-optional-locks", *words],
            cwd=where,
            env={**scrubbed(os.environ), "LANGUAGE": "C", "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(holding,) if holding >= 0 else (),
        )
        out, complaint = git.communicate(stdin)
    except FileNotFoundError as error:
        raise RepositoryError("git is not installed, or not on PATH", "install git") from error
    except ValueError as error:  # an argument with a NUL byte in it
        return GitAnswer(128, b"", f"fatal: {error}")
    except OSError as error:
        raise RepositoryError(f"git cannot be run in {where}: {error.strerror}") from error
    except BaseException:
        if git is not None:
            _end(git.pid)
        raise
    return GitAnswer(git.returncode, out, complaint.decode(errors="surrogateescape"))


def _end(pid: int) -> None:
    """An interrupt leaves no git behind, nor what git runs: filters, ssh."""
    import psutil  # at no other time

    with suppress(psutil.Error):
        git = psutil.Process(pid)
        for process in (git, *git.children(recursive=True)):
            with suppress(psutil.Error):
                process.kill()


def tell(
    where: Path, *words: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
) -> GitAnswer:
    """Like `ask`, but a failure is a RepositoryError with git's own sentence."""
    answer = ask(where, *words, stdin=stdin, env=env)
    if answer.status != 0:
        verb = next((w for w in words if not w.startswith("-") and "=" not in w), "git")
        raise RepositoryError(f"git {verb} failed in {where}: {answer.reason}")
    return answer
