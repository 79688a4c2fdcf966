"""Which packages the files of a commit want in another version than its training imported. Reads
requirement files, `pyproject.toml` and lock files; installs nothing, and judges only what it can
parse.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest

from celedger.base.pins import normal
from celedger.repo import Repository

_FILES = ("requirements*.txt", "requirements/*.txt", "constraints*.txt", "pyproject.toml",
          "uv.lock", "poetry.lock")  # fmt: skip
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;#@]*)")
_CLAUSE = re.compile(r"(==|!=|>=|<=|>|<|~=)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?(?:\+[\w.]+)?")


def unmet(
    repository: Repository, sha: str, installed: Mapping[str, str], imported: Collection[str]
) -> list[str]:
    """Return what a commit (a full hash) wants of these imported distributions and has not got,
    each as "torch ==2.13.0, trained with 2.12.0". Raises RepositoryError."""
    versions = {normal(name): installed[name] for name in imported if name in installed}
    wanted: dict[str, str] = {}
    for file in repository.matching(sha, _FILES):
        text = repository.blob(sha, file).decode("utf-8", "replace")
        for name, clauses in _requirements(file, text):
            version = versions.get(normal(name))
            if version is not None and not _satisfies(version, clauses):
                wanted.setdefault(name, f"{name} {clauses}, trained with {version}")
    return list(wanted.values())


def _requirements(file: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and clauses of a file; those that depend on a platform are left out."""
    lines: list[str] = []
    if file.endswith(".txt"):
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("-", "#"))]
    with suppress(tomllib.TOMLDecodeError, AttributeError, TypeError):
        document = {} if file.endswith(".txt") else tomllib.loads(text)
        if file.endswith(".lock"):
            yield from ((p["name"], f"=={p['version']}") for p in document.get("package", ())
                        if "version" in p)  # fmt: skip
        lines += document.get("project", {}).get("dependencies", [])
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None and ";" not in line and match[2].strip():
            yield match[1], match[2].strip()


def _satisfies(version: str, clauses: str) -> bool:
    """Return False if a version surely violates a clause."""
    release = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    if release is None:
        return True
    own = _numbers(release[0])
    for operator, text, star in _CLAUSE.findall(clauses):
        other = _numbers(text)
        order = _compare(own, other)
        prefix = own[: len(other)] == other
        met = {
            "==": prefix if star else order == 0, "!=": not prefix if star else order != 0,
            ">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0,
            "~=": order >= 0 and own[: len(other) - 1] == other[:-1],
        }[operator]  # fmt: skip
        if not met:
            return False
    return True


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def _compare(one: list[int], other: list[int]) -> int:
    for a, b in zip_longest(one, other, fillvalue=0):
        if a != b:
            return 1 if a > b else -1
    return 0
