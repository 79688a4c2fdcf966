"""What one training could hand on to the next, beside the commit: files, variables."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from celedger.ledger import Ledger
from tests.conftest import SUITE, Project, make_project

pytestmark = pytest.mark.matrix

ONE_SEED = SUITE.replace("seeds = [0, 1]", "seeds = [0]")
LOG = "from celedger.child import log\n"

linux = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")


def values(project: Project) -> list[tuple[float, bool]]:
    """Of HEAD's trials the loss, and whether it was derived, the oldest first."""
    (task,) = json.loads(project.run("show", "HEAD", "--json").out)["tasks"]
    (metric,) = (m for m in task["metrics"] if m["metric"] == "val_loss")
    return [
        (value, bool(trial["derived"]))
        for value, trial in zip(metric["values"], task["trials"], strict=True)
    ]


@pytest.mark.parametrize("how", ["beside", "instead"])
def test_what_a_training_writes_beside_its_script_is_gone_at_the_next(
    tmp_path: Path, how: str
) -> None:
    script = LOG + (
        "from pathlib import Path\n"
        "from model import LEVEL\n"
        f"kept = Path(__file__).parent / {'cache' if how == 'beside' else 'shipped'!r}\n"
        "if not kept.exists() or not kept.read_text():\n"
        "    kept.write_text(str(LEVEL))\n"
        "log(epoch=0, val_loss=float(kept.read_text()))\n"
    )
    project = make_project(tmp_path / "p", ONE_SEED, {"fit.py": script, "shipped": ""})
    project.history([1.0, 2.0])
    assert project.run("run", "HEAD~1..HEAD").status == 0
    assert values(project) == [(2.0, False)]
    project.history([3.0])
    project.run("run", "HEAD")
    assert values(project) == [(3.0, False)]


def test_what_a_build_writes_beside_the_script_is_its_commits(tmp_path: Path) -> None:
    suite = SUITE.replace(
        'name = "tiny"\n', 'name = "tiny"\nbuild = ["cp model.py {suite}/made.py"]\n'
    )
    script = LOG + "from made import LEVEL\nlog(epoch=0, val_loss=LEVEL)\n"
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    project.history([0.0, 1.0, 2.0])
    assert project.run("run", "HEAD~2..HEAD").status == 0
    assert values(project) == [(2.0, False)] * 2


@linux
def test_a_training_gets_listed_variables_and_those_alone_count(tmp_path: Path) -> None:
    script = LOG + (
        "import os\n"
        "assert not [n for n in os.environ if 'SECRET' in n or n in ('HF_TOKEN', 'TERM')]\n"
        "log(epoch=0, val_loss=float(os.environ['WIDTH']))\n"
    )
    suite = ONE_SEED.replace('name = "tiny"\n', 'name = "tiny"\npass_env = ["WIDTH", "MY_*"]\n')
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    project.commit("one", {"README": "1"})
    path = f"/usr/lib/git-core:{os.environ['PATH']}"  # as in a hook
    env = {"WIDTH": "1", "TERM": "xterm", "PATH": path, "SECRET": "1", "HF_TOKEN": "1"}
    assert project.run("run", "HEAD", env=env).status == 0
    project.commit("two", {"README": "2"})
    project.run("run", "HEAD", env={"WIDTH": "1", "TERM": "dumb", "MY_SECRET": "2"})
    assert values(project) == [(1.0, True)]
    project.commit("three", {"README": "3"})
    project.run("run", "HEAD", env={"WIDTH": "2"})
    assert values(project) == [(2.0, False)]
    said = project.run("diff", "HEAD~1..HEAD").out
    assert "WIDTH" in said  # a setting of the environment, of which the ledger has a hash
    project.run("run", "HEAD", env={"WIDTH": "2", "OMP_WAIT_POLICY": "active"})
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        details = ledger.environment(ledger.trials()[-1].trial.environment).details
    assert details["variables"]["OMP_WAIT_POLICY"] == "active"
    assert details["variables"]["WIDTH"] not in ("", "2")
    assert not {"SECRET", "MY_SECRET", "HF_TOKEN", "TERM"} & details["variables"].keys()


@linux
def test_a_training_that_goes_on_from_the_last_stands_for_no_other(tmp_path: Path) -> None:
    script = LOG + (
        "import glob, sys\n"
        "found = glob.glob(sys.argv[1] + '/../*/last')\n"
        "log(epoch=0, val_loss=float(len(found)))\n"
        "open(sys.argv[1] + '/last', 'w').close()\n"
    )
    suite = ONE_SEED.replace("--seed {seed}", "{out}")
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    for number in range(2):
        project.commit(str(number), {"README": str(number)})
        assert project.run("run", "HEAD").status == 0
        assert values(project) == [(float(number), False)]
