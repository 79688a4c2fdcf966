"""What `doctor` says of the recorder and the kernel."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest

from celedger.cli import setup
from celedger.system import path_recorder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder is Linux's")


@pytest.mark.parametrize("release", ["5.15.0-generic", "6.18.44", "6.19-rc1", "7.0.1-arch"])
def test_doctor_says_where_the_kernel_is_newer_than_the_recorder(release: str) -> None:
    machine = next(iter(path_recorder.ARCHITECTURES))
    uname = os.uname_result(("Linux", "host", release, "#1", machine))
    with mock.patch.object(os, "uname", return_value=uname):
        said = setup._recorder()
    assert said.startswith("knows the system calls of Linux 6.18")
    assert ("is not re-used" in said) == (release[:4] in ("6.19", "7.0."))
