"""Without a GPU the targets of one say so and end well; tests/gpu must still be importable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import load_script

from celedger.system import devices

ROOT = Path(__file__).resolve().parents[1]


def test_the_report_says_that_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "gpus", list)
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["make_gpu_report.py", "--output", str(page)])
    load_script(ROOT / "scripts" / "make_gpu_report.py").main()
    assert capsys.readouterr().out.startswith("no GPU: ")
    assert not page.exists()


@pytest.mark.matrix
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="asks what a machine without one does")
def test_the_tests_of_a_gpu_are_collected_where_torch_has_cuda(tmp_path: Path) -> None:
    """A `has_cuda` that says yes stands in for the device."""
    plugin = tmp_path / "pretends.py"
    plugin.write_text(
        "import os, subprocess\n"
        "real = os.path.exists\n"
        "os.path.exists = lambda path: path == '/dev/nvidiactl' or real(path)\n"
        "run = subprocess.run\n"
        "yes = subprocess.CompletedProcess((), 0)\n"
        "subprocess.run = lambda argv, **kw: "
        "yes if 'is_available' in str(argv) else run(argv, **kw)\n"
    )
    for words, status, answer in (((), 5, "no tests"), (("-p", "pretends"), 0, "tests collected")):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "tests/gpu",
             *words],
            cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert (done.returncode, answer in done.stdout) == (status, True), done.stdout
