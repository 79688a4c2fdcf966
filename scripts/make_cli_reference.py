"""Writes docs/cli.md and the man page docs/celedger.1 from the program's own `--help`: `make docs`.
A test compares them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from celedger.cli import app

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEAD = """\
# The command line

Made by `make docs` from `celedger --help`. stdout is the answer; progress, warnings and errors go
to stderr. Every reading verb has `--json`, whose documents carry a `schema` number. There, a number
that is not finite is `null`, and the document's `not_finite` names it by JSON Pointer:
`{"/tasks/0/metrics/1/delta": "nan"}` (or `inf`, `-inf`). [JSON](json.md) has the rows of the state.

## Exit statuses

| status | meaning |
|---|---|
| 0 | good: no drift, or the commit was named |
| 1 | the question was answered "bad": something is worse, or failed |
| 125 | cannot be judged: untestable, killed, undecided, too noisy, first; nothing allowed |
| 128 | celedger failed |
| 129 | the command line, configuration or suite is invalid |
| 130 | interrupted; what was measured is kept |
| 141 | stdout was closed |

So `git bisect run celedger check` is right, and a fault of celedger's own aborts it instead of
blaming a commit. During a `git bisect` settings and suites are those of the commit where it
started, with your changes and untracked files: commits older than the suite are judged by it too.

## Settings

`celedger.toml`, or `[tool.celedger]` in pyproject.toml; and your own file,
`~/.config/celedger/config.toml` ([trust](trust.md#paths)). A flag outweighs a `CELEDGER_*` variable
(`CELEDGER_LEDGER`, `CELEDGER_SUITE`, …), which outweighs your own file, which outweighs the
repository's.

| key | meaning | default |
|---|---|---|
| `suite` | what is trained when no suite is named | the only suite in `suites/` |
| `suites` | the folder of suites | `suites` |
| `ledger` | the SQLite file | `ledger.db` |
| `device` | `auto`, `cpu` or `cuda:N` | `auto` |
| `hook_suite` | what a merge trains | `suite` |
| `bisect_on_regression` | the worker bisects what got worse (`init` switches it on) | `false` |
| `bisect_budget` | trials that those bisects may run in one job | `50` |
| `cache_limit` | what kept builds and virtual environments may take on the disk | `20GB` |

These stand in your own file alone:

| key | meaning | default |
|---|---|---|
| `max_reruns` | extra trials of a job of `check` or the worker, over all metrics; 0: none | `6` |
| `notify` | addresses of [alerts](how-to.md#set-it-up) | none |
| `report` | the [page](report.md) that the worker writes anew after each job | none |
| `sandbox` | limits [where trainings write](trust.md#the-sandbox) | `false` |
| `workers` | trials that run at once | one, or one a visible GPU |
| `engine`, `engine_address` | `local`, or where else [trials run](workers.md) | `local` |
"""


def words_of_verbs() -> Iterator[list[str]]:
    """Yield the words of every verb that `--help` lists, and of the verbs within one."""
    for name in app.names():
        command = app.command(name)
        within = getattr(command, "commands", None)
        yield from [[name, each] for each in within] if within else [[name]]


def help_of(words: list[str]) -> str:
    """The help text, 80 columns wide, whatever the terminal."""
    env = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "celedger", *words, "--help"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()).replace(
        "python -m celedger", "celedger"
    )


def files() -> dict[Path, str]:
    """Return both files and their text."""
    page = [HEAD]
    about = "catches training regressions and bisects them to the first bad commit"
    man = [f'.TH CELEDGER 1 "" "" "User Commands"\n.SH NAME\nceledger \\- {about}']
    for words in ([], *words_of_verbs()):
        name = " ".join(["celedger", *words])
        text = help_of(words)
        page += [f"## {name}\n", f"```text\n{text}\n```\n"]
        escaped = re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e"), flags=re.MULTILINE)
        man.append(f".SH {name.upper()}\n.nf\n{escaped.replace('-', chr(92) + '-')}\n.fi")
    return {DOCS / "cli.md": "\n".join(page), DOCS / "celedger.1": "\n".join([*man, ""])}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
