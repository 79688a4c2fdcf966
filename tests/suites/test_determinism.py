"""No task of the shipped suites may call an operator that is not deterministic on CUDA. Without a
GPU the operators are those of a run on the CPU; torch dispatches the same ones to both."""

from __future__ import annotations

import json
from pathlib import Path

# The documentation of torch.use_deterministic_algorithms (2.13) lists what raises on CUDA; these
# are the operators behind the list, and those that older versions added to it.
RAISING = {
    "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward", "max_unpool2d", "max_unpool3d", "upsample_linear1d_backward",
    "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "upsample_trilinear3d_backward",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "nll_loss2d_forward", "_ctc_loss_backward", "put", "put_", "histc", "kthvalue",
    "grid_sampler_2d_backward", "grid_sampler_3d_backward", "median",
}  # fmt: skip


def raises(name: str, *facts: str) -> bool:
    """Return True if the operator raises: `facts` are its words and whether it is of floats."""
    operator = name.removeprefix("aten::")
    if operator.startswith("scatter_reduce"):  # a sum or mean raised before 2.1
        return not {"amax", "amin"} & {*facts}
    if operator == "cumsum":
        return "True" in facts
    return operator in RAISING


def raising_operators(folder: Path) -> list[list[str]]:
    """Return what a trial called, whose operators were noted, that is not deterministic on CUDA."""
    called = json.loads((folder / "operators").read_text())
    assert len(called) > 20
    return [row for row in called if raises(*row)]


def test_what_raises_is_recognised() -> None:
    assert raises("aten::scatter_reduce", "mean", "True")
    assert not raises("aten::scatter_reduce", "amax", "True")
    assert raises("aten::cumsum", "True") and not raises("aten::cumsum", "False")
    assert raises("aten::histc") and not raises("aten::mm")
