from __future__ import annotations

from pathlib import Path

import pytest

from celedger.config import Config, load
from celedger.errors import ConfigError


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path, {}) == Config(tmp_path / "ledger.db", tmp_path / "suites")


def test_a_flag_outweighs_a_variable_outweighs_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.celedger]\nsuite = "file"\ndevice = "cpu"\nbisect_on_regression = true\n'
        'ledger = "data/l.db"\nsuites = "trainings"\nhook_suite = "quick"\n'
    )
    env = {"CELEDGER_SUITE": "env", "CELEDGER_DEVICE": "cuda:1", "CELEDGER_FD": "3"}
    assert load(tmp_path, {}) == Config(
        tmp_path / "data" / "l.db", tmp_path / "trainings", "file", "cpu", True, "quick"
    )
    assert load(tmp_path, env).suite == "env"
    assert load(tmp_path, env, suite="flag", device=None).suite == "flag"
    assert load(tmp_path, env, suite="flag", device=None).device == "cuda:1"
    assert load(tmp_path, {"CELEDGER_SUITE": ""}).suite == "file"
    assert load(tmp_path, {"CELEDGER_BISECT_ON_REGRESSION": "0"}).bisect_on_regression is False


def test_flags_and_variables_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert load(tmp_path, {"CELEDGER_LEDGER": "x.db"}).ledger == tmp_path / "cwd" / "x.db"
    assert load(tmp_path, {}, ledger=Path("/abs/x.db")).ledger == Path("/abs/x.db")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(tmp_path, {}, ledger="~/x.db").ledger == tmp_path / "x.db"


def test_a_linked_worktree_shares_the_ledger_and_has_its_own_suites(tmp_path: Path) -> None:
    root, linked = tmp_path / "root", tmp_path / "linked"
    (root / "suites").mkdir(parents=True)
    linked.mkdir()
    (root / "celedger.toml").write_text('suite = "of-root"\nledger = "l.db"\n')
    found = load(root, {}, worktree=linked)
    assert found == Config(root / "l.db", root / "suites", "of-root")
    (linked / "suites").mkdir()
    (linked / "pyproject.toml").write_text('[tool.celedger]\nsuite = "mine"\nledger = "l.db"\n')
    found = load(root, {}, worktree=linked)
    assert found == Config(root / "l.db", linked / "suites", "mine")


BROKEN = [
    ("pyproject.toml", "[tool.celedger\n", "line 1"),
    ("pyproject.toml", "[tool.celedger]\nsuit = 'x'\n", "did you mean 'suite'"),
    ("pyproject.toml", "[tool]\nceledger = 3\n", "not a table"),
    ("celedger.toml", "colour = 1\n", "known: ledger"),
    ("celedger.toml", "suite = 3\n", "the name of a suite"),
    ("celedger.toml", "device = 'gpu'\n", "auto, cpu or cuda:N"),
    ("celedger.toml", "bisect_on_regression = 'yes'\n", "true or false"),
    ("celedger.toml", "ledger = ''\n", "a path"),
    ("celedger.toml", "a = " + "[" * 5000, "not TOML"),
    ("celedger.toml", "x = " + "9" * 5000, "not TOML"),
    ("celedger.toml", "suite = '\udcff'\n", "not UTF-8"),
]


@pytest.mark.parametrize(("file", "text", "says"), BROKEN)
def test_a_broken_file_is_one_line_that_names_it(
    tmp_path: Path, file: str, text: str, says: str
) -> None:
    (tmp_path / file).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {})
    assert says in str(caught.value) and file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_or_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CELEDGER_DEVICE must be auto"):
        load(tmp_path, {"CELEDGER_DEVICE": "tpu"})
    with pytest.raises(ConfigError, match="CELEDGER_BISECT_ON_REGRESSION must be true or false"):
        load(tmp_path, {"CELEDGER_BISECT_ON_REGRESSION": "perhaps"})
    with pytest.raises(ConfigError, match="--device"):
        load(tmp_path, {}, device="tpu")
    with pytest.raises(TypeError):
        load(tmp_path, {}, colour="red")
