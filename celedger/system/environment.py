"""Everything of a measurement but the code: interpreter, packages, machine, device. Its stable
part has a fingerprint; equal fingerprints may be compared, others start a new baseline. Must
not know what is measured.

Left out of the fingerprint, because they change without changing what a training computes or
how fast: the kernel's build, the host's name, the size of its memory, temperatures, clocks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import psutil

from celedger.base.errors import MachineError
from celedger.base.model import Environment
from celedger.system.devices import Device
from celedger.system.process import capture

PROBE_TIMEOUT = 60.0  # a cold network file system may need most of it

# Runs in the trial's interpreter, which may be older than ours (3.8) and has no celedger. A
# package that is installed in editable form, or from a folder of the repository, is part of
# the code: its version moves with the commits. One found by a path inside the repository that
# is no installation (an egg-info of `setup.py develop`) is, too.
_PROBE = r"""
import sys
if sys.version_info < (3, 8):
    sys.exit("it is Python %d.%d" % sys.version_info[:2])
sys.path = [entry for entry in sys.path if entry]  # the current folder may have a json.py
import json, os, platform, re
from urllib.parse import unquote
root = os.path.realpath(sys.argv[1])
def inside(path):
    path = os.path.realpath(path)
    return path == root or path.startswith(root + os.sep)
def installed(path):
    return os.path.basename(path) in ("site-packages", "dist-packages") or not inside(path)
