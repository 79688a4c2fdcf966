"""What the reading verbs and `check` claim, no more and no less, through the real program."""

from __future__ import annotations

import json
import shlex

from conftest import Project


def typed(project: Project, line: str) -> tuple[int, str]:
    """Type a command as it was printed."""
    program, *words = shlex.split(line)
    assert program == "celedger"
    done = project.run(*words)
    return done.status, done.out + done.err


def test_drift_over_gaps_names_the_range_and_its_command_finds_the_commit(
    project: Project,
) -> None:
    shas = project.history([1.0] * 8 + [1.4] * 8)
    for sha in shas[::5]:
        project.run("run", sha)
    done = project.run("drift", env={"COLUMNS": "80"})
    assert done.status == 0, done.err
    assert f"between {shas[5][:8]} and {shas[10][:8]}, 5 commits, 4 not measured" in done.out
    assert shas[7][:8] not in done.out
    (command,) = [line for line in done.out.splitlines() if "celedger bisect" in line]
    assert command.split()[2] == f"{shas[5][:12]}..{shas[10][:12]}"
    (course,) = [
        c
        for c in json.loads(project.run("drift", "--json").out)["courses"]
        if c["metric"] == "val_loss"
    ]
    assert course["steps"][0]["among"] == shas[6:11]
    status, text = typed(project, command)
    assert status == 0, text
    assert f"first bad commit of fit val_loss: {shas[8]}" in text
    assert shas[8][:8] in project.run("drift", env={"COLUMNS": "200"}).out
