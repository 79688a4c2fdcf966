from __future__ import annotations

from pathlib import Path

import pytest

from celedger.base.config import Config, load
from celedger.base.errors import UsageError


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path, {}) == Config(tmp_path / "ledger.db", tmp_path / "suites")


def test_a_flag_outweighs_a_variable_outweighs_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.celedger]\nsuite = "file"\ndevice = "cpu"\nbisect_on_regression = true\n'
        'ledger = "data/l.db"\nsuites = "trainings"\nhook_suite = "quick"\n'
    )
    env = {"CELEDGER_SUITE": "env", "CELEDGER_DEVICE": "cuda:1", "CELEDGER_FD": "3"}
    assert load(tmp_path, {}) == Config(
        tmp_path / "data" / "l.db",
        tmp_path / "trainings",
        "file",
        "cpu",
        True,
        hook_suite="quick",
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
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {})
    assert says in str(caught.value) and file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_or_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CELEDGER_DEVICE must be auto"):
        load(tmp_path, {"CELEDGER_DEVICE": "tpu"})
    with pytest.raises(UsageError, match="CELEDGER_BISECT_ON_REGRESSION must be true or false"):
        load(tmp_path, {"CELEDGER_BISECT_ON_REGRESSION": "perhaps"})
    with pytest.raises(UsageError, match="--device"):
        load(tmp_path, {}, device="tpu")
    with pytest.raises(TypeError):
        load(tmp_path, {}, colour="red")


# --- the user's own file, and what a merged one may not


def own(tmp_path: Path, text: str) -> dict[str, str]:
    """Variables of a user with this configuration."""
    file = tmp_path / "home" / "celedger" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return {"XDG_CONFIG_HOME": str(tmp_path / "home")}


def test_the_users_own_file_outweighs_the_repositorys_and_may_lead_out_of_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "celedger.toml").write_text('suite = "theirs"\ndevice = "cpu"\nledger = "l.db"\n')
    env = own(tmp_path, f"""\
sandbox = true
suite = "mine"
[repository."{root}"]
ledger = "/data/root.db"
report = "/www/root.html"
[repository."/elsewhere"]
ledger = "/data/other.db"
""")  # fmt: skip
    found = load(root, env)
    assert (found.suite, found.device, found.sandbox) == ("mine", "cpu", True)
    assert (found.ledger, found.report) == (Path("/data/root.db"), Path("/www/root.html"))
    assert load(root, {**env, "CELEDGER_SUITE": "env"}).suite == "env"
    assert load(tmp_path, env).ledger == tmp_path / "ledger.db"
    assert load(root, {"HOME": str(tmp_path)}).suite == "theirs"
    assert found.merged == {"suite": "theirs", "device": "cpu", "ledger": "l.db"}


@pytest.mark.parametrize(
    ("text", "says"),
    [('ledger = "l.db"\n', "an absolute path"), ("colour = 1\n", "known: ledger"),
     ("repository = 3\n", "not a table of tables"), ("sandbox = 1\n", "true or false")],
)  # fmt: skip
def test_a_broken_file_of_the_users_own_is_one_line_that_names_it(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        load(tmp_path, own(tmp_path, text))
    assert "home/celedger/config.toml" in str(caught.value)


OUTSIDE = [
    'ledger = "/tmp/l.db"', 'ledger = "../l.db"', 'ledger = "a/../../l.db"', 'ledger = "~/l.db"',
    'ledger = ".git/config"', 'ledger = "sub/.GIT/x"', 'ledger = "a\\nb"', 'suites = "/suites"',
    'suite = "../evil"', 'hook_suite = "/tmp/evil"', "sandbox = false",
    'report = "page.html"',
]  # fmt: skip


@pytest.mark.parametrize("line", OUTSIDE)
def test_a_merged_file_does_not_lead_out_of_the_repository(tmp_path: Path, line: str) -> None:
    (tmp_path / "celedger.toml").write_text(line)
    with pytest.raises(UsageError, match="your own configuration"):
        load(tmp_path, own(tmp_path, ""))


@pytest.mark.parametrize("name", ["ledger.db", ".celedger", "suites", "data", "a/b"])
def test_a_link_on_the_way_is_refused_where_the_user_did_not_choose_it(
    tmp_path: Path, name: str
) -> None:
    root = tmp_path / "root"
    (root / name).parent.mkdir(parents=True)
    (tmp_path / "theirs").mkdir()
    (root / name).symlink_to(tmp_path / "theirs")
    (root / "celedger.toml").write_text(
        {"data": 'ledger = "data/l.db"', "a/b": 'suites = "a/b/c"'}.get(name, "")
    )
    with pytest.raises(UsageError, match=f"{name} is a symbolic link"):
        load(root, own(tmp_path, ""))
    mine = f'ledger = "{root}/ledger.db"\nsuites = "{root}/suites"\n'
    assert load(root, own(tmp_path, mine)).ledger == root / "ledger.db"


def test_a_home_that_is_closed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_file = Path.is_file

    def closed(path: Path) -> bool:  # root may read everything
        if path.name == "config.toml":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(UsageError, match=r"config\.toml cannot be read: Permission denied"):
        load(tmp_path, {"HOME": str(tmp_path)})
