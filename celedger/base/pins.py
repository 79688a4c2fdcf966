"""Lock files as exact pins: requirements, `pip freeze`, uv.lock. Text in, values out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celedger.base.errors import UsageError

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?P<how>===?|@)\s*(?P<version>\S+)\s*(?P<marker>;.*)?"
)
_EXPORT = "name files with NAME==VERSION, such as `uv export` or `pip freeze` print"
_HASH = re.compile(r"\s--hash[= ]\S+")


def normal(name: str) -> str:
    """Return the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str, file: str) -> dict[str, str]:
    """Return the line of each package of a lock file, by its name. Options of indexes and editable
    packages are left out: the first are the installer's, the second the code's own. Raises
    UsageError for a package without an exact version, or with two."""
    if file.endswith(".lock"):
        text = _of_uv(text, file)
    lines: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = _HASH.sub("", re.sub(r"(^|\s)#.*", "", line)).strip()
        if not line or line.startswith(("-e", "--")):
            continue
        match = _PIN.fullmatch(line)
        if match is None or "*" in match["version"]:
            raise UsageError(
                f"{file} does not pin {line!r}",
                "name files with NAME==VERSION, such as `pip freeze`",
            )
        name = normal(match["name"])
        line = f"{name}{line[match.end('name') :]}"
        if lines.setdefault(name, line) != line:
            raise UsageError(f"{file} has {name} twice", "name a lock file for one platform")
    if not lines:
        raise UsageError(f"{file} pins no package", "name a lock file with NAME==VERSION")
    return lines


def _of_uv(text: str, file: str) -> str:
    """Return uv.lock as requirements, optional ones and groups too. A package that is needed only
    where a marker holds has the markers of those who need it: the installer evaluates them."""
    try:
        packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
        own = {p["name"] for p in packages if {*p["source"]} & {"editable", "virtual", "directory"}}
        markers: dict[str, set[str]] = {}  # "" where it is needed anyway
        for package in packages:
            markers.setdefault(package["name"], set()).update([""] * (package["name"] in own))
        for _ in packages:
            for package in packages:
                groups = {**package.get("optional-dependencies", {}),
                          **package.get("dev-dependencies", {})}  # fmt: skip
                for need in sum(groups.values(), package.get("dependencies", [])):
                    above = markers[package["name"]]
                    markers[need["name"]] |= (
                        {need["marker"]} if above and "marker" in need else above
                    )
        lines = []
        for package in packages:
            name, among = package["name"], markers[package["name"]]
            if name in own or not among:
                continue
            if "registry" not in package["source"]:
                raise UsageError(f"{file} has {name} from elsewhere than an index", _EXPORT)
            where = "" if "" in among else f" ; {' or '.join(f'({m})' for m in sorted(among))}"
            lines.append(f"{name}=={package['version']}{where}")
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{file} is no lock file of uv", _EXPORT) from None
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A package that two lock files have otherwise. "" is none."""

    name: str
    old: str
    new: str

    def title(self) -> str:
        """Return `numpy 1.26.4 → 2.0.0`."""
        ends = [_version(line) or "none" for line in (self.old, self.new)]
        return f"{self.name} {' → '.join(ends)}"


def _version(line: str) -> str:
    match = _PIN.fullmatch(line) if line else None
    return match["version"] if match else ""


def upgrades(
    old: Mapping[str, str], new: Mapping[str, str], needs: Mapping[str, Sequence[str]]
) -> list[Upgrade]:
    """Return what differs, dependencies before what needs them, then by name; what is removed
    last. `needs` are the packages that each one depends on."""
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    kept = [name for name in changed if name in new]
    order = [*_dependencies_first(kept, needs), *(n for n in changed if n not in new)]
    return [Upgrade(name, old.get(name, ""), new.get(name, "")) for name in order]


def _dependencies_first(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    order: dict[str, None] = {}

    def add(name: str, above: frozenset[str]) -> None:
        if name not in order and name not in above:  # packages may need each other
            for other in sorted(needs.get(name, ())):
                add(other, above | {name})
            order[name] = None

    for name in names:
        add(name, frozenset())
    wanted = {*names}
    return [name for name in order if name in wanted]


def prefixes(old: Mapping[str, str], changes: Sequence[Upgrade]) -> Iterator[str]:
    """Yield the text of a lock file with none of the changes, with the first, the first two …"""
    lines = dict(old)
    yield _text(lines)
    for change in changes:
        lines.pop(change.name, None)
        if change.new:
            lines[change.name] = change.new
        yield _text(lines)


def _text(lines: Mapping[str, str]) -> str:
    return "".join(f"{lines[name]}\n" for name in sorted(lines))
