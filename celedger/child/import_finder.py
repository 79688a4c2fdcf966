"""Look names up instead of listing folders, so that the recorder of named paths learns which
modules a training looked for, instead of a whole folder that it may have read. It is loaded in
every Python of a traced trial as `sitecustomize`, beside `celedger` on PYTHONPATH, and in a warm
trial by `launcher.py`. A Python that starts without it lists folders as usual. In a diagnostic run
it also attaches the probe. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # an import here costs time in every Python of a trial
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_machinery: Any = sys.modules["_frozen_importlib_external"]


class _Names:
    """A stand-in for the set of names in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        try:
            os.stat(self._folder + "/" + name)
        except (OSError, ValueError):  # a NUL
            return False
        return True


class NameFinder(_machinery.FileFinder):  # type: ignore[misc]
    def _fill_cache(self) -> None:
        self._path_cache = self._relaxed_path_cache = _Names(self.path or ".")


def install() -> None:
    """Install the finder in this process and those it forks. Folders of the interpreter, of
    installed packages and of this file are listed as usual: no commit changes them, and each name
    costs a call."""
    find = NameFinder.path_hook(*_machinery._get_supported_file_loaders())
    own = os.path.dirname(os.path.abspath(__file__))
    prefixes = (sys.prefix + "/", sys.base_prefix + "/", own + "/")

    def installed(folder: str) -> bool:
        return (folder + "/").startswith(prefixes) or "/site-packages/" in folder + "/"

    def hook(folder: str) -> Any:
        if installed(folder):
            raise ImportError("left to the finder of Python")
        return find(folder)

    if sys.platform == "linux":
        sys.path_hooks.insert(max(len(sys.path_hooks) - 1, 0), hook)
        sys.path_importer_cache.clear()
        _remember_real_folders(installed)


def _remember_real_folders(installed: Callable[[str], bool]) -> None:
    """Let `realpath` look at each installed folder once. `inspect.getmodule` resolves the file of
    every loaded module, part by part: half of all paths that are named while torch is imported."""
    resolve = os.path.realpath
    real: set[str] = set()

    def realpath(filename: Any, **options: Any) -> Any:
        if type(filename) is not str or options:
            return resolve(filename, **options)
        folder, _, name = filename.rpartition("/")
        if folder in real and name not in ("", ".", "..") and not os.path.islink(filename):
            return filename
        path = resolve(filename)
        if path == filename and installed(folder):
            real.add(folder)
        return path

    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(realpath, attribute, getattr(resolve, attribute))
    realpath.__wrapped__ = resolve  # type: ignore[attr-defined]
    os.path.realpath = realpath


def _as_sitecustomize() -> None:
    """Import the environment's own module of that name next, as if this file did not exist. If
    there is none this raises ImportError, as `site` expects."""
    install()
    if "CELEDGER_PROBE" in os.environ:
        _attach_probe()
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    own = os.path.dirname(os.path.abspath(__file__))
    spec = _machinery.PathFinder.find_spec(__name__, path[path.index(own) + 1 :])
    if spec is None or spec.loader is None:
        raise ImportError("No module named %r" % __name__, name=__name__)
    module: Any = type(sys)(__name__)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


def _attach_probe() -> None:
    if "celedger.child.attach" in sys.modules:
        return  # by another copy of this file
    try:
        from celedger.child import attach
    except ImportError:
        return  # another program that this training starts, with its own PYTHONPATH
    attach.install()


if __name__ == "sitecustomize":
    _as_sitecustomize()
