"""Data for this suite: the English text of CPython's manual that every interpreter carries
(`pydoc_data.topics`). Only topics that changed little from Python 3.8 to 3.13 are used, so that
another interpreter means nearly the same data."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # fixed, so that a model's shape is too

TRAINING = (
    "assignment booleans context-managers customization import in integers power slicings "
    "typesmapping typesmethods typesseq"
)
VALIDATION = "comparisons"  # a topic of its own: nothing of it was read in training


def load(device: torch.device, length: int) -> tuple[Tensor, Tensor]:
    """Windows of `length` + 1 characters as indices into ALPHABET, neighbours sharing one
    character: those of the training topics (about 80,000 characters) and of the validation
    topic (about 10,000)."""
    return tuple(_windows(names.split(), length).to(device) for names in (TRAINING, VALIDATION))


def _windows(names: list[str], length: int) -> Tensor:
    index = {character: i for i, character in enumerate(ALPHABET)}
    characters = "".join(topics[name] for name in names)
    indices = torch.tensor([index[c] for c in characters if c in index])
    return indices.unfold(0, length + 1, length).contiguous()


def unigram_loss(training: Tensor, validation: Tensor) -> float:
    """Nats a character of who knows only how frequent each character is: the trivial baseline."""
    counts = torch.bincount(training.flatten(), minlength=len(ALPHABET)) + 1  # Laplace's rule
    return -(counts / counts.sum()).log()[validation[:, 1:]].mean().item()
