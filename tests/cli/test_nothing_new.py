"""Where nothing came since the last time, `check` derives nothing anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted import scripted

from celedger.judge.incident import MetricStanding, State


@pytest.mark.parametrize("commit", ["HEAD", "HEAD~1"])
def test_check_without_trials_answers_from_the_state_that_is_kept(
    tmp_path: Path, commit: str
) -> None:
    project = scripted(tmp_path / "project")
    project.history([1.0, 1.0])
    assert "standings" in json.loads(project.run("check", commit, "--json").out)
    before = json.loads(project.run("check", commit, "--json").out)  # nothing is in doubt any more
    ran = len(project.executor.ran)
    folder = project.root / ".git" / "celedger" / "state"
    for path in folder.glob("*.json"):
        kept = json.loads(path.read_text())
        if kept:
            standings = kept["state"][State._fields.index("standings")]
            standings[0][MetricStanding._fields.index("level")] = 4242.0
            path.write_text(json.dumps(kept))
    after = json.loads(project.run("check", commit, "--json").out)
    assert 4242.0 in [each["level"] for each in after["standings"]]
    assert len(after["standings"]) == len(before["standings"])
    assert len(project.executor.ran) == ran

    project.history([1.0])
    anew = json.loads(project.run("check", commit, "--json").out)
    assert 4242.0 not in [each["level"] for each in anew["standings"]]
