"""The English text of CPython's manual that every interpreter carries (`pydoc_data.topics`), and
how well a model predicts its next character. Only topics that changed little from Python 3.8 to
3.13 are used, so that another interpreter means nearly the same data."""

from pydoc_data.topics import topics

import torch
import torch.nn.functional as F

from celedger.child.torch import device

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # fixed, so that a model's shape is too

TRAINING = (
    "assignment booleans context-managers customization import in integers power slicings "
    "typesmapping typesmethods typesseq"
)
VALIDATION = "comparisons"  # a topic of its own: nothing of it was read in training


def windows(names, length):
    """Return windows of `length` + 1 characters as indices into ALPHABET, neighbours sharing one
    character. The training topics have about 80,000 characters, that of validation 10,000."""
    index = {character: i for i, character in enumerate(ALPHABET)}
    characters = "".join(topics[name] for name in names.split())
    indices = torch.tensor([index[c] for c in characters if c in index])
    return indices.unfold(0, length + 1, length).contiguous().to(device())


class Text:
    """The text in windows, with the cross-entropy of each next character as loss and score."""

    def __init__(self, length):
        self.windows, self.val_windows = windows(TRAINING, length), windows(VALIDATION, length)

    def loss(self, model, batch):
        (characters,) = batch
        logits = model(characters[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())

    def evaluate(self, model):
        logits, following = model(self.val_windows[:, :-1]), self.val_windows[:, 1:]
        return {
            "val_loss": F.cross_entropy(logits.flatten(0, 1), following.flatten()),
            "val_accuracy": (logits.argmax(2) == following).double().mean(),
        }
