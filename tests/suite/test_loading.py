from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celedger.base import shipped
from celedger.base.config import Config
from celedger.base.errors import MachineError, SuiteError, UsageError
from celedger.base.model import Direction, Kind
from celedger.suite import Suite, find, load
from celedger.suite.propose import scaffold
from celedger.trial.workplace import choose_tasks

TASK = '[[task]]\nname = "t"\ncommand = "{python} -c pass {seed}"\n'


def suite(tmp_path: Path, text: str, name: str = "s") -> Path:
    folder = tmp_path / "suites" / name
    folder.mkdir(parents=True)
    (folder / "suite.toml").write_text(text)
    return folder


def test_the_example_of_the_design_is_read(tmp_path: Path) -> None:
    folder = suite(
        tmp_path,
        """
        [suite]
        name = "core"
        pythonpath = ["src"]
        build = ["make -j2", ["{python}", "-m", "x y"]]
        inputs = ["requirements*.txt"]
        timeout = "1h30m"
        silence = 90
        memory = "512MiB"
        seeds = 2
        [metrics.val_loss]
        direction = "lower"
        floor = "0.5%"
        summary = "mean-of-last-3"
        [[task]]
        name = "resnet"
        command = "{python} {suite}/resnet.py --lr {lr} --norm {norm} --seed {seed} '{{}}' 'a b'"
        params = { lr = 0.1 }
        grid = { norm = ["batch", "group", "batch"], n = [1, 2] }
        [task.metrics.val_loss]
        floor = 0.01
        [task.metrics.accuracy]
        direction = "higher"
        unit = "%"
        [[task]]
        name = "steps"
        commands = { train = ["{python}", "train.py"], test = "{python} test.py {seed}" }
        threads = 2
        timeout = 1.5
        seeds = [7, 3, 7]
        """,
        "core",
    )
    (folder / "resnet.py").write_text("")
    found = load(folder)
    names = [f"resnet[norm={norm},n=1]" for norm in ("batch", "group")]  # with n=2 it is the same
    assert [task.name for task in found.tasks] == [*names, "steps"]
    first, steps = found.tasks[0], found.tasks[-1]
    assert first.params == {"lr": 0.1, "norm": "batch", "n": 1}
    assert first.commands[0].template[-2:] == ("{{}}", "a b")
    assert first.build == (("make", "-j2"), ("{python}", "-m", "x y"))
    assert (first.timeout, first.silence, first.memory) == (5400, 90, 512 * 2**20)
    assert (first.pythonpath, first.inputs, first.seeds) == (
        ("src",),
        ("requirements*.txt",),
        (0, 1),
    )
    loss, accuracy = first.metrics
    assert (loss.floor.amount, loss.floor.relative, loss.summary) == (0.01, False, "mean-of-last-3")
    assert (accuracy.direction, accuracy.kind, accuracy.unit) == (
        Direction.HIGHER,
        Kind.QUALITY,
        "%",
    )
    assert [command.name for command in steps.commands] == ["train", "test"]
    assert (steps.seeds, steps.threads, steps.timeout) == ((7, 3), 2, 1.5)
    assert [metric.name for metric in steps.metrics] == ["val_loss"]
    assert found.warnings == ("task resnet: no command uses the parameter n",)


def test_what_looks_wrong_is_warned_of(tmp_path: Path) -> None:
    found = load(
        suite(
            tmp_path,
            '[suite]\nname = "other"\n[[task]]\nname = "t"\nseeds = 3\nparams = { lr = 1 }\n'
            'command = "cd x && make"\n',
        )
    )
    told = "\n".join(found.warnings)
    for part in ("calls itself other", "parameter lr", "CELEDGER_SEED"):
        assert part in told


def test_infinity_is_a_parameter_that_has_a_recipe(tmp_path: Path) -> None:
    task = TASK.replace("{seed}", "{clip} {nan}") + "params = { clip = inf, nan = nan }\n"
    (found,) = load(suite(tmp_path, task)).tasks
    assert found.params == {"clip": "inf", "nan": "nan"}
    assert len(found.recipe) == 64


def test_preloading_does_not_make_another_recipe(tmp_path: Path) -> None:
    """A trial is the same started warm or cold: turning it on must not lose the ledger's."""
    head = '[suite]\nname = "s"\n'
    cold = load(suite(tmp_path / "a", head + TASK)).tasks[0]
    warm = load(suite(tmp_path / "b", head + 'preload = ["torch", "torch"]\n' + TASK)).tasks[0]
    assert warm.preload == ("torch",)
    assert warm.recipe == cold.recipe


