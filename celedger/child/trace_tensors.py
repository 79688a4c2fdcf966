"""Tensors of a traced training as they are kept: an exact hash, and elements to measure by.

Of a tensor with at most KEPT elements all are written, of a larger one KEPT, drawn once for every
size (with replacement, by a generator of our own): two tensors of one size are compared at the same
places. Written as little-endian float64 to `values.bin`, complex numbers as pairs. Needs torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celedger.child.observe import address, version
from celedger.child.torch_steps import dense

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KEPT", "Store", "data_hash", "simple"]

KEPT = 1024  # elements: 8 kB a tensor, some MB a step of a network of a hundred modules
ROW_DIGEST = 8  # bytes a row: two of 20,000 rows agree by chance once in 10^11 batches


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


def simple(value: Any, depth: int = 2) -> Any:
    """A setting as JSON holds it, equal for equal settings: never an address."""
    if value is None or isinstance(value, (bool, int, str)):
        return value if not isinstance(value, str) else value[:80]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > 16:
            return f"{len(value)} items"
        return [simple(item, depth - 1) for item in value]
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout", "Size"):
        return str(value)
    return kind.__name__


class Store:
    """Writes tensors to a folder and says of each how to find it again."""

    def __init__(self, folder: Path) -> None:
        self._values = (folder / "values.bin").open("wb")
        self._rows = (folder / "rows.bin").open("wb")
        self._written = self._row = 0
        self._places: dict[tuple[int, str], Tensor] = {}
        self._known: dict[int, tuple[Any, int, int, dict[str, Any]]] = {}

    def describe(self, tensor: Tensor) -> dict[str, Any]:
        """`d` dtype, `s` shape, `g` whether it requires a gradient, `h` hash, `o` and `k` where its
        elements are and how many, `f` whether all of it is finite. Of tensors without
        elements of their own (meta, sparse, nested) only what they have."""
        now, place = version(tensor), address(tensor)
        seen = self._known.get(id(tensor))
        if seen is not None and seen[0]() is tensor and seen[1:3] == (now, place):
            return {**seen[3], "g": tensor.requires_grad}
        told: dict[str, Any] = {
            "d": str(tensor.dtype).replace("torch.", ""),
            "s": list(tensor.shape),
            "g": tensor.requires_grad,
        }
        try:
            told.update(self._elements(tensor))
        except (RuntimeError, NotImplementedError, TypeError):
            return told
        if now >= 0:
            self._known[id(tensor)] = (weakref.ref(tensor), now, place, told)
        return told

    def _elements(self, tensor: Tensor) -> dict[str, Any]:
        import torch

        flat = tensor.detach()
        told: dict[str, Any] = {"h": data_hash(content(flat))}
        if flat.is_floating_point() and flat.numel():
            told["f"] = bool(torch.isfinite(flat.float().sum())) or bool(torch.isfinite(flat).all())
        if flat.is_complex():
            flat = torch.view_as_real(flat)
        flat = flat.reshape(-1)
        if flat.numel() > KEPT:
            flat = flat[self._sample(flat)]
        data = content(flat.double())
        told["o"], told["k"] = self._written, len(data) // 8
        self._values.write(data)
        self._written += told["k"]
        return told

    def _sample(self, flat: Tensor) -> Tensor:
        import torch

        key = (flat.numel(), str(flat.device))
        if key not in self._places:
            ours = torch.Generator().manual_seed(flat.numel())
            place = torch.randint(flat.numel(), (KEPT,), generator=ours, device="cpu")
            self._places[key] = place.to(flat.device)
        return self._places[key]

    def numbers(self, tensor: Tensor) -> str:
        """A hash alone, of a large tensor that of its sample: for what is looked at every step. Of
        a sparse one that of its values."""
        flat = dense(tensor.detach()).reshape(-1)
        if flat.numel() > 64 * KEPT:
            flat = flat[self._sample(flat)]
        return data_hash(content(flat))

    def rows(self, tensor: Tensor) -> dict[str, int]:
        """A digest of every row (the first axis), to tell a new order from new data."""
        data, count = content(tensor), len(tensor)
        size = len(data) // count
        digests: list[bytes] = [
            hashlib.sha1(data[i * size : (i + 1) * size]).digest()[:ROW_DIGEST]
            for i in range(count)
        ]
        start, self._row = self._row, self._row + count
        self._rows.write(b"".join(digests))
        return {"o": start, "m": count}

    def forget(self) -> None:
        """What was described is described again when met again: a kernel, or who writes by
        `data`, does not count as writing in place."""
        self._known.clear()

    def flush(self) -> None:
        self._values.flush()
        self._rows.flush()
