"""Compose the environment variables of a trial's process, and the copy of the child side that any
interpreter can import. Nothing of the user's working tree may enter here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import translate
from functools import cache
from pathlib import Path

from celedger.base import PACKAGE
from celedger.base.errors import explained
from celedger.base.model import Task

# Of the user's variables a training gets these, and those that its suite names in `pass_env`. The
# settings are part of its environment, as are those of the suite; …
SETTINGS = (
    "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "PYTORCH_*", "TORCH*",
    "TRITON_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "MALLOC_*",
    "LD_PRELOAD",
)  # fmt: skip
# … these name places or the user: they count only for the re-use of results.
PLACES = (
    "PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*",
    "TZ", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
    "HF_*", "TRANSFORMERS_*", "*_PROXY", "*_proxy", "SSL_CERT_*", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "CC", "CXX", "CPP", "LD", "AR", "*FLAGS", "CPATH", "LIBRARY_PATH",
    "PKG_CONFIG_PATH", "CMAKE_*",
)  # fmt: skip
# A pattern never matches a secret: to pass one, `pass_env` must have its whole name.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(?:^|_)KEY(?:_|$)|_AUTH", re.IGNORECASE)
# One thread count for every library that reads one: OpenMP, MKL, OpenBLAS, Accelerate, numexpr.
_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS",
)  # fmt: skip
UNTRACED = "untraced"  # a folder of the child copy
# Variables with the same value for every user.
_GIVEN = frozenset({
    *_THREADS, "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
})  # fmt: skip


def passed(base: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the user's variables that match any of these names or patterns. PATH is without the
    folder of git's own programs, which git puts first in a hook."""
    patterns = tuple(patterns)
    matches = _any_of(patterns)
    folders = base.get("PATH", "").split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if Path(folder).name != "git-core")
    return {
        name: path if name == "PATH" else value
        for name, value in base.items()
        if name not in _GIVEN and (name in patterns or (matches(name) and not _SECRET.search(name)))
    }


@cache
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


def comparable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without celedger's own."""
    return {k: v for k, v in variables.items() if not k.startswith("CELEDGER_")}


def settings(base: Mapping[str, str], task: Task) -> dict[str, str]:
    """Return the variables that are part of a task's environment. Those that its suite names are
    hashed: they may hold a secret, and a ledger is shared."""
    settings_passed = passed(base, SETTINGS)
    hashed = {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:12]
        for name, value in passed(base, task.pass_env).items()
        if name not in settings_passed
    }
    return dict(sorted({**settings_passed, **hashed}.items()))


def fingerprint(base: Mapping[str, str], task: Task) -> str:
    """Return a hash of the user's variables that a training gets (16 hex digits)."""
    variables = comparable(passed(base, (*SETTINGS, *PLACES, *task.pass_env)))
    text = repr(sorted(variables.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def variables(
    base: Mapping[str, str],
    task: Task,
    *,
    tree: Path,
    child: Path,
    visible_devices: str,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of a training or build, for a user with the variables `base`."""
    roots = [str(tree / root) for root in task.pythonpath]
    # The tree and other copies of celedger's, such as the suite's, are in a folder of the user's
    # .git. A ceiling stops a search only below it, so each of them has a ceiling above it.
    ceilings = list(tree.parents)[:3]
    return {
        **passed(base, (*SETTINGS, *PLACES, *task.pass_env)),
        # The working directory of the user's shell is the user's work tree.
        "PWD": str(tree),
        "PYTHONPATH": os.pathsep.join([*roots, str(child if task.trace else child / UNTRACED)]),
        # No byte-code is written, and a checkout is cleaned before it moves: a .pyc of a
        # commit left within the same second, with the same size, cannot exist.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        # Two fixed workspaces make cuBLAS deterministic (CUDA toolkit, cuBLAS, "Results
        # reproducibility").
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": visible_devices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A torch for ROCm ignores an empty CUDA_VISIBLE_DEVICES, and celedger measures no GPU of
        # AMD's.
        "HIP_VISIBLE_DEVICES": "-1",
        # `git status` in a trial need not write its index, so the next checkout is faster.
        "GIT_OPTIONAL_LOCKS": "0",
        # Git commands of a trial that lost its own .git, or that run in one of those copies, must
        # not use the user's repository.
        "GIT_CEILING_DIRECTORIES": os.pathsep.join(map(str, ceilings)),
        **dict.fromkeys(_THREADS, str(task.threads)),
        **extra,
    }


def child_copy(cache: Path, probes: Path | None = None) -> Path:
    """Return a folder, to be put on PYTHONPATH, that holds only `celedger.child` and a
    `sitecustomize` (`import_finder.py`); its folder UNTRACED has no `sitecustomize`. With a folder
    of `probes`, it has that as `celedger_probes`: a checkout of celedger itself has a `celedger`
    that comes first. It is named by its content: an upgrade makes another."""
    import compileall
    from py_compile import PycInvalidationMode

    content = hashlib.sha256(UNTRACED.encode())
    sources = [PACKAGE / "__init__.py", *sorted((PACKAGE / "child").rglob("*.py"))]
    files = {file.relative_to(PACKAGE.parent): file for file in sources}
    for file in sorted(probes.glob("*.py")) if probes is not None else ():
        files[Path("celedger_probes", file.name)] = file
    for name, file in files.items():
        content.update(str(name).encode() + b"\0" + file.read_bytes())
    home = cache / content.hexdigest()[:16]
    if home.exists():
        return home
    with explained(f"{cache} cannot be written"):
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache))
        for name, file in files.items():
            target = draft / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        shutil.copyfile(PACKAGE / "child" / "import_finder.py", draft / "sitecustomize.py")
        (draft / UNTRACED).mkdir()
        for package in {name.parts[0] for name in files}:
            (draft / UNTRACED / package).symlink_to(Path("..", package))
        # No trial writes byte-code itself.
        mode = PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(draft, quiet=2, invalidation_mode=mode, stripdir=draft)
        with suppress(OSError):  # another process was faster, with the same content
            draft.rename(home)
        shutil.rmtree(draft, ignore_errors=True)
    return home
