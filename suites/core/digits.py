"""Data for this suite: scikit-learn's 1,797 handwritten digits (UCI "Optical Recognition of
Handwritten Digits"), 8 x 8 pixels, 10 classes. Read from scikit-learn's files without importing
it, which would cost each trial a second."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch
from torch import Tensor


def load(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (1437, 1, 8, 8) in 0..1 and labels, then the 360 of validation.

    Every fifth image is held out: a split that no seed and no library version can change.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = numpy.loadtxt(file, delimiter=",").astype(numpy.uint8)
    table = torch.from_numpy(rows).to(device)
    images, labels = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    held_out = torch.arange(len(rows), device=device) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]
