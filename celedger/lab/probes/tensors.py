"""Read tensors for probes: within nested values, by their bytes, and in a store. Of a tensor with
at most KEPT elements a `TensorStore` keeps all, of a larger one a `sample` of KEPT: two tensors of
one size are compared at the same indices. Little-endian float64, complex numbers as pairs.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from celedger.child.torch_steps import dense

KEPT = 1024  # elements: 8 kB a tensor, some MB a step of a network of a hundred modules
MOST_NODES = 100_000  # of autograd's graph that are followed
_DENSE = 1 << 22  # elements of a sparse tensor that is compared, as a gradient of an embedding
ROW_DIGEST = 8  # bytes a row: two of 20,000 rows agree by chance once in 10^11 batches

_GOLDEN = 0.6180339887498949
# Elements from which a tensor is summed up where it lies: to bring 64 k to the host takes as long
# as the kernels. An evaluation of a whole set has activations of half a gigabyte each.
_SUMMED = 1 << 16
_PART = 1 << 22  # elements that are summed up at once: 64 MB beside them
_indices: dict[tuple[int, int, Any], Tensor] = {}


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor within lists, tuples, mappings and dataclasses, with its path in it
    ("1.k"; "" where the value is a tensor itself); of a wrapper of vmap or of a functional
    gradient the tensor that it holds."""
    if isinstance(value, torch.Tensor):
        yield path, unwrapped(value)
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