def test_an_alias_stands_for_several_parameters(tmp_path: Path) -> None:
    found = load(
        suite(
            tmp_path,
            TASK.replace("{seed}", "{width} {depth} {lr} {seed}")
            + "params = { lr = 0.1, width = 1 }\n"
            'grid = { size = ["s", "l", "same"], lr2 = [1, 2] }\n'
            "[task.alias.size]\ns = { width = 8, depth = 1 }\nl = { width = 64, depth = 4 }\n"
            "same = { width = 8, depth = 1 }\n",
        )
    )
    assert {task.name: dict(task.params) for task in found.tasks} == {
        "t[size=s,lr2=1]": {"lr": 0.1, "width": 8, "size": "s", "lr2": 1, "depth": 1},
        "t[size=l,lr2=1]": {"lr": 0.1, "width": 64, "size": "l", "lr2": 1, "depth": 4},
    }
    assert found.warnings == ("task t: no command uses the parameter lr2",)


def test_how_a_task_reports_is_part_of_its_recipe(tmp_path: Path) -> None:
    plain, *others = (
        load(suite(tmp_path, TASK + more, name)).tasks[0]
        for name, more in {
            "a": "",
            "b": "steps = true\n",
            "c": "pattern = ['e (?P<epoch>\\d+)', 'l=(?P<l>\\S+)']\n",
            "d": "tensorboard = '{out}/tb'\n",
        }.items()
    )
    assert others[0].steps and others[1].pattern == (r"e (?P<epoch>\d+)", r"l=(?P<l>\S+)")
    assert others[2].tensorboard == "{out}/tb"
    definitions = [{**task.definition(), "suite": ""} for task in (plain, *others)]
    assert all(definitions[0] != other for other in definitions[1:])
    assert not {"steps", "pattern", "tensorboard", "whole"} & set(plain.definition())


