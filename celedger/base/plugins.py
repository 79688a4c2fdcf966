"""The verbs, engines, probes and signers of installed packages, named by their entry points
(https://packaging.python.org/specifications/entry-points/). The three wings of celedger are listed
in the same way, in its pyproject.toml, and no other part of it knows them.

`importlib.metadata` takes longer to import than most verbs take to answer, so the files are read
here. In a checkout of celedger the file itself counts, not what an editable install once made of
it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from celedger.base import PACKAGE
from celedger.base.errors import MachineError

VERBS, ENGINES, PROBES = "celedger.verbs", "celedger.engines", "celedger.probes"
SIGNERS = "celedger.signers"
_CHECKOUT = PACKAGE.parent / "pyproject.toml"
_OWN = "celedger-"  # how the folder with celedger's own metadata begins
_GROUPS = "celedger."  # how the names of the groups begin


class Plugin(NamedTuple):
    """One entry point: `module`, and the `attribute` in it ("" for the module itself). `listed` is
    the file that names it."""

    name: str
    module: str
    attribute: str
    listed: Path

    def load(self) -> Any:
        """Import the module, and return what is meant in it. Raises MachineError."""
        try:
            module = importlib.import_module(self.module)
            return getattr(module, self.attribute) if self.attribute else module
        except Exception as error:  # a package of somebody else's
            raise self.broken(f"{type(error).__name__}: {error}") from error

    def folder(self) -> Path:
        """Return the folder of a package, which is not imported. Raises MachineError."""
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(self.module)
            for folder in (spec.submodule_search_locations if spec else None) or ():
                return Path(folder)
        raise self.broken("there is no package of that name")

    def lies_in(self, *folders: Path) -> bool:
        """Return True for a package that lies in one of these folders, and is not celedger."""
        if self.listed == _CHECKOUT or self.listed.parent.name.startswith(_OWN):
            return False
        places = [str(self.listed)]
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(self.module.partition(".")[0])
            if spec is not None:
                places += [*(spec.submodule_search_locations or ()), spec.origin or ""]
        roots = [folder.resolve() for folder in folders]
        return any(Path(p).resolve().is_relative_to(root) for p in places if p for root in roots)

    def broken(self, reason: str) -> MachineError:
        problem = f"{self.name} ({self.module}) cannot be loaded"
        return MachineError(
            f"{problem}: {' '.join(reason.split())}", f"it is named in {self.listed}"
        )


def installed(group: str) -> dict[str, Plugin]:
    """Return the entry points of a group by name: celedger's own first, then those of other
    packages in the order of `sys.path`. The first of a name counts."""
    return _installed(tuple(sys.path)).get(group, {})


@cache
def _installed(path: tuple[str, ...]) -> dict[str, dict[str, Plugin]]:
    groups: dict[str, dict[str, Plugin]] = {}
    others = [row for folder in dict.fromkeys(path) for row in _in_folder(Path(folder).absolute())]
    for group, name, value, file in [*_own(), *others]:
        module, _, attribute = value.partition(":")
        groups.setdefault(group, {}).setdefault(name, Plugin(name, module, attribute, file))
    return groups


_Row = tuple[str, str, str, Path]  # group, name, value, and the file that has it


@cache
def _own() -> list[_Row]:
    if not _CHECKOUT.exists():
        files = PACKAGE.parent.glob(f"{_OWN}*.dist-info/entry_points.txt")
        return [row for file in files for row in _rows(file)]
    import tomllib  # in a checkout alone

    with _CHECKOUT.open("rb") as stream:
        groups = tomllib.load(stream)["project"].get("entry-points", {})
    return [(g, name, value, _CHECKOUT) for g in groups for name, value in groups[g].items()]


@cache
def _in_folder(folder: Path) -> list[_Row]:
    names: list[str] = []
    with suppress(OSError):  # an entry that is a file, or not there
        names = sorted(os.listdir(folder))  # noqa: PTH208 -- names are wanted
    return [
        row
        for name in names
        if name.endswith((".dist-info", ".egg-info")) and not name.startswith(_OWN)
        for row in _rows(folder / name / "entry_points.txt")
    ]


def _rows(file: Path) -> Iterator[_Row]:
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = file.read_text(encoding="utf-8")
    group = ""
    for line in text.splitlines() if _GROUPS in text else ():
        line = line.strip()
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith(_GROUPS) and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.partition("[")[0].strip(), file
