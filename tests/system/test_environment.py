"""The record of the environment, from real and from written-down interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celedger.base.errors import MachineError
from celedger.base.model import Environment
from celedger.system import environment
from celedger.system.devices import CPU, Device, Gpu
from celedger.system.environment import describe, resolve_interpreter
from celedger.system.process import capture

GPU = Gpu("GPU-1", "NVIDIA H200", 80 << 30, "550.54", "12.4", None)
CUDA = Device("GPU-1", "cuda:0", "GPU-1", GPU)


def described(
    packages: Mapping[str, str], device: Device = CPU, threads: int = 1, **more: Any
) -> Environment:
    """The environment of an interpreter that answers what is written here."""
    answer = {"implementation": "CPython", "version": "3.12.1", "packages": packages}
    answer |= {"excluded": [], "folders": []}
    with pytest.MonkeyPatch.context() as patch:
        environment._probe.cache_clear()
        patch.setattr(environment, "capture", lambda *_, **__: (0, json.dumps(answer), ""))
        return describe("python", device=device, threads=threads, repo_root=Path("/repo"), **more)


def test_this_interpreter_is_described_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counted(argv: Sequence[str], **options: Any) -> tuple[int, str, str]:
        asked.append(argv)
        return capture(argv, **options)

    monkeypatch.setattr(environment, "capture", counted)
    first, again = (
        describe(sys.executable, device=CPU, threads=1, repo_root=tmp_path) for _ in range(2)
    )
    packages = first.details["packages"]
    assert isinstance(packages, dict)
    assert "psutil" in packages
    assert "celedger" not in packages
    assert sys.version.split()[0] in str(first.details["python"])
    assert again == first
    assert len(asked) == 1


def test_the_fingerprint_is_that_of_the_stable_details_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = described({"torch": "2.12.0"}, CUDA)
    monkeypatch.setattr(environment.platform, "node", lambda: "elsewhere")
    monkeypatch.setattr(environment.platform, "release", lambda: "9.9.9")
    second = described({"torch": "2.12.0"}, CUDA)
    assert second.details["beside"] != first.details["beside"]
    assert second.fingerprint == first.fingerprint
    assert len(first.fingerprint) == 64
    json.dumps(dict(first.details))


def test_packages_device_threads_and_variables_make_other_environments() -> None:
    base = described({"torch": "2.12.0"}, CUDA)
    newer = replace(CUDA, gpu=replace(GPU, driver="560.1"))
    others = [
        described({"torch": "2.12.0"}, newer),
        described({"torch": "2.13.0"}, CUDA), described({"torch": "2.12.0", "numpy": "2"}, CUDA),
        described({"torch": "2.12.0"}, CPU), described({"torch": "2.12.0"}, CUDA, threads=2),
        described({"torch": "2.12.0"}, CUDA, variables={"OMP_WAIT_POLICY": "active"}),
    ]  # fmt: skip
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 7
    assert "variables" not in base.details


def test_settings_of_the_gpu_make_another_environment_and_its_twin_does_not() -> None:
    """`auto` takes any free GPU of a machine."""

    def on(**changes: Any) -> Environment:
        return described({}, replace(CUDA, gpu=replace(GPU, **changes)))

    capped, twin = on(settings={"power_limit": 400}), on(uuid="GPU-2")
    assert capped.fingerprint != on(settings={"power_limit": 700}).fingerprint
    assert capped.details["gpu_settings"] == {"power_limit": 400}
    assert twin.fingerprint == on().fingerprint
    assert twin.details["beside"]["device_uuid"] == "GPU-2"  # type: ignore[call-overload,index]


def test_what_moves_with_the_commits_is_no_part_of_the_environment(tmp_path: Path) -> None:
    repo = tmp_path / "my repo"
    site = repo / ".venv" / "lib" / "site-packages"  # inside the repository, yet an installation

    def install(name: str, origin: Mapping[str, object] | None = None, where: Path = site) -> None:
        folder = where / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))

    url = "file://" + str(repo / "lib").replace(" ", "%20")
    install("From_Index")
    install("from_here", {"url": url, "dir_info": {}})
    install("editable", {"url": "file:///else/where", "dir_info": {"editable": True}})
    install("from_elsewhere", {"url": "file:///else/where", "dir_info": {}})
    install("celedger")
    install("developed", where=repo / "src")  # as `setup.py develop` leaves it on the path
    interpreter = tmp_path / "python"
    path = os.pathsep.join([str(site), str(repo / "src")])
    interpreter.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' -S \"$@\"\n")
    interpreter.chmod(0o755)
    found = describe(str(interpreter), device=CPU, threads=1, repo_root=repo).details
    assert found["packages"] == {"from-index": "1.0", "from-elsewhere": "1.0"}
    assert found["beside"]["excluded"] == ["celedger", "editable", "from-here"]  # type: ignore[index]


def test_the_owners_of_modules_are_the_distributions_that_installed_them(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"

    def install(name: str, **files: str) -> None:
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        for file, text in files.items():
            (folder / file).write_text(text)

    install("by_package", RECORD="pack/__init__.py,sha256=x,1\n../../bin/pack,,\n")
    install("by_module", RECORD="by_module-1.0.dist-info/RECORD,,\nsolo.py,,\n")
    install("by_extension", RECORD="fast.cpython-311-x86_64-linux-gnu.so,,\n")
    install("by_quoted_file", RECORD='"quoted/a,b.txt",,\n')
    install("by_list", RECORD="hidden/__init__.py,,\n", **{"top_level.txt": "listed\n"})
    install("by_nothing")
    (site / "old.egg-info").mkdir()
    (site / "old.egg-info" / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old\n")
    (site / "old.egg-info" / "SOURCES.txt").write_text("ancient/__init__.py\n")
    (site / "ancient").mkdir()
    (site / "ancient" / "__init__.py").touch()
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\nPYTHONPATH='{site}' exec '{sys.executable}' -S \"$@\"\n")
    interpreter.chmod(0o755)
    owned_by = {
        "pack": "by-package", "solo": "by-module", "fast": "by-extension",
        "quoted": "by-quoted-file", "listed": "by-list", "ancient": "old",
    }  # fmt: skip
    for module, owner in owned_by.items():
        assert environment.owners(str(interpreter), frozenset({module, "none"})) == {owner}
    assert environment.owners(str(interpreter), frozenset({"hidden", "bin", ""})) == frozenset()
    # What distutils and setuptools left in their time: a file, and a folder of a whole egg.
    (site / "a_file-1.2.egg-info").write_text("Metadata-Version: 1.0\nName: A_file\nVersion: 1.2\n")
    (site / "broken-1.0.dist-info").mkdir()
    probed = environment.describe(
        str(interpreter), device=CPU, threads=1, repo_root=tmp_path / "elsewhere"
    )
    packages = probed.details["packages"]
    assert packages["a-file"] == "1.2"
    assert packages["by-quoted-file"] == "1.0"
    assert packages["old"] == ""
    assert "broken" not in packages


@pytest.mark.parametrize("program", [environment._PROBE, environment._OWNERS])
def test_the_probes_still_run_on_python_3_8(program: str) -> None:
    compile(program, "probe", "exec")
    import ast

    ast.parse(program, feature_version=(3, 8))


def test_an_interpreter_is_a_name_on_the_path_or_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mypython"
    mine.symlink_to(sys.executable)
    assert resolve_interpreter("python") == sys.executable
    assert resolve_interpreter("mypython", str(tmp_path)) == str(mine)
    assert resolve_interpreter("./mypython") == str(mine)  # the link itself: it may be a venv's
    monkeypatch.chdir("/")
    assert resolve_interpreter("./mypython", root=tmp_path) == str(mine)
    for name in ("no-such-python", "./absent", ""):
        with pytest.raises(MachineError, match="no interpreter"):
            resolve_interpreter(name)


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    for program in ("true", "false", "cat"):
        path = subprocess.check_output(["sh", "-c", f"command -v {program}"], text=True).strip()
        with pytest.raises(MachineError, match=program):
            describe(path, device=CPU, threads=1, repo_root=tmp_path)


def test_modules_in_the_current_folder_do_not_answer_for_an_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("json", "email", "urllib", "platform"):
        (tmp_path / f"{name}.py").write_text("1 / 0\n")
    found = describe(sys.executable, device=CPU, threads=1, repo_root=tmp_path)
    assert found.details["packages"]
