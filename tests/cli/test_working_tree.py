"""What is not committed yet, measured: `run .`, `show .`, `diff HEAD .`, `check .`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from conftest import SUITE, git, make_project, rows, with_verbs
from scripted import ScriptedProject, Training, scripted

from celedger.views.diff import in_turns
from celedger.views.samples import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAINS, TRIES = 2, 5


@pytest.fixture
def quick(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "quick")


def edit(project: ScriptedProject, text: str) -> None:
    (project.root / "model.py").write_text(text)


@with_verbs("export")
def test_the_working_tree_is_measured_and_the_ledger_does_not_know_of_it(
    quick: ScriptedProject,
) -> None:
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    facts = "SELECT ulid FROM trials UNION ALL SELECT sha FROM commits"
    before, exported = rows(quick, facts), quick.run("export").out
    edit(quick, "LEVEL = 0.5\n")
    done = quick.run("run", ".")
    assert done.status == 0, done.err
    assert f"working tree at {head[:10]}" in done.out
    assert "0.83" in done.out  # 0.5 + 1 / 3
    assert rows(quick, facts) == before
    assert "working tree" not in quick.run("log").out + quick.run("drift").out
    assert quick.run("export").out == exported != ""


def test_what_was_measured_is_not_measured_again(quick: ScriptedProject) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = 0.5\n")
    quick.run("run", ".")
    ran = len(quick.executor.ran)
    assert "holds every trial" in quick.run("run", ".").err
    edit(quick, "LEVEL = 0.4\n")
    quick.run("run", ".")
    assert len(quick.executor.ran) == ran + 2
    edit(quick, "LEVEL = 0.5\n")
    quick.run("run", ".")
    assert len(quick.executor.ran) == ran + 2


def test_a_tree_equal_to_heads_runs_nothing(quick: ScriptedProject) -> None:
    quick.history([1.0])
    for verb in ("run", "check"):
        done = quick.run(verb, ".")
        assert (done.status, quick.executor.ran) == (0, []), done.err
        assert "nothing to measure" in done.out


def test_a_training_that_fails_is_bad_and_one_that_is_killed_is_no_answer(
    quick: ScriptedProject,
) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = None\n")
    done = quick.run("run", ".")
    assert done.status == 1
    assert "TypeError" in done.out


def test_head_and_the_working_tree_are_compared(quick: ScriptedProject) -> None:
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    edit(quick, "LEVEL = 0.5\n")
    assert quick.run("diff", "HEAD", ".").status == 128  # not measured yet
    quick.run("run", ".")
    done = quick.run("diff", "HEAD", ".", "--json")
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    (loss,) = [m for m in answer["tasks"][0]["metrics"] if m["metric"] == "val_loss"]
    assert answer["a"] == head
    assert loss["delta"] == pytest.approx(-0.5)
    assert f"working tree at {head[:10]}" in quick.run("diff", "HEAD", ".").out
    assert f"working tree at {head[:10]}" in quick.run("show", ".").out


def test_values_and_curves_of_the_working_tree_are_shown_beside_heads(
    quick: ScriptedProject,
) -> None:
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    edit(quick, "LEVEL = 0.5\n")
    done = quick.run("table", ".")
    assert done.status == 128
    assert f"no trial of working tree at {head[:10]} is stored (type `celedger run ." in done.err
    quick.run("run", ".")
    (row,) = json.loads(quick.run("table", ".", "--json").out)["rows"]
    assert row["values"]["val_loss"]["mean"] == pytest.approx(0.8303, abs=0.01)
    assert "1.33" in quick.run("table", "HEAD").out


@with_verbs("plot")
def test_the_curves_of_the_working_tree_are_drawn_beside_heads(
    quick: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.text import Text

    from celedger.views import picture

    drawn: list[Figure] = []
    monkeypatch.setattr(picture, "save", lambda figure, path: drawn.append(figure) or path)
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    edit(quick, "LEVEL = 0.5\n")
    words = ("plot", "curves", "HEAD", ".")
    assert "celedger run ." in quick.run(*words).err
    script = quick.root / "suites" / "tiny" / "fit.py"
    script.write_text(script.read_text() + "# edited\n")  # an edit of the suite is an edit
    quick.run("run", ".")
    done = quick.run(*words)
    assert done.status == 0, done.err
    (figure,) = drawn
    panel = figure.axes[0]
    names = panel.get_legend_handles_labels()[1]
    assert [names[0][:8], names[1]] == [head[:8], f"working tree at {head[:10]}"]
    ends = [line.get_ydata()[-1] for line in panel.lines[:2]]
    assert ends == pytest.approx([1.33, 0.83], abs=0.01)
    title = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "2 commits" in title
    assert "not comparable" not in title
    done = quick.run("plot", "curves", "HEAD-HEAD")
    assert f"no trial of {head[:10]} without {head[:10]} is stored" in done.err


@pytest.mark.parametrize("revision", [".", "HEAD-HEAD", ".-HEAD"])
def test_a_synthetic_revision_has_no_history(quick: ScriptedProject, revision: str) -> None:
    quick.history([1.0])
    quick.run("run", "HEAD")
    for words in (("noise", "--commit", revision), ("drift", revision)):
        done = quick.run(*words)
        assert done.status == 129
        assert f"{revision!r} is not a commit: it has no history, and no noise" in done.err
    done = quick.run("drift", "nope-HEAD")
    assert "unknown revision 'nope-HEAD'" in done.err


def test_a_commit_reverted_is_measured(quick: ScriptedProject) -> None:
    _, culprit, head = quick.history([1.0, 2.0, 2.0])
    quick.run("run", "HEAD")
    done = quick.run("run", f"HEAD-{culprit[:10]}")
    assert done.status == 125  # the later commit changed the next line
    assert f"{culprit[:10]} cannot be reverted cleanly on {head[:10]}: model.py" in done.err
    done = quick.run("run", "HEAD-HEAD")
    assert f"{head[:10]} without {head[:10]}" in done.out
    assert "2.3" in done.out


@pytest.mark.matrix
def test_the_suite_of_each_side_has_that_sides_files(tmp_path: Path) -> None:
    """An edit of the training script is an edit. The trainings are real."""
    made = make_project(tmp_path / "own", SUITE.replace("[0, 1]", "[0]"))
    (made.root / ".git" / "info" / "exclude").write_text("")
    made.history([1.0])
    assert made.run("run", "HEAD").status == 0
    script = made.root / "suites" / "tiny" / "fit.py"
    script.write_text(script.read_text().replace("LEVEL +", "LEVEL / 2 +"))
    assert made.run("run", ".").status == 0
    answer = json.loads(made.run("diff", "HEAD", ".", "--json").out)
    assert answer["tasks"][0]["comparable"] is True
    (loss,) = [m for m in answer["tasks"][0]["metrics"] if m["metric"] == "val_loss"]
    assert loss["delta"] == pytest.approx(-0.5)
    git(made.root, "add", "-A")
    git(made.root, "commit", "--quiet", "-m", "halve")
    done = made.run("run", "HEAD-HEAD")  # with the script that was reverted, too
    assert done.status == 0, done.err
    assert "re-used from" in done.out


def test_a_synthetic_revision_does_not_leave_the_machine(quick: ScriptedProject) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = 0.5\n")
    done = quick.run("run", ".", "--engine", "ray")
    assert done.status == 129
    assert "on this machine alone" in done.err
    quick.run("run", ".")
    assert quick.executor.ran
    sha = json.loads(quick.run("show", ".", "--json").out)["commit"]["sha"]
    assert quick.run("run", sha).status == 129  # only the grammar reaches it


# --- check .


@pytest.fixture
def known(tmp_path: Path) -> ScriptedProject:
    """A project of which the noise is known: five seeds of one commit, and a repeat."""
    project = scripted(tmp_path / "known", SUITE.replace("[0, 1]", "[0, 1, 2]"))
    project.history([1.0])
    project.run("noise", "--seeds", "12", "--repeats", "2")
    project.run("check", "HEAD")
    return project


def check(project: ScriptedProject, text: str) -> tuple[int, dict, str]:
    edit(project, text)
    done = project.run("check", ".", "--json")
    answer = json.loads(done.out)
    (loss,) = [s for s in answer["standings"] if s["metric"] in ("val_loss", "")]
    return done.status, answer, loss["standing"]


def test_an_edit_is_judged_beside_head_by_equal_seeds(known: ScriptedProject) -> None:
    head = git(known.root, "rev-parse", "HEAD")
    assert check(known, "LEVEL = 1.0  # equal\n")[::2] == (0, "same")
    assert check(known, "LEVEL = 1.4\n")[::2] == (1, "worse")
    assert check(known, "LEVEL = 0.7\n")[::2] == (0, "better")
    assert check(known, "LEVEL = None\n")[::2] == (1, "worse")
    text = known.run("check", ".").out
    assert text.startswith(f"working tree at {head[:10]}: the 4th try against {head[:8]}")
    # None of it is an incident, a baseline or history.
    assert json.loads(known.run("status", "--json").out)["incidents"] == []
    assert "first measurement" in known.run("check", "HEAD").out


def test_an_edit_pays_for_no_doubt_about_older_commits(tmp_path: Path) -> None:
    """`check .` repeated HEAD, of which it was not clear whether it was worse than its parent."""
    draws = Random(3)

    def training(model: Mapping[str, float], seed: int) -> Iterator[dict[str, object]]:
        yield {"epoch": 0, "val_loss": model["LEVEL"] + draws.gauss(0, 0.01)}

    project = scripted(tmp_path / "doubted", SUITE, training)
    for level in (1.0, 1.0, 1.0, 1.0, 1.026):
        model = f"LEVEL = {level}\nNUMBER = {draws.random()}\n"
        project.commit(f"level {level}", {"model.py": model})
        project.run("check", "HEAD", *(["--budget", "0"] if level > 1 else []))
    assert json.loads(project.run("status", "--json").out)["suspected"]
    ran, head = len(project.executor.ran), git(project.root, "rev-parse", "HEAD")
    check(project, "LEVEL = 1.026\nEDIT = 1\n")
    assert head not in [sha for sha, _ in project.executor.ran[ran:]]
    project.run("check", "HEAD")
    assert head in [sha for sha, _ in project.executor.ran[ran:]]


TIMED = SUITE.replace("[0, 1]", "[0, 1, 2]").replace(
    "[[task]]",
    '[metrics.step_time]\ndirection = "lower"\nkind = "speed"\nfloor = "10%"\n[[task]]',
)


def timed(load: list[float], draws: Random) -> Training:
    """A training whose step takes COST on a machine of this load, which may change."""

    def training(model: Mapping[str, float], seed: int) -> Iterator[dict[str, object]]:
        time = load[0] * model["COST"] * (1 + 0.01 * draws.gauss(0, 1))
        yield {"epoch": 0, "val_loss": 1.0, "step_time": time}

    return training


def test_an_edit_is_not_slower_because_the_machine_became_loaded(tmp_path: Path) -> None:
    """`check .` said +112 % of an edit of the learning rate, and exited with 1."""
    load = [1.0]
    project = scripted(tmp_path / "loaded", TIMED, timed(load, Random(3)))
    project.commit("first", {"model.py": "COST = 1.0\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    project.run("check", "HEAD")
    load[0] = 2.0
    edit(project, "COST = 1.0 + 0\n")
    done = project.run("check", ".")
    assert "beside the edit: did step_time change?" in done.err
    assert "worse" not in done.out and done.status != 1
    edit(project, "COST = 3.0\n")
    assert project.run("check", ".").status == 1


def test_an_edit_is_compared_within_a_session_where_sessions_differ_much(tmp_path: Path) -> None:
    load, draws = [1.0], Random(4)
    project = scripted(tmp_path / "sessions", TIMED, timed(load, draws))
    for number in range(6):
        project.commit(f"number {number}", {"model.py": f"COST = 1.0\nNUMBER = {number}\n"})
        load[0] = 1 + 0.3 * draws.random()
        project.run("check", "HEAD")
    edit(project, "COST = 1.0\nEDIT = 1\n")
    done = project.run("check", ".", "--budget", "0")
    assert "noise of sessions hides changes" in " ".join(done.out.split()) and done.status == 125
    done = project.run("check", ".")
    assert "beside the edit: did step_time change?" in done.err
    assert done.status == 0, done.out


def test_commits_are_not_slower_because_the_machine_became_loaded(tmp_path: Path) -> None:
    """`diff GOOD HEAD` said of such times that they seem worse."""
    load, draws = [1.0], Random(3)

    def training(model: Mapping[str, float], seed: int) -> Iterator[dict[str, object]]:
        time = load[0] * model["COST"] * (1 + 0.01 * draws.gauss(0, 1))
        yield {"epoch": 0, "val_loss": model["COST"], "step_time": time}

    project = scripted(tmp_path / "loaded", TIMED, training)
    good = project.commit("first", {"model.py": "COST = 1.0\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    load[0] = 2.0
    bad = project.commit("second", {"model.py": "COST = 1.0 + 0\n"})
    project.run("run", "HEAD")
    done = project.run("diff", f"{good}..HEAD")
    assert "step_time" in done.out and "seems worse" not in done.out
    assert "was not measured in turns" in " ".join(done.out.split())
    assert f"celedger bisect {good[:12]}..{bad[:12]} --suite tiny --task fit" in done.out
    edit(project, "COST = 1.0 + 0.0\n")
    load[0] = 4.0
    project.run("run", ".")
    assert "`celedger check .` measures both in turns" in project.run("diff", "HEAD", ".").out
    load[0] = 5.0
    edit(project, "COST = 3.0\n")
    project.run("check", ".")  # trains HEAD again beside the edit
    done = project.run("diff", "HEAD", ".")
    assert "seems worse" in done.out.split("step_time")[1].split("\n")[0], done.out


def test_a_session_counts_only_where_it_ran_both_in_turns() -> None:
    """`diff HEAD .` said that a step takes 48 % longer, since the machine became loaded after HEAD
    was repeated."""

    def side(*trials: tuple[str, float]) -> Batch:
        records = (SimpleNamespace(trial=SimpleNamespace(ulid=u, started=t)) for u, t in trials)
        return Batch("tiny", "fit", "", "", tuple(records))  # type: ignore[arg-type]

    sessions = {"a": "one", "b": "one", "c": "one", "d": "two", "e": "two"}
    first, then = side(("a", 1), ("b", 2), ("d", 9)), side(("c", 3), ("e", 8))
    assert [batch.records for batch in in_turns(sessions, first, then)] == [(), ()]
    a, b = in_turns(sessions, first, then, any_order=True)  # of memory
    assert [r.trial.ulid for r in (*a.records, *b.records)] == [*"abd", *"ce"]
    first = side(("a", 1), ("b", 4), ("d", 9))
    a, b = in_turns(sessions, first, then)
    assert [r.trial.ulid for r in (*a.records, *b.records)] == ["a", "b", "c"]


def test_seeds_that_repeat_bit_by_bit_tell_an_edit_that_is_worse_at_each(tmp_path: Path) -> None:
    def training(model: Mapping[str, float], seed: int) -> Iterator[dict[str, object]]:
        own = Random(seed).gauss(1, 0.05)
        yield {"epoch": 0, "val_loss": own + model["LEVEL"] * (1 + 0.1 * Random(-seed).random())}

    project = scripted(tmp_path / "exact", SUITE.replace("[0, 1]", "[0, 1, 2]"), training)
    project.commit("first", {"model.py": "LEVEL = 1.0\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    project.run("check", "HEAD")
    assert check(project, "LEVEL = 1.05\n")[::2] == (1, "worse")
    assert check(project, "LEVEL = 1.0 + 1e-9\n")[::2] == (0, "same")


def test_an_edit_is_compared_with_a_head_that_diverges_at_a_seed(tmp_path: Path) -> None:
    def training(model: Mapping[str, float], seed: int) -> Iterator[dict[str, object]]:
        is_lost = model["LEVEL"] == 1 and seed == 2
        yield {"epoch": 0, "val_loss": math.nan if is_lost else Random(seed).gauss(1, 0.05)}

    project = scripted(tmp_path / "lost", SUITE.replace("[0, 1]", "[0, 1, 2]"), training)
    project.commit("first", {"model.py": "LEVEL = 2\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    project.commit("second", {"model.py": "LEVEL = 1\n"})
    project.run("check", "HEAD")
    assert check(project, "LEVEL = 3\n")[0] in (0, 125)


@pytest.mark.matrix
def test_the_tries_are_counted_since_head_moved(known: ScriptedProject) -> None:
    numbers = [check(known, f"LEVEL = 1.0  # {text}\n")[1]["try"] for text in ("a", "b", "a", "c")]
    assert numbers == [1, 2, 1, 3]
    known.commit("c")
    assert check(known, "LEVEL = 1.0  # d\n")[1]["try"] == 1


@pytest.mark.matrix
def test_an_edit_that_undoes_head_is_no_edit_that_changes_nothing(tmp_path: Path) -> None:
    """Its results are re-used from HEAD~1, and "nothing that it reads has changed" was said."""
    project = make_project(tmp_path / "undone")
    project.history([1.0])
    (project.root / "model.py").write_text("LEVEL = 3.0\n")
    project.run("check", ".")
    project.commit("worse", {"model.py": "LEVEL = 3.0\n"})
    project.run("run", "HEAD")
    git(project.root, "checkout", "--quiet", "HEAD~1", "--", "model.py")
    for revision in (".", "HEAD-HEAD"):
        done = project.run("check", revision)
        assert "re-used" in done.err, done.err
        assert "nothing that it reads" not in done.out, done.out
    git(project.root, "checkout", "--quiet", "HEAD", "--", "model.py")
    project.commit("a word", {"README.md": "# A\n"})
    project.run("run", "HEAD")
    (project.root / "README.md").write_text("# B\n")
    assert "nothing that it reads has changed" in project.run("check", ".").out


def test_a_seed_of_head_that_went_wrong_makes_no_edit_better(tmp_path: Path) -> None:
    """Two of three seeds gain nothing. The noise, of another commit, has no such seed."""

    def training(model: Mapping[str, object], seed: int) -> Iterator[dict[str, object]]:
        went_wrong = model["DRAW"] == 1 and seed == 2
        value = 1 + Random(f"{model['DRAW']} {seed}").gauss(0, 0.002) + 0.3 * went_wrong
        yield {"epoch": 0, "val_loss": value - float(str(model["GAIN"]))}

    project = scripted(tmp_path / "wrong", SUITE.replace("[0, 1]", "[0, 1, 2]"), training)
    project.commit("first", {"model.py": "DRAW, GAIN = 0, 0\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    project.commit("second", {"model.py": "DRAW, GAIN = 1, 0\n"})
    assert check(project, "DRAW, GAIN = 2, 0\n")[2] == "same"
    assert "chance is not excluded at try 1" in project.run("check", ".").out
    assert check(project, "DRAW, GAIN = 2, 0.1\n")[2] == "better"


@pytest.mark.matrix
def test_a_redraw_that_looks_better_is_not_said_to_be(tmp_path: Path) -> None:
    """Chains of edits that draw all seeds anew and change nothing else. The bound itself is
    simulated in tests/stats/test_tries.py."""
    rng = Random(33)
    draws: dict[tuple[object, int], float] = {}

    def training(model: Mapping[str, object], seed: int) -> Iterator[dict[str, object]]:
        key = model.get("DRAW"), seed
        yield {"epoch": 0, "val_loss": 1 + draws.setdefault(key, rng.gauss(0, 0.02))}

    project = scripted(tmp_path / "null", SUITE.replace("0.1%", "1%"), training)
    project.commit("first", {"model.py": "DRAW = -1\n"})
    project.run("noise", "--seeds", "8", "--repeats", "2")
    accepted = 0
    for chain in range(CHAINS):
        project.commit(f"chain {chain}", {"model.py": f"DRAW = {-1 - chain}\n"})
        answers = [check(project, f"DRAW = {100 * chain + n}\n") for n in range(TRIES)]
        accepted += any(standing == "better" for _, _, standing in answers)
        assert [answer["try"] for _, answer, _ in answers] == list(range(1, TRIES + 1))
    assert accepted == 0  # 5 % of so few chains are none
