"""scikit-learn's 1,797 handwritten digits (UCI "Optical Recognition of Handwritten Digits"), 8 x 8
pixels, 10 classes, and how well a model classifies them."""

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

from celedger.child.torch import device


def load():
    """Return training images (1437, 1, 8, 8) in 0..1 and labels, then the 360 of validation.

    Every fifth image is held out: a split that no seed and no library version can change. The file
    is read without importing scikit-learn, which would cost each trial a second.
    """
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    file = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = numpy.loadtxt(file, delimiter=",").astype(numpy.uint8)
    table = torch.from_numpy(rows).to(device())
    images, labels = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    held_out = torch.arange(len(rows), device=device()) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


class Digits:
    """The digits, with the cross-entropy as loss and score. With `amp`, models run in mixed
    precision: bfloat16 on a CPU, float16 on a GPU."""

    def __init__(self, smoothing=0.0, amp=False):
        self.images, self.labels, self.val_images, self.val_labels = load()
        self.smoothing, self.amp = smoothing, amp

    def logits(self, model, images):
        if not self.amp:
            return model(images)
        half = torch.float16 if device().type == "cuda" else torch.bfloat16
        with torch.autocast(device().type, half):
            return model(images).float()

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(self.logits(model, images), labels, label_smoothing=self.smoothing)

    def evaluate(self, model):
        logits, labels = self.logits(model, self.val_images), self.val_labels
        return {
            "val_loss": F.cross_entropy(logits, labels, label_smoothing=self.smoothing),
            "val_accuracy": (logits.argmax(1) == labels).double().mean(),
        }
