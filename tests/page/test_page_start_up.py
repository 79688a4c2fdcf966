"""What the page imports: the worker writes it after each job."""

from __future__ import annotations

import subprocess
import sys


def test_the_page_imports_no_search() -> None:
    code = "import sys, celedger.page.page; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"celedger.judge.bisection", "matplotlib"}


def test_its_help_imports_nothing_to_make_it() -> None:
    code = (
        "import sys\nfrom celedger.cli.app import run\nrun(['report', '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stderr.split()} & {"jinja2", "numpy", "matplotlib", "psutil", "sqlite_utils"}
