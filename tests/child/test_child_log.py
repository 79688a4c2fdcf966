"""`celedger.child.log` over real descriptors and real processes."""

from __future__ import annotations

import ast
import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import celedger
import celedger.child
from celedger.child import log
from celedger.system.process import SUPERVISOR
from celedger.trial.journal import inode

ROOT = Path(celedger.__file__).parents[1]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "journal.jsonl"
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.set_inheritable(fd, True)
    monkeypatch.setenv("CELEDGER_FD", str(fd))
    monkeypatch.delenv("CELEDGER_INODE", raising=False)
    yield path
    os.close(fd)


@pytest.fixture
def verified(journal: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal as a trial has it: by its path and inode, too."""
    monkeypatch.setenv("CELEDGER_JOURNAL", str(journal))
    monkeypatch.setenv("CELEDGER_INODE", inode(int(os.environ["CELEDGER_FD"])))
    return journal


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def python(code: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        close_fds=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,  # type: ignore[call-overload]
    )


def test_a_report_is_one_json_line(journal: Path) -> None:
    log(epoch=3, val_loss=0.41, fingerprint="9f3c")
    log(loss=2)
    assert journal.read_text() == (
        '{"epoch": 3, "val_loss": 0.41, "fingerprint": "9f3c"}\n{"loss": 2}\n'
    )


def test_scalars_of_other_libraries_become_numbers(journal: Path) -> None:
    class Lazy:  # as a torch scalar: `.item()` and nothing of json's
        def item(self) -> float:
            return 0.25

    log(
        epoch=np.int64(1),  # type: ignore[arg-type]
        a=np.float32(0.5),
        b=np.float64(0.1),
        c=Lazy(),
        d=np.array([3.0]),
        e=True,
        f=np.bool_(False),
    )
    text = journal.read_text()
    assert json.loads(text) == {
        "epoch": 1, "a": 0.5, "b": 0.1, "c": 0.25, "d": 3.0, "e": 1, "f": 0
    }  # fmt: skip
    assert "true" not in text and "false" not in text


def test_what_is_not_finite_is_kept(journal: Path) -> None:
    log(epoch=0, a=math.nan, b=math.inf, c=np.float32(-math.inf))
    assert journal.read_text() == '{"epoch": 0, "a": NaN, "b": Infinity, "c": -Infinity}\n'


@pytest.mark.parametrize("value", [object(), np.zeros(2), {1, 2}])
def test_a_value_that_is_no_number_is_named(journal: Path, value: object) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        log(epoch=0, loss=value)
    assert journal.read_text() == ""


def test_a_line_past_a_mebibyte_is_refused(journal: Path) -> None:
    with pytest.raises(ValueError, match="1048576"):
        log(epoch=0, fingerprint="x" * (1 << 20))
    assert journal.read_text() == ""


def test_without_celedger_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELEDGER_FD", raising=False)
    log(epoch=0, loss=object())  # not even a check: the call can stay in a script for ever
    monkeypatch.setenv("CELEDGER_FD", "")
    log(epoch=0, loss=1.0)


def test_a_closed_descriptor_that_somebody_named_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    os.close(fd)
    monkeypatch.setenv("CELEDGER_FD", str(fd))
    monkeypatch.delenv("CELEDGER_INODE", raising=False)
    with pytest.raises(OSError, match="did not take this report"):
        log(epoch=0, loss=1.0)


def test_kill_loses_nothing_that_returned(journal: Path) -> None:
    for at in (1, 57, 1000):
        journal.write_text("")
        child = python(
            """
            import os
            from celedger.child import log
            for epoch in range(10**9):
                log(epoch=epoch, loss=1 / (epoch + 1))
                os.write(1, b".")  # said only after log returned
            """,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        returned = 0
        while returned < at:
            returned += len(os.read(child.stdout.fileno(), 1))
        child.send_signal(signal.SIGKILL)
        returned += len(child.stdout.read())
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        epochs = [line["epoch"] for line in lines(journal)]
        assert epochs == list(range(len(epochs)))
        assert returned <= len(epochs) <= returned + 1


def test_forked_writers_do_not_mix_their_lines(journal: Path) -> None:
    writers, reports = 6, 300
    children = []
    for writer in range(writers):
        pid = os.fork()
        if pid == 0:
            for epoch in range(reports):
                log(epoch=epoch, writer=writer, fingerprint=str(writer) * (100 + 40 * writer))
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    seen = lines(journal)
    assert len(seen) == writers * reports
    for writer in range(writers):
        own = [line for line in seen if line["writer"] == writer]
        assert [line["epoch"] for line in own] == list(range(reports))
        assert all(set(str(line["fingerprint"])) == {str(writer)} for line in own)


def test_a_process_that_lost_its_descriptors_finds_the_journal(
    verified: Path, tmp_path: Path
) -> None:
    """torchrun and multiprocessing's spawn close what they inherit; the numbers may then be
    another file's, which must not be written to. That holds for what `log` opened, too."""
    log(epoch=0)
    other = tmp_path / "other"
    child = python(
        f"""
        import os
        from celedger.child import log
        fd = int(os.environ["CELEDGER_FD"])
        os.close(fd)
        log(epoch=1)
        for epoch in 2, 3:
            os.closerange(3, 64)
            for _ in range(3, 64):
                os.open({str(other)!r}, os.O_CREAT | os.O_WRONLY)
            log(epoch=epoch)
        """
    )
    assert child.wait() == 0
    assert [line["epoch"] for line in lines(verified)] == [0, 1, 2, 3]
    assert other.read_text() == ""


def test_a_journal_that_is_gone_or_replaced_is_an_error(verified: Path, tmp_path: Path) -> None:
    """A process that has no descriptor of it has nowhere to write."""
    code = """
        from celedger.child import log
        try:
            log(epoch=0, loss=1.0)
        except OSError as error:
            print(error)
    """
    verified.rename(tmp_path / "moved")
    for text in (b"No such file", b"is now another file"):
        child = python(
            f"import os; os.close(int(os.environ['CELEDGER_FD']))\n{textwrap.dedent(code)}",
            stdout=subprocess.PIPE,
        )
        output, _ = child.communicate()
        assert text in output
        verified.touch()
    assert verified.read_text() == (tmp_path / "moved").read_text() == ""


def test_a_full_disk_is_an_error_and_costs_no_later_report(journal: Path) -> None:
    """A file-size limit cuts a write as a full disk does: in the middle of a line."""
    log(epoch=0)
    child = python(
        """
        import resource
        from celedger.child import log
        whole = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30, whole[1]))
        try:
            log(epoch=1, loss=0.123456789)
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
        log(epoch=2)
        """,
        stdout=subprocess.PIPE,
    )
    said, _ = child.communicate()
    assert child.returncode == 0
    assert b"celedger's journal did not take this report" in said
    first, torn, last = journal.read_text().splitlines()
    assert (first, last) == ('{"epoch": 0}', '{"epoch": 2}')
    assert torn.startswith('{"epoch": 1')


def test_the_child_side_runs_on_python_3_8() -> None:
    for file in (ROOT / "celedger" / "child").glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        assert any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
        )  # newer annotations must stay unevaluated


