"""Tensors as probes read them: within nested values, by their bytes, and as they are kept.

Of a tensor with at most KEPT elements a `TensorStore` keeps all, of a larger one KEPT, drawn once
for every size (with replacement, by a generator of its own): two tensors of one size are compared
at the same places. Little-endian float64, complex numbers as pairs. Imports torch (2.0 on) where it
is needed, since `observe` is there before it.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 1024  # elements: 8 kB a tensor, some MB a step of a network of a hundred modules
ROW_DIGEST = 8  # bytes a row: two of 20,000 rows agree by chance once in 10^11 batches


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor within lists, tuples, mappings and dataclasses, with its path in it ("1.k";
    "" where the value is a tensor itself)."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif hasattr(value, "__dataclass_fields__"):
        items = ((name, getattr(value, name, None)) for name in value.__dataclass_fields__)
    else:
        return
    for name, item in items:
        yield from tensors(item, f"{path}.{name}" if path else str(name))


def address(tensor: Tensor) -> int:
    """Where its elements are; -1 of a tensor without any of its own (sparse, lazy, of vmap)."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError, NotImplementedError):
        return -1


def version(tensor: Tensor) -> int:
    """How often it was written in place; -1 where it was made in inference mode."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1


def whole(tensor: Tensor) -> bool:
    """Return True unless it stands for what vmap or a gradient's gradient makes of it."""
    import torch

    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def content(tensor: Tensor) -> bytes:
    """The bytes of a tensor, in the order of its indices, wherever it lies."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain = plain.cpu().contiguous()
    size = plain.numel() * plain.element_size()
    return ctypes.string_at(plain.data_ptr(), size) if size else b""


def data_hash(data: bytes) -> str:
    """Sixteen hex digits. SHA-1, because it is the fastest that the standard library has."""
    return hashlib.sha1(data).hexdigest()[:16]


class TensorStore:
    """Writes tensors to a folder and says of each how to find it again."""

    def __init__(self, folder: Path) -> None:
        self._values = (folder / "values.bin").open("wb")
        self._rows = (folder / "rows.bin").open("wb")
        self._written = self._row = 0
        self._samples: dict[tuple[int, str], Tensor] = {}
        self._described: dict[int, tuple[Any, int, int, dict[str, Any]]] = {}

    def describe(self, tensor: Tensor) -> dict[str, Any]:
        """`d` dtype, `s` shape, `g` whether it requires a gradient, `h` hash, `o` and `k` where its
        elements are and how many, `f` whether all of it is finite. Of tensors without
        elements of their own (meta, sparse, nested) only what they have."""
        written, at = version(tensor), address(tensor)
        seen = self._described.get(id(tensor))
        if seen is not None and seen[0]() is tensor and seen[1:3] == (written, at):
            return {**seen[3], "g": tensor.requires_grad}
        about: dict[str, Any] = {
            "d": str(tensor.dtype).replace("torch.", ""),
            "s": list(tensor.shape),
            "g": tensor.requires_grad,
        }
        try:
            about.update(self._elements(tensor))
        except (RuntimeError, NotImplementedError, TypeError):
            return about
        if written >= 0:
            self._described[id(tensor)] = (weakref.ref(tensor), written, at, about)
        return about

    def _elements(self, tensor: Tensor) -> dict[str, Any]:
        import torch

        flat = tensor.detach()
        about: dict[str, Any] = {"h": data_hash(content(flat))}
        if flat.is_floating_point() and flat.numel():
            about["f"] = bool(torch.isfinite(flat.float().sum())) or bool(
                torch.isfinite(flat).all()
            )
        if flat.is_complex():
            flat = torch.view_as_real(flat)
        flat = flat.reshape(-1)
        if flat.numel() > KEPT:
            flat = flat[self._sample(flat)]
        data = content(flat.double())
        about["o"], about["k"] = self._written, len(data) // 8
        self._values.write(data)
        self._written += about["k"]
        return about

    def _sample(self, flat: Tensor) -> Tensor:
        import torch

        key = (flat.numel(), str(flat.device))
        if key not in self._samples:
            ours = torch.Generator().manual_seed(flat.numel())
            sample = torch.randint(flat.numel(), (KEPT,), generator=ours, device="cpu")
            self._samples[key] = sample.to(flat.device)
        return self._samples[key]

    def numbers(self, tensor: Tensor) -> str:
        """A hash alone, of a large tensor that of its sample: for what is looked at every step. Of
        a sparse one that of its values."""
        from celedger.child.torch_steps import dense

        flat = dense(tensor.detach()).reshape(-1)
        if flat.numel() > 64 * KEPT:
            flat = flat[self._sample(flat)]
        return data_hash(content(flat))

    def rows(self, tensor: Tensor) -> dict[str, int]:
        """A digest of every row (the first axis), to tell a new order from new data."""
        data, count = content(tensor), len(tensor)
        size = len(data) // count
        for i in range(count):
            row = data[i * size : (i + 1) * size]
            self._rows.write(hashlib.sha1(row).digest()[:ROW_DIGEST])
        start, self._row = self._row, self._row + count
        return {"o": start, "m": count}

    def forget(self) -> None:
        """What was described is described again when met again: a kernel, or who writes by
        `data`, does not count as writing in place."""
        self._described.clear()

    def flush(self) -> None:
        self._values.flush()
        self._rows.flush()
