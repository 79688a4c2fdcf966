"""Look names up instead of listing folders, so that the recorder of named paths learns which
modules a training looked for, instead of a whole folder that it may have read. It is loaded in
every Python of a traced trial as `sitecustomize`, beside `celedger` on PYTHONPATH, and in a warm
trial by `launcher.py`. A Python that starts without it lists folders as usual. It also attaches the
step meter to torch's optimisers, and in a diagnostic run the probe. Standard library only, Python
3.8 and later.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # an import here costs time in every Python of a trial
if TYPE_CHECKING:
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


OPTIMIZER = "torch.optim.optimizer"
_CHUNK = 1 << 18  # bytes: more than nearly all byte-code
_real: set[str] = set()  # folders of packages whose paths lead by no link
_found: list[tuple[str, str]] = []  # modules that `inspect` does not know yet, and their files


class SourceFileLoader(_machinery.SourceFileLoader):  # type: ignore[misc]
    """Load what Python's own loader loads, without a second `stat` of the source and without two of
    the open byte-code."""

    __slots__ = ("status",)  # of the source, as the finder just saw it; `==` compares the __dict__

    def get_code(self, fullname: str) -> Any:
        _tell_inspect()
        return super().get_code(fullname)

    def path_stats(self, path: str) -> Any:
        status, self.status = getattr(self, "status", None), None
        if status is None or path != self.path:
            return super().path_stats(path)
        return {"mtime": status.st_mtime, "size": status.st_size}

    def get_data(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(fd, _CHUNK), b""))
        finally:
            os.close(fd)


def _tell_inspect() -> None:
    """Enter what was imported in the tables of `inspect.getmodule`, as it would do itself. It looks
    at ten paths for each module: half of all that are named while torch is imported."""
    inspect = sys.modules.get("inspect")
    paths = getattr(inspect, "_filesbymodname", None)
    modules = getattr(inspect, "modulesbyfile", None)
    if paths is None or modules is None:  # not yet
        return
    while _found:
        module, path = _found.pop()
        if module in sys.modules:
            paths[module], modules[path] = path, module


class PackageFinder(_machinery.FileFinder):  # type: ignore[misc]
    """Find what Python's own finder finds in a folder of installed packages. While the folder has
    the file of a module, the folder itself is not looked at again."""

    def __init__(self, folder: str) -> None:
        loaders = (
            (SourceFileLoader if loader is _machinery.SourceFileLoader else loader, suffixes)
            for loader, suffixes in _machinery._get_supported_file_loaders()
        )
        super().__init__(folder, *loaders)
        self._path_mtime: float = -1  # as in Python's own: to be listed
        status = os.lstat(folder)
        link = stat.S_ISLNK(status.st_mode)
        if not stat.S_ISDIR(os.stat(folder).st_mode if link else status.st_mode):
            raise NotADirectoryError(folder)
        self._is_real = not link and (
            os.path.dirname(folder) in _real or os.path.realpath(folder) == folder
        )
        if self._is_real:
            _real.add(folder)

    def find_spec(self, fullname: str, target: Any = None) -> Any:
        spec = self._find_file(fullname, target) or super().find_spec(fullname, target)
        if fullname == OPTIMIZER and spec is not None:
            _measure_after(spec.loader)
        return spec

    def _find_file(self, fullname: str, target: Any) -> Any:
        """Return the spec of a module that is a regular file; None for all else."""
        stem = fullname.rpartition(".")[2]
        finder, locations, names = self, None, self._names()
        if stem in names:
            locations = [self.path + "/" + stem]
            finder, stem = _machinery.PathFinder._path_importer_cache(locations[0]), "__init__"
            if type(finder) is not PackageFinder:
                return None
            # Who lists the folder of a distribution has imported it, and it is only looked for yet.
            names = finder._names() if "." in fullname else None
        for suffix, loader in self._loaders:
            if names is None or stem + suffix in names:
                path = finder.path + "/" + stem + suffix
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if not stat.S_ISREG(status.st_mode):
                    return None
                spec = self._get_spec(loader, fullname, path, locations, target)
                if loader is SourceFileLoader:
                    spec.loader.status = status
                if finder._is_real and loader is not _machinery.SourcelessFileLoader:
                    _found.append((fullname, path))
                return spec
        return None

    def _names(self) -> Any:
        if self._path_mtime == -1:
            try:
                self._path_mtime = os.stat(self.path).st_mtime
            except OSError:
                return ()
            self._fill_cache()
        return self._path_cache


def _measure_after(loader: Any) -> None:
    """Attach the step meter once this loader has made torch's module of optimisers."""
    load = loader.exec_module

    def load_and_measure(module: Any) -> None:
        load(module)
        measure_steps(module)

    loader.exec_module = load_and_measure


def measure_steps(optimizer: Any) -> None:
    try:
        from celedger.child import step_meter
    except ImportError:  # another `celedger` comes first on PYTHONPATH
        return
    step_meter.attach(optimizer)


def install() -> None:
    """Install the finders in this process and those it forks. Folders of the interpreter, of
    installed packages and of this file are listed: no commit changes them, and each name costs a
    call."""
    find = NameFinder.path_hook(*_machinery._get_supported_file_loaders())
    package = os.path.dirname(os.path.abspath(__file__))
    prefixes = (sys.prefix + "/", sys.base_prefix + "/", package + "/")

    def hook(folder: str) -> Any:
        if not (folder + "/").startswith(prefixes) and "/site-packages/" not in folder + "/":
            return find(folder)
        if not folder.startswith("/") or folder.endswith("/"):
            raise ImportError("left to the finder of Python")
        try:
            return PackageFinder(folder)
        except OSError as error:  # a zip file
            raise ImportError from error

    if sys.platform == "linux":
        zips = sys.modules["zipimport"].zipimporter
        hooks = sys.path_hooks
        hooks.insert(hooks.index(zips) if zips in hooks else max(len(hooks) - 1, 0), hook)
        sys.path_importer_cache.clear()


def _as_sitecustomize() -> None:
    """Import the environment's own module of that name next, as if this file did not exist. If
    there is none this raises ImportError, as `site` expects."""
    install()
    if "CELEDGER_PROBE" in os.environ:
        _attach_probe()
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    package = os.path.dirname(os.path.abspath(__file__))
    spec = _machinery.PathFinder.find_spec(__name__, path[path.index(package) + 1 :])
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