WRONG = [
    ("", "has no task"),
    ("[task]\nname = 't'\ncommand = 'x'\n", "write [[task]]"),
    ("[suite\n", "line 1"),
    ("a = 1\n" + TASK, "unknown key 'a'"),
    ("[suite]\npattern = 'x'\n" + TASK, "unknown key 'pattern' (write it below [[task]])"),
    ("[suite]\ntimeuot = '10m'\n" + TASK, "did you mean 'timeout'"),
    ("[suite]\nname = 'a b'\n" + TASK, "invalid name"),
    ("[suite]\ntimeout = '10 minutes'\n" + TASK, "duration"),
    ("[suite]\ntimeout = 0\n" + TASK, "duration"),
    ("[suite]\nmemory = '4 gigs'\n" + TASK, "size"),
    ("[suite]\nthreads = true\n" + TASK, "not an integer"),
    ("[suite]\nseeds = []\n" + TASK, "seeds is empty"),
    ("[suite]\nseeds = 0\n" + TASK, "not from 1"),
    ("[suite]\nseeds = [-1]\n" + TASK, "not from 0"),
    ("[suite]\npythonpath = ['../x']\n" + TASK, "outside"),
    ("[suite]\ninputs = 3\n" + TASK, "list of strings"),
    ("[suite]\npreload = ['torch', 3]\n" + TASK, "not a module name"),
    ("[suite]\npreload = ['a-b']\n" + TASK, "preload has 'a-b'"),
    ("[suite]\npreload = {}\n" + TASK, "not a module name"),
    ("[suite]\nbuild = ['{sed}']\n" + TASK, "unknown placeholder"),
    ("[suite]\nbuild = [3]\n" + TASK, "list of strings"),
    ("suite = 3\n" + TASK, "not a table"),
    (TASK + TASK, "'t' is defined twice"),
    (TASK + "nmae = 't'\n", "did you mean 'name'"),
    ("[[task]]\ncommand = 'x'\n", "number 1 has no name"),
    ("[[task]]\nname = 't/u'\ncommand = 'x'\n", "invalid name"),
    ("[[task]]\nname = 't'\n", "`command` or `commands`, and not both"),
    (TASK + "commands = { a = 'x' }\n", "`command` or `commands`, and not both"),
    ("[[task]]\nname = 't'\ncommands = {}\n", "commands is not a table"),
    ("[[task]]\nname = 't'\ncommand = ''\n", "command is empty"),
    ('[[task]]\nname = "t"\ncommands = { "a\\nb" = "x" }\n', "other characters"),
    ('[[task]]\nname = "t"\ncommand = ["{suite}/a\\nb", "x"]\n', "is not there"),
    ('[[task]]\nname = "t"\ncommand = ["{a\\nb}", "x"]\n', "unknown placeholder"),
    ("[[task]]\nname = 't'\ncommand = 'a \"b'\n", "split into words"),
    ("[[task]]\nname = 't'\ncommand = [1]\n", "list of strings"),
    ("[[task]]\nname = 't'\ncommand = 'x {sede}'\n", "did you mean 'seed'"),
    (
        TASK.replace("pass", "{lr}") + "params = { width = 8 }\ngrid = { norm = ['a'] }\n",
        "'{lr}', which `params` does not define; known: width, norm, python, suite, tree, seed",
    ),
    ("[[task]]\nname = 't'\ncommand = 'x {'\n", "lone brace"),
    ("[[task]]\nname = 't'\ncommand = ['x', '{\"a\": 1}']\n", "unknown placeholder"),
    ("[[task]]\nname = 't'\ncommand = '{python} {suite}/absent.py'\n", "is not there"),
    (TASK + "params = { seed = 1 }\n", "fills in itself"),
    (TASK + "params = { a-b = 1 }\n", "letters, digits"),
    (TASK + "params = { a = [1] }\n", "goes into grid"),
    (TASK + "params = { a = 2026-11-23 }\n", "a date into quotes"),
    (TASK + "metrics = ['a']\n", "metrics is not a table"),
    (TASK + "sample = 2\n", "has a sample and no grid"),
    (TASK + "sample = 0\ngrid = { a = [1] }\n", "sample is 0"),
    (TASK + "grid = { a = [] }\n", "not a list of values"),
    (TASK + "alias = { size = { s = { w = 1 } } }\n", "neither params nor grid"),
    (TASK + "params = { size = 'x' }\nalias = { size = { s = { w = 1 } } }\n", "has no 'x'"),
    (TASK + "params = { size = 's' }\nalias = { size = 3 }\n", "not a table of values"),
    (TASK + "params = { size = 's' }\nalias = { size = { s = 3 } }\n", "table of parameters"),
    (TASK + "params = { a = 's' }\nalias = { a = { s = { seed = 3 } } }\n", "fills in itself"),
    (
        TASK + "params = { a = 's' }\nalias = { a = { s = { w = 1 }, l = { h = 1 } } }\n",
        "same parameters with each",
    ),
    (
        TASK + "grid = { a = ['s'], w = [1] }\nalias = { a = { s = { w = 1 } } }\n",
        "'w' in alias 'a' and in grid",
    ),
    (
        TASK + "params = { a = 1, b = 1 }\n"
        "alias = { a = { 1 = { w = 1 } }, b = { 1 = { w = 1 } } }\n",
        "'w' in alias 'b' and in alias 'a'",
    ),
    (TASK + "steps = 1\n", "not true or false"),
    (TASK + "pattern = 'loss (.*'\n", "not a regular expression"),
    (TASK + "pattern = 'loss (.*)'\n", "no named group"),
    (TASK + "pattern = ['e(?P<epoch>.)']\n", "only the epoch"),
    (TASK + "pattern = '(?P<bé>.)'\n", "letters, digits and _"),
    (TASK + "tensorboard = true\n", "not a string"),
    (TASK + "tensorboard = 'runs'\n", "not a folder such as"),
    (TASK + "tensorboard = '{out}/../x'\n", "not a folder such as"),
    (TASK + "tensorboard = '{suite}'\n", "unknown placeholder"),
    (TASK.replace("pass", "{a}") + "grid = { a = ['x/y', 'x:y'] }\n", "is defined twice"),
    (TASK + f"grid = {{ a = {list(range(40))}, b = {list(range(40))} }}\n", "more than 1000"),
    (TASK + "[task.metrics.m]\nfloor = 1\n", "no direction"),
    (TASK + "[task.metrics.m]\ndirection = 'lowr'\n", "did you mean 'lower'"),
    (TASK + "[task.metrics.m]\ndirection = 'lower'\nfloor = 'x'\n", "floor is 'x'"),
    (TASK + "[task.metrics.m]\ndirection = 'lower'\nfloor = -1\n", "floor is -1"),
    (TASK + "[task.metrics.m]\ndirection = 'lower'\nfloor = true\n", "floor is True"),
    (
        TASK + "[task.metrics.m]\ndirection = 'lower'\nsummary = 'mean'\n",
        "summary is 'mean', not last, best, worst, max, ",
    ),
    (TASK + "[task.metrics.'a b']\ndirection = 'lower'\n", "invalid name"),
    (TASK + "[task.metrics]\nm = 3\n", "not a table"),
    ("[metrics.m]\nkind = 'sped'\ndirection = 'lower'\n" + TASK, "did you mean 'speed'"),
    ("x = " + "[" * 5000, "not TOML"),
    ("x = 0x" + "f" * 9000 + "\n" + TASK, "unknown key"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_a_wrong_suite_is_one_line_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    folder = suite(tmp_path, text)
    with pytest.raises(SuiteError) as caught:
        load(folder)
    assert says in str(caught.value)
    assert str(folder / "suite.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


SCALARS = st.one_of(
    st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.dates(), st.times(),
    st.sampled_from(["{python} x {seed}", "10m", "4GB", "lower", "5%", "{suite}/x", "last"]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["suite", "metrics", "task", "name", "command", "commands", "params", "grid", "seeds",
     "timeout", "silence", "memory", "threads", "alias", "pattern", "steps",
     "tensorboard", "python", "pythonpath", "build", "inputs",
     "direction", "kind", "floor", "summary", "unit", "val_loss", "lr", '"a\\nb"']
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OPTIONAL = (
    "params", "grid", "seeds", "timeout", "memory", "threads", "metrics", "silence", "alias",
    "pattern", "steps", "tensorboard",
)  # fmt: skip
TASKS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c"]), "command": st.just("{python} {seed}")},
    optional=dict.fromkeys(OPTIONAL, VALUES),
)
FILES = st.one_of(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.fixed_dictionaries(
        {"task": st.lists(TASKS, min_size=1, max_size=2)},
        optional={"suite": st.dictionaries(KEYS, VALUES, max_size=3), "metrics": VALUES},
    ),
)


def toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return str(value)


@settings(max_examples=200, deadline=None)
@given(FILES)
@pytest.mark.matrix
def test_any_file_is_a_suite_or_a_suite_error(content: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(f"{key} = {toml(value)}\n" for key, value in content.items())
        (Path(folder) / "suite.toml").write_text(text)
        try:
            found = load(Path(folder))
        except SuiteError as error:
            assert "\n" not in str(error)
            return
        assert isinstance(found, Suite) and found.tasks
        assert len({task.name for task in found.tasks}) == len(found.tasks)
        assert all(len(task.recipe) == 64 for task in found.tasks)


# --- finding


def config(tmp_path: Path, name: str | None = None) -> Config:
    return Config(tmp_path / "ledger.db", tmp_path / "suites", name)


def test_a_suite_is_found_by_name_by_configuration_or_by_being_alone(tmp_path: Path) -> None:
    one = suite(tmp_path, TASK, "one")
    assert find(None, config(tmp_path), tmp_path) == one
    two = suite(tmp_path, TASK, "two")
    assert find("two", config(tmp_path), tmp_path) == two
    assert find(None, config(tmp_path, "two"), tmp_path) == two
    assert find(str(two), config(tmp_path), tmp_path) == two
    assert find("suites/one", config(tmp_path), tmp_path) == one
    with pytest.raises(SuiteError, match="has one, two"):
        find(None, config(tmp_path), tmp_path)
    with pytest.raises(SuiteError, match="did you mean 'two'"):
        find("tow", config(tmp_path), tmp_path)
    with pytest.raises(SuiteError, match="no suite"):
        find("./absent", config(tmp_path), tmp_path)


def test_without_any_suite_init_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="celedger init"):
        find(None, config(tmp_path), tmp_path)
    (tmp_path / "suites" / "x").mkdir(parents=True)
    with pytest.raises(SuiteError, match=r"has no suite\.toml"):
        load(tmp_path / "suites" / "x")


def test_shipped_suites_are_found_and_sound(tmp_path: Path) -> None:
    for folder in shipped("suites").iterdir():
        if (folder / "suite.toml").is_file():
            assert find(folder.name, config(tmp_path), tmp_path) == folder
            assert load(folder).warnings == ()


# --- the first suite


def test_the_first_suite_runs_at_once_and_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "suites" / "mine"
    written = scaffold(folder, "mine")
    assert sorted(path.name for path in written) == ["first.py", "suite.toml"]
    found = load(folder)
    assert (found.name, found.warnings) == ("mine", ())
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, str(folder / "first.py"), "--seed", "1"],
        env={**os.environ, "CELEDGER_FD": str(write)}, pass_fds=[write], capture_output=True,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as stream:
        lines = stream.readlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 20 and "val_loss" in lines[-1]
    (folder / "first.py").write_text("edited")
    (folder / "suite.toml").unlink()
    assert scaffold(folder, "mine") == [folder / "suite.toml"]
    assert (folder / "first.py").read_text() == "edited"
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError):
        scaffold(tmp_path / "file", "mine")


def test_a_grid_overrides_params(tmp_path: Path) -> None:
    text = '[[task]]\nname = "t"\ncommand = "x {a} {b}"\nparams = { a = 1, b = 2 }\n'
    tasks = load(suite(tmp_path, text + "grid = { a = [3, 4] }\n")).tasks
    assert [task.params for task in tasks] == [{"a": 3, "b": 2}, {"a": 4, "b": 2}]


def test_a_sample_of_a_large_grid_is_drawn_by_a_fixed_seed(tmp_path: Path) -> None:
    text = (
        '[[task]]\nname = "t"\ncommand = "x {a} {b} {c}"\nsample = NUMBER\n'
        f"grid = {{ a = {[*range(200)]}, b = {[*range(200)]}, c = ['x', 'y'] }}\n"
    )
    drawn = {}
    for number in (20, 40):
        path = suite(tmp_path / str(number), text.replace("NUMBER", str(number)))
        drawn[number] = [task.params for task in load(path).tasks]
        assert load(path).tasks == load(path).tasks
        assert len(drawn[number]) == number
    assert all(params in drawn[40] for params in drawn[20])
    assert len({params["a"] for params in drawn[40]}) > 25
    small = text.replace("NUMBER", "9").replace(str([*range(200)]), "[0, 1]")
    assert len(load(suite(tmp_path / "all", small)).tasks) == 8


def test_the_name_of_a_grid_stands_for_its_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "suites" / "s"
    folder.mkdir(parents=True)
    task = '[[task]]\nname = "{}"\ncommand = "{{python}} -c pass {{n}}"\n'
    text = (
        task.format("one") + "grid = { n = [1, 2] }\n" + task.format("two") + "params = { n = 1 }\n"
    )
    (folder / "suite.toml").write_text(text)
    suite = load(folder)
    assert [t.name for t in choose_tasks(suite, ["one"])] == ["one[n=1]", "one[n=2]"]
    assert [t.name for t in choose_tasks(suite, ["one[n=2]", "two"])] == ["one[n=2]", "two"]
    with pytest.raises(UsageError, match="has no task 'three'"):
        choose_tasks(suite, ["three"])


@pytest.mark.parametrize(
    ("name", "unit", "kind"),
    [
        ("step_time", "", Kind.SPEED),  # its usual unit is the second
        ("tokens_per_s", "", Kind.SPEED),
        ("items", "items/s", Kind.SPEED),
        ("cpu_time", "", Kind.WORK),
        ("memory_growth", "", Kind.MEMORY),
        ("vram", "MiB", Kind.MEMORY),
        ("val_loss", "", Kind.QUALITY),
        ("epochs_to_half", "epochs", Kind.QUALITY),
    ],
)
def test_what_a_clock_tells_is_speed_unless_the_suite_says_otherwise(
    tmp_path: Path, name: str, unit: str, kind: Kind
) -> None:
    table = f'[metrics.{name}]\ndirection = "lower"\n' + f'unit = "{unit}"\n' * bool(unit)
    metric = load(suite(tmp_path / "usual", table + TASK)).tasks[0].metric(name)
    said = load(suite(tmp_path / "said", table + 'kind = "count"\n' + TASK)).tasks[0].metric(name)
    assert metric is not None and metric.kind is kind
    assert said is not None and said.kind is Kind.COUNT
