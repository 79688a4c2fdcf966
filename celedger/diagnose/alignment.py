"""Which module of one network is which of another: by path, then by what they are and where they
stand among their like, so that renamed, added and removed modules leave the others in place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celedger.diagnose.trace import Module, Trace


@dataclass(frozen=True, slots=True)
class Alignment:
    """`modules` and `tensors` (parameters and buffers) map paths of b to paths of a."""

    modules: Mapping[str, str]
    tensors: Mapping[str, str]
    added: tuple[str, ...]  # modules of b alone
    removed: tuple[str, ...]  # modules of a alone

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Old and new paths."""
        return tuple((old, new) for new, old in self.modules.items() if old != new)


def align(a: Trace, b: Trace) -> Alignment:
    modules = _modules(a.modules, b.modules)
    tensors: dict[str, str] = {}
    mine = _tensors(a)
    theirs = _tensors(b)
    taken: set[str] = set()
    for path in theirs:
        if path in mine:
            tensors[path] = path
            taken.add(path)
    for new, old in modules.items():
        here = [p for p in theirs if p not in tensors and _owner(p, b.modules) == new]
        there = [p for p in mine if p not in taken and _owner(p, a.modules) == old]
        for one, other in _by_order([theirs[p] for p in here], [mine[p] for p in there]):
            tensors[here[one]] = there[other]
            taken.add(there[other])
    return Alignment(
        modules, tensors,
        tuple(path for path in b.modules if path not in modules),
        tuple(path for path in a.modules if path not in set(modules.values())),
    )  # fmt: skip


def _modules(a: Mapping[str, Module], b: Mapping[str, Module]) -> dict[str, str]:
    found = {path: path for path in b if path in a and _like(a[path], b[path])}
    # Under a module whose path is gone, children keep their names: encoder.* and trunk.*.
    for strict in (True, False):
        used = set(found.values())
        left = [path for path in a if path not in used]
        right = [path for path in b if path not in found]
        pairs = _by_order(
            [_signature(b, path, strict=strict) for path in right],
            [_signature(a, path, strict=strict) for path in left],
        )
        found.update({right[one]: left[other] for one, other in pairs})
    used = set(found.values())
    # What is left at the same path has become something else: that is a finding, no absence.
    found.update({path: path for path in b if path not in found and path in a and path not in used})
    return {path: found[path] for path in b if path in found}


def _like(one: Module, other: Module) -> bool:
    """The same shapes, and where they are torch's the same class: users rename theirs."""
    kinds = one.kind == other.kind or not (one.of_torch or other.of_torch)
    return kinds and list(one.shapes.values()) == list(other.shapes.values())


def _signature(modules: Mapping[str, Module], path: str, *, strict: bool) -> object:
    """Class and shapes, of children too; at first the module's own name and place as well."""
    module = modules[path]
    kind = module.kind if module.of_torch else ""
    children = sum(1 for other in modules if path and other.startswith(f"{path}."))
    own = (kind, tuple(module.shapes.values()), children)
    return (*own, path.rpartition(".")[2]) if strict else own


def _by_order(right: Sequence[object], left: Sequence[object]) -> list[tuple[int, int]]:
    """Pairs of equal things in the longest common order."""
    blocks = difflib.SequenceMatcher(None, right, left, autojunk=False).get_matching_blocks()
    return [(one + i, other + i) for one, other, count in blocks for i in range(count)]


def _tensors(trace: Trace) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for event in trace.of("init", "param", "buffer"):
        if event.path is not None and event.tensors:
            found.setdefault(event.path, event.tensors[0].shape)
    return found


def _owner(path: str, modules: Mapping[str, Module]) -> str:
    """The module that holds a parameter or buffer."""
    while path:
        prefix, dot, _ = path.rpartition(".")
        owner = prefix if dot else path.partition(":")[0] + ":" if ":" in path else ""
        if owner in modules or not owner:
            return owner
        path = owner
    return ""