def unwrapped(tensor: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def graph_node(tensor: Tensor) -> Any:
    """Return the node of autograd's graph that made a tensor; None where there is none, or torch
    refuses to tell: of a view made without gradients whose base was written since."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def follow_graph(start: Iterable[Any], visited: set[Any]) -> None:
    """Add to `visited` the nodes of autograd's graph that lead to some, `MOST_NODES` at most."""
    waiting = list(start)
    while waiting and len(visited) < MOST_NODES:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting += [before for before, _ in node.next_functions]


def has_shape(tensor: Tensor) -> bool:
    """Return False for a lazy module's parameter before its first forward pass."""
    return not is_lazy(tensor)


def sample(tensor: Tensor, size: int) -> Tensor:
    """Return `size` elements: one from each of so many equal stretches, at an offset given by the
    golden ratio, so that no width of the tensor is in step with it."""
    flat = tensor.detach().reshape(-1)
    key = (flat.numel(), size, flat.device)
    if key not in _indices:
        number = torch.arange(size, dtype=torch.float64, device="cpu")
        indices = (number + (number * _GOLDEN) % 1.0) * (flat.numel() / size)
        _indices[key] = indices.long().clamp_(max=flat.numel() - 1).to(flat.device)
    return flat.index_select(0, _indices[key])


def address(tensor: Tensor) -> int:
    """Return the address of its elements; -1 for a tensor without its own (sparse)."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError, NotImplementedError):
        return -1


def version(tensor: Tensor) -> int:
    """Return how often it was written in place; -1 if it was made in inference mode."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1


def content(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor, in the order of its indices, wherever it lies."""
    with torch._C.DisableTorchFunction():  # a probe's mode would see each of these calls
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = plain.numel() * plain.element_size()
    return ctypes.string_at(plain.data_ptr(), size) if size else b""


def sums(tensor: Tensor) -> bytes:
    """Return sums of a tensor's elements, read as integers and each times an odd number of its own,
    modulo 2^64, computed on its device: what differs in one element never agrees, other tensors
    once in 10^19."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    words = flat.view(kinds.get(flat.element_size(), torch.int64))
    index = torch.arange(1, min(len(words), _PART) + 1, device=words.device)
    # Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), first half.
    mixed = index * -0x61C8864680B583EB
    factors = ((mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47) | 1
    parts = [(part * factors[: len(part)]).sum() for part in torch.split(words, _PART)]
    return content(torch.stack(parts))


def data_hash(data: bytes, kind: str = "") -> str:
    """Return sixteen hex digits. SHA-1, because it is the fastest of the standard library. `kind`:
    what equal bytes mean something else in."""
    digest = hashlib.sha1(data)
    digest.update(kind.encode())
    return digest.hexdigest()[:16]


def perturb(weights: Iterable[Tensor], seed: int) -> None:
    """Move every weight by one unit in its last place, up, down or not, by chance."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in weights:
            if weight.is_floating_point():
                signs = torch.randint(3, weight.shape, generator=draw, device="cpu")
                weight.mul_(1 + signs.sub(1).to(weight) * torch.finfo(weight.dtype).eps)


def _hash(tensor: Tensor) -> str:
    on_device = tensor.is_cuda and tensor.numel() > _SUMMED
    data = sums(tensor) if on_device else content(_unsigned(tensor))
    return data_hash(data, str(tensor.dtype))


def _unsigned(tensor: Tensor) -> Tensor:
    """Return it with 0 for -0, which `x * mask` has where `x.masked_fill(~mask, 0)` has 0."""
    try:
        return tensor + 0 if tensor.is_floating_point() else tensor
    except RuntimeError:  # of a type without sums, as of eight bits
        return tensor


class TensorStore:
    """Write tensors to a folder and describe each with its position there. Descriptions before the
    folder is known stay in memory."""

    def __init__(self) -> None:
        self._values: Any = io.BytesIO()
        self._rows: Any = io.BytesIO()
        self._value = self._row = 0  # numbers of those written
        self._described: dict[int, tuple[Any, int, int, dict[str, Any]]] = {}

    def open(self, folder: Path) -> None:
        early = self._values.getvalue(), self._rows.getvalue()
        self._values = (folder / "values.bin").open("wb")
        self._rows = (folder / "rows.bin").open("wb")
        self._values.write(early[0])
        self._rows.write(early[1])

    def describe(self, tensor: Tensor, *, sampled: bool = True) -> dict[str, Any]:
        """Return `d` dtype, `s` shape, `g` whether it requires a gradient, `h` hash; and `sampled`
        also `o` and `k` offset and number of its elements, `f` whether all are finite. For tensors
        without elements of their own (meta, large sparse, nested) only the fields that they
        have."""
        written, at = version(tensor), address(tensor)
        reference, *state, about = self._described.get(id(tensor), (None, 0, 0, {}))
        if reference is None or reference() is not tensor or state != [written, at]:
            about = {"d": str(tensor.dtype).replace("torch.", ""), "s": list(tensor.shape)}
        if "h" not in about or (sampled and "o" not in about):
            try:
                with torch._C.DisableTorchFunction():
                    values = tensor.detach()
                    if tensor.is_sparse and tensor.numel() <= _DENSE:
                        values = values.to_dense()
                    about = {**about, "h": about.get("h") or _hash(values)}
                    about.update(self._sample(values) if sampled else {})
                if written >= 0:
                    self._described[id(tensor)] = (weakref.ref(tensor), written, at, about)
            except (RuntimeError, NotImplementedError, TypeError):
                pass
        return {**about, "g": tensor.requires_grad}

    def hash_before(self, tensor: Tensor) -> str | None:
        """Return the hash of a tensor as it was last described, whatever was written since."""
        reference, *_, about = self._described.get(id(tensor), (None, {}))
        return about.get("h") if reference is not None and reference() is tensor else None

    def _sample(self, tensor: Tensor) -> dict[str, Any]:
        about: dict[str, Any] = {}
        if tensor.is_floating_point() and tensor.numel():
            # A sum is cheap, and is finite if all elements are, unless it overflows.
            about["f"] = bool(tensor.float().sum().isfinite()) or bool(tensor.isfinite().all())
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        data = content((sample(flat, KEPT) if flat.numel() > KEPT else flat).double())
        about["o"], about["k"] = self._value, len(data) // 8
        self._values.write(data)
        self._value += about["k"]
        return about

    def mark(self, tensor: Tensor) -> str:
        """Return only a hash, for what is read at every step: of a large tensor that of a sample,
        of a sparse one that of its values."""
        with torch._C.DisableTorchFunction():
            flat = _unsigned(dense(tensor.detach()).reshape(-1))
            return data_hash(content(sample(flat, KEPT) if flat.numel() > 64 * KEPT else flat))

    def rows(self, tensor: Tensor) -> dict[str, int]:
        """Write a digest of every row (the first axis), to tell a new order from new data."""
        data, count = content(tensor), len(tensor)
        size = len(data) // count
        for start in range(0, count * size, size) if size else ():
            self._rows.write(hashlib.sha1(data[start : start + size]).digest()[:ROW_DIGEST])
        start, self._row = self._row, self._row + count
        return {"o": start, "m": count}

    def forget(self) -> None:
        """Describe a tensor again when it is met again: writes by a kernel, or through `data`, do
        not count as in place."""
        self._described.clear()

    def flush(self) -> None:
        self._values.flush()
        self._rows.flush()
