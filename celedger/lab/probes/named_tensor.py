"""The values of one tensor in the steps that `celedger watch` looks at: of a parameter and its
gradient, or of a module's output and the gradient that reaches it."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import Tensor

from .observe import guarded
from .tensor_statistics import readable
from .tensors import tensors

SHOWN = 64  # elements that are written as numbers
_SLICE = re.compile(r"(.+?)\[([-\d:., ]+)\]")


class NamedTensor:
    """`tensor`: a name, or with a slice of Python's behind it: `head.weight[:8, 0]`. With `dump`
    all of the slice is written as .npy, too."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._text = str(probe.options["tensor"])
        sliced = _SLICE.fullmatch(self._text)
        self._stem, inside = sliced.groups() if sliced else (self._text, "")
        self._index = tuple(map(_index, inside.split(","))) if inside else ()

    def met(self, name: str, part: str, tensor: Tensor | None) -> None:
        """Write a tensor, if it is the one that is asked for."""
        if name not in (self._text, self._stem) or tensor is None or not readable(tensor):
            return
        values = tensor.detach()
        try:
            values = values if name == self._text else values[self._index]
        except IndexError:  # the slice is of another tensor's shape
            return
        step = self._probe.step
        self._probe.write(
            "tensor", step=step, part=part, dtype=str(tensor.dtype).rpartition(".")[2],
            shape=list(values.shape), of=list(tensor.shape),
            values=values.reshape(-1)[:SHOWN].tolist(),
        )  # fmt: skip
        if self._probe.options.get("dump"):
            path = self._probe.out / "dump" / f"{step:06d}-{part}.npy"
            path.parent.mkdir(exist_ok=True)
            array = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
            sys.modules["numpy"].save(path, array)

    def returned(self, name: str, output: Any) -> None:
        tensor = next((t for _, t in tensors(output)), None)
        if name not in (self._text, self._stem) or tensor is None:
            return
        self.met(name, "output", tensor)
        if tensor.requires_grad:
            hook: Any = tensor.register_hook
            hook(lambda gradient: guarded(self.met, name, "gradient", gradient))


def _index(text: str) -> Any:
    """Return an index, a slice or an ellipsis. Raises ValueError."""
    if text.strip() == "...":
        return ...
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    return parts[0] if len(parts) == 1 else slice(*parts)