def test_importing_the_child_side_brings_only_the_standard_library() -> None:
    child = python(
        """
        import sys
        before = set(sys.modules)
        import celedger.child
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        ours = {name for name in sys.modules if name.startswith("celedger")}
        print(sorted(new - set(sys.stdlib_module_names)), sorted(ours))
        """,
        stdout=subprocess.PIPE,
    )
    said, _ = child.communicate()
    assert said.decode().strip() == "['celedger'] ['celedger', 'celedger.child']"


def test_a_call_costs_microseconds(journal: Path) -> None:
    """The target is 10 µs; CPU time and a wide margin here, so that
    only another order of magnitude fails."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for epoch in range(5000):
        log(epoch=epoch, train_loss=0.123456789, val_loss=0.987654321, val_accuracy=0.5, speed=1e4)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent / 5000 < 100e-6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux records what is read")
@pytest.mark.parametrize("inherited", [True, False])
def test_no_report_returns_once_the_supervisor_was_killed(
    tmp_path: Path, verified: Path, inherited: bool
) -> None:
    """Its end closes what served the recorded calls, `fstat` among them: no descriptor can be
    verified, and each may be another file's by now. Children of a training live on for a moment."""
    other = tmp_path / "other"
    code = f"""
        import ctypes, os
        from celedger.child import log
        fd = int(os.environ["CELEDGER_FD"])
        own = os.open({str(other)!r}, os.O_CREAT | os.O_WRONLY)
        if not {inherited}:
            os.dup2(own, fd)
        log(epoch=0, loss=2.0)
        ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG: outlive that moment
        os.kill(os.getppid(), 9)
        refused = False
        while not refused:
            try:
                os.stat(".")
            except OSError:
                refused = True
        os.dup2(own, fd)
        try:
            log(epoch=1, loss=2.0)
        except OSError as error:
            print(error, flush=True)
    """
    (control, hold), (ours, status) = os.pipe(), os.pipe()
    tree = tmp_path / "tree"
    tree.mkdir()
    order = {
        "control": control, "status": status, "argv": [sys.executable, "-c", textwrap.dedent(code)],
        "program": sys.executable, "record": str(tmp_path / "reads"), "recorded": str(tree),
        "cores": [],
        "packages": "", "writable": [], "locale": "",
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), json.dumps(order)],
        cwd=tree, pass_fds=(control, status, int(os.environ["CELEDGER_FD"])),
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert b"the supervisor of this trial was killed" in process.stdout.read()
    for fd in (control, hold, ours, status):
        os.close(fd)
    assert lines(verified) == [{"epoch": 0, "loss": 2.0}]
    assert other.read_text() == ""