def text(*names):
    try:
        with open(os.path.join(*names), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
def metadata(entry):  # importlib.metadata finds the same ones; importing it takes longest of all
    names = os.listdir(entry) if os.path.isdir(entry) else []
    for one in sorted(os.path.join(entry, name) for name in names):
        if one.endswith(".dist-info"):
            yield one, text(one, "METADATA")
        elif one.endswith((".egg-info", "EGG-INFO")):
            yield one, text(one, "PKG-INFO") or text(one)
packages, part = {}, set()
for entry in [p for p in sys.path if p and installed(p)]:
    for one, fields in metadata(entry):
        name, version = (
            (re.findall(r"^%s:[ \t]*(.*\S)" % word, fields, re.M) or [""])[0]
            for word in ("Name", "Version")
        )
        name = re.sub(r"[-_.]+", "-", name).lower()
        if not name or name in packages or name in part:
            continue
        origin = json.loads(text(one, "direct_url.json") or "{}")
        url = origin.get("url", "")
        local = unquote(url[7:]) if url.startswith("file://") else None
        if name == "celedger" or origin.get("dir_info", {}).get("editable"):
            part.add(name)
        elif local and inside(local):
            part.add(name)
        else:
            packages[name] = version
json.dump({
    "folders": [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")],
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "packages": packages,
    "excluded": sorted(part),
}, sys.stdout)
"""


# Which distributions have one of these top-level names. What is not a module, such as metadata that
# others look through, has none.
_OWNERS = r"""
import sys
sys.path = [entry for entry in sys.path if entry]
import json, re
from importlib.metadata import distributions
names, owners = set(json.loads(sys.argv[1])), set()
for one in distributions():
    tops = set((one.read_text("top_level.txt") or "").split())
    # Not `one.files`, which makes an object of every line, and from 3.12 on looks each file up.
    tops = tops or set(re.findall(r'^"?([^/.,"\n]+)', one.read_text("RECORD") or "", re.M))
    tops = tops or {file.parts[0].partition(".")[0] for file in one.files or ()}
    if tops & names:
        owners.add(re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower())
json.dump(sorted(owners), sys.stdout)
"""


def resolve_interpreter(name: str, path: str | None = None, root: Path | None = None) -> str:
    """Return the absolute path of an interpreter: `python` is the one celedger runs in, anything
    else a path, relative to `root` (default: the current folder), or a command on `path` (default:
    PATH). Raises MachineError when there is none."""
    if name == "python":
        return sys.executable
    path_name = os.path.expanduser(name)  # noqa: PTH111 (`./x` must stay)
    if root is not None and "/" in path_name:
        path_name = os.path.join(root, path_name)  # noqa: PTH118
    match = shutil.which(path_name, path=path)
    if match is None:
        raise MachineError(
            f"there is no interpreter {name!r}", "correct `python` in the suite, or install it"
        )
    return os.path.abspath(match)  # noqa: PTH100 (a venv's link must not be resolved)


def describe(
    python: str,
    *,
    device: Device,
    threads: int,
    repo_root: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Environment:
    """Return the environment of trials run by the interpreter `python` on `device`. The interpreter
    is asked once per process. Raises MachineError when it does not answer."""
    probe = _probe(python, repo_root)
    gpu = device.gpu
    stable: dict[str, object] = {
        "python": f"{probe['implementation']} {probe['version']}",
        "packages": probe["packages"],
        "os": _system(),
        "architecture": platform.machine(),
        "cpu": _cpu(),
        "cores": len(cores()),
        "threads": threads,
        "device": gpu.name if gpu else "cpu",
        "driver": gpu.driver if gpu else None,
        "cuda": gpu.cuda if gpu else None,
    }
    uncounted: dict[str, object] = {
        "interpreter": python,
        "excluded": probe["excluded"],
        "host": platform.node(),
        "kernel": platform.release(),
        "memory": psutil.virtual_memory().total,
        "gpu_memory": gpu.memory if gpu else None,
    }
    if gpu:
        stable["gpu_settings"] = dict(gpu.settings)
        uncounted["device_uuid"] = gpu.uuid  # `auto` takes any of them
    if variables:
        stable["variables"] = dict(variables)
    text = json.dumps(stable, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Environment(fingerprint, {**stable, "beside": uncounted})


def package_folders(python: str) -> tuple[str, ...]:
    """Return where the distributions of an interpreter lie that was described."""
    return _folders.get(python, ())


_folders: dict[str, tuple[str, ...]] = {}


@functools.cache
def _probe(python: str, repo_root: Path) -> dict[str, Any]:
    answer: dict[str, Any] = ask(python, _PROBE, str(repo_root))
    _folders[python] = tuple(answer["folders"])
    return answer


@functools.cache
def owners(python: str, names: frozenset[str]) -> frozenset[str]:
    """Return the distributions that have a module of one of these names. Raises MachineError."""
    return frozenset(ask(python, _OWNERS, json.dumps(sorted(names))))


def ask(python: str, code: str, argument: str) -> Any:
    """Return what a program prints as JSON that an interpreter runs. Raises MachineError."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    status, out, err = capture((python, "-c", code, argument), env=env, timeout=PROBE_TIMEOUT)
    with suppress(ValueError):
        if status == 0:
            return json.loads(out)
    reason = (err.strip() or out.strip() or f"exit status {status}").splitlines()[-1]
    raise MachineError(
        f"the interpreter {python} cannot describe itself: {reason}",
        "a suite's `python` must be Python 3.8 or newer",
    )


def _system() -> str:
    """`Linux debian 12`: the distribution, whose libraries a training may load, not the kernel."""
    if sys.platform != "linux":
        return f"{platform.system()} {platform.release()}"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return " ".join(filter(None, ["Linux", release.get("ID"), release.get("VERSION_ID")]))


def _cpu() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return match[1].strip()
    return platform.processor()


def cores() -> list[int]:
    """Return the numbers of the cores that this process, and so a trial, may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    else:  # noqa: RET505 (mypy calls a line after the if unreachable)
        return list(range(os.cpu_count() or 1))


# --- the Python that a repository's trainings use: where it is, and what it can import


_FOLDERS = (".venv", "venv")
_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")

# Runs in that Python, which may be older than ours (3.8). What a module prints on import is no
# answer.
_IMPORT = r"""
import sys
sys.path = [entry for entry in sys.path if entry]
import json
answer, sys.stdout = sys.stdout, sys.stderr
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        __import__(name)
    except BaseException as error:
        failed[name] = "%s: %s" % (type(error).__name__, error)
json.dump(failed, answer)
"""
_LACKING = """
import sys, json
from importlib.util import find_spec
json.dump([name for name in json.loads(sys.argv[1]) if not find_spec(name)], sys.stdout)
"""


def interpreter_of(root: Path, env: Mapping[str, str], script: str = "") -> str:
    """Return the interpreter of the environment that belongs to a script of a repository, or else
    is active: as a path from its root where it lies there. "" where there is none but celedger's
    own. An environment may lie in each folder between the script and the root."""
    places = [root / folder for folder in PurePath(script).parents] or [root]
    folders = [place / name for place in places for name in _FOLDERS]
    folders += [Path(env[name]) for name in _VARIABLES if env.get(name)]
    for folder in folders:
        python = folder / "bin" / "python"
        if os.access(python, os.X_OK) and folder.is_absolute():
            if folder.resolve() == Path(sys.prefix).resolve():
                return ""
            return str(python.relative_to(root) if python.is_relative_to(root) else python)
    return ""


def failed_imports(python: str, modules: Iterable[str]) -> dict[str, str]:
    """Import modules in an interpreter. Return why, by name, for those that fail. Raises
    MachineError where it does not answer."""
    failed: dict[str, str] = ask(python, _IMPORT, json.dumps(list(modules)))
    return failed


def not_installed(python: str, modules: Iterable[str]) -> list[str]:
    """Return those of these top-level modules that an interpreter does not have; it imports none.
    Raises MachineError where it does not answer."""
    lacking: list[str] = ask(python, _LACKING, json.dumps(sorted(modules)))
    return lacking
