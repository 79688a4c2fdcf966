"""Trainings that misbehave, each a task of one suite, all in one run of the real program."""

from __future__ import annotations

import math

import pytest
from conftest import Done, Project, make_project, rows

pytestmark = pytest.mark.xdist_group("bad-trainings")  # what they share is trained once

# What each training does after `log` is imported; then what the ledger says of it:
# outcome, epochs, a part of the message, marks.
TRAININGS = {
    "rubbish": (('os.write(fd, b"hi\\n\\xff\\0\\n{\\"a\\":\\n[1]\\n" + b"{" * 3_000_000 + b"\\n");'
                "log(val_loss=1)"), ("ok", 1, "", "rubbish")),
    "stdout_flood": ('[os.write(1, b"x" * 100_000) for _ in range(3000)]; log(val_loss=1)',
                     ("ok", 1, "", "")),
    "channel_flood": (('log(val_loss=1); [os.write(fd, b"x" * 99_999 + b"\\n") for _ in '
                      "range(3000)]"), ("failed", 1, "reported more than 256 MiB", "rubbish")),
    "not_finite": ('log(val_loss=1); log(val_loss=float("nan")); log(val_loss=float("inf"))',
                   ("ok", 3, "", "")),
    "disorder": ("log(epoch=5, val_loss=1); log(epoch=2, val_loss=2); log(epoch=2, val_loss=3)",
                 ("ok", 2, "", "repeated")),
    "forks": ("log(val_loss=1); os.fork() or (os.setsid(), os.fork() or time.sleep(600))",
              ("ok", 1, "", "")),
    "hangs": ("log(val_loss=1); time.sleep(600)", ("timeout", 1, "ran longer than 1 s", "")),
    "silent": ("log(val_loss=1); time.sleep(600)", ("timeout", 1, "gave no sign for 1 s", "")),
    "endless": ("[log(epoch=i, val_loss=1) for i in itertools.count()]",
                ("timeout", None, "ran longer than 1 s", "")),
    "hungry": (("log(val_loss=1); hold = []\nwhile True: hold.append(bytearray(10**7)); "
               "time.sleep(0.01)"), ("oom", 1, "its limit is 150 MB", "")),
    "mute": ("pass", ("missing", 0, "ended without reporting val_loss", "")),
    "colourful": ('print("\\x1b[31mboom\\x1b[0m\\x1b]0;title\\x07!"); sys.exit(3)',
                  ("failed", 0, "exit status 3: boom!", "")),
    "killed_below_a_shell": ("sys.exit(137)", ("killed", 0, "exit status 137", "")),
    "no_command": ("", ("failed", 0, "no command 'no-such-command' on PATH", "")),
}  # fmt: skip
SLOW = ("stdout_flood", "channel_flood", "forks", "silent", "endless", "hungry")
LIMITS = {
    "hangs": 'timeout = "1s"',
    "silent": 'silence = "1s"',
    "endless": 'timeout = "1s"',
    "hungry": 'memory = "150MB"',
}
PRELUDE = "import itertools, os, sys, time\nfd = int(os.environ['CELEDGER_FD'])\n"


def task(name: str) -> str:
    command = "no-such-command" if name == "no_command" else f"{{python}} {{suite}}/{name}.py"
    return f'[[task]]\nname = "{name}"\ncommand = "{command}"\n{LIMITS.get(name, "")}\n'


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, Done]:
    """Train what the selected tests are about."""
    folder = tmp_path_factory.mktemp("bad")
    quick = "not matrix" in str(request.config.getoption("markexpr"))
    chosen = [name for name in TRAININGS if not (quick and name in SLOW)]
    suite = '[metrics.val_loss]\ndirection = "lower"\n' + "".join(map(task, chosen))
    scripts = {
        f"{name}.py": f"{PRELUDE}from celedger.child import log\n{TRAININGS[name][0]}\n"
        for name in chosen
    }
    project = make_project(folder / "project", suite, scripts)
    project.history([1.0])
    return project, project.run("run", env={"CELEDGER_LOCK_DIR": str(folder / "locks")})


@pytest.mark.matrix
def test_the_run_ends_as_bad_and_no_fault_stops_the_others(ran: tuple[Project, Done]) -> None:
    project, done = ran
    assert done.status == 1, done.err
    assert "Traceback" not in done.err
    assert rows(project, "SELECT count(*) FROM outcomes") == [(len(TRAININGS),)]
    assert not list((project.root / ".celedger" / "journals").iterdir())


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.matrix if n in SLOW else []) for n in TRAININGS],
)
def test_the_outcome_says_what_it_did(ran: tuple[Project, Done], name: str) -> None:
    project, _ = ran
    (found,) = rows(
        project,
        "SELECT kind, epochs, message, marks FROM outcomes o JOIN trials t ON t.id = o.trial "
        "JOIN tasks k ON k.id = t.task WHERE k.name = ?",
        name,
    )
    kind, epochs, message, marks = TRAININGS[name][1]
    assert (found[0], found[3]) == (kind, marks)
    assert epochs is None or found[1] == epochs
    assert message in found[2]


@pytest.mark.matrix
def test_a_flood_leaves_no_large_file(ran: tuple[Project, Done]) -> None:
    project, _ = ran
    kept = [f.stat().st_size for f in (project.root / ".celedger").rglob("*") if f.is_file()]
    assert max(kept) <= 64 << 20


def test_values_that_are_not_finite_and_first_values_are_kept(ran: tuple[Project, Done]) -> None:
    project, _ = ran
    sql = (
        "SELECT epoch, value FROM epoch_metrics WHERE task = ? AND metric = 'val_loss' "
        "ORDER BY epoch"
    )
    assert rows(project, sql, "not_finite") == [(0, 1.0), (1, None), (2, math.inf)]
    assert rows(project, sql, "disorder") == [(2, 2.0), (5, 1.0)]
