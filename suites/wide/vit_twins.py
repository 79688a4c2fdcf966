"""Three trainings of one vision transformer that must come to the same: as it is, with gradients
accumulated over pieces of each batch, and with activations recomputed in the backward pass
(gradient checkpointing, Chen et al. 2016, arXiv:1604.06174).

How equal: recomputing draws the dropout of the first pass again and repeats every operation, so
on a CPU checkpoint_gap, the difference of the validation losses, is 0 to the last digit.
Accumulating adds the same gradients in another order: accumulation_gap is the rounding of
float64 after a whole training, under 1e-9. (It is measured without dropout, whose random numbers
pieces would draw otherwise.) Both are the gap of the worst epoch.
Feels changes in torch.utils.checkpoint and its random state, backward passes that add up, means
over batches, and all that `vit_digits.py` feels.
Trivial baseline: always the commonest class, 10 % right; knowing only the classes' shares, a
loss of ln 10 = 2.30. With seed 0 it reaches 1.20, 54 % right: it is short, and its gaps are what
it is for.
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from vit import VisionTransformer

from celedger.child.torch import Training, device, parameters, prepare, shuffled, step, train

p = parameters(
    epochs=4,
    lr=1e-2,  # at the start; falls to 0 as a line
    batch=48,  # images a step
    pieces=4,  # of a batch, in the accumulating twin
    width=16,
    layers=1,
    dropout=0.2,
    seed=0,
)

images, labels, val_images, val_labels = digits.load(device())
images, val_images = images.double(), val_images.double()
steps = p.epochs * -(-len(images) // p.batch)


def description(dropout, recompute=False, pieces=1):
    def model():
        return VisionTransformer(p.width, 2, p.layers, dropout, recompute).double()

    return {
        "model": model,
        "optimiser": optimiser,
        "schedule": schedule,
        "data": data,
        "loss": loss,
        "evaluate": evaluate,
        "pieces": pieces,
        "epochs": p.epochs,
        "seed": p.seed,
    }


def optimiser(model):
    return torch.optim.Adam(model.parameters(), lr=p.lr)


def schedule(optimiser):
    return torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)


def data():
    return shuffled(images, labels, size=p.batch)


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def evaluate(model):
    logits = model(val_images)
    return {
        "val_loss": F.cross_entropy(logits, val_labels),
        "val_accuracy": (logits.argmax(1) == val_labels).double().mean(),
    }


def losses(**description):
    """The validation loss of each epoch of a training that is not reported."""
    training = Training(**description)
    model, optimiser, schedule = prepare(training, device())
    found = []
    for _ in range(p.epochs):
        model.train()
        for batch in training.data():
            step(training, model, optimiser, schedule, batch)
        model.eval()
        with torch.no_grad():
            found.append(float(evaluate(model)["val_loss"]))
    return found


bare = losses(**description(dropout=0.0))
accumulated = losses(**description(dropout=0.0, pieces=p.pieces))
recomputed = iter(losses(**description(p.dropout, recompute=True)))
accumulation_gap = max(abs(a - b) for a, b in zip(bare, accumulated, strict=True))
checkpoint_gap = 0.0


def evaluate_all(model):
    global checkpoint_gap
    scores = evaluate(model)
    checkpoint_gap = max(checkpoint_gap, abs(float(scores["val_loss"]) - next(recomputed)))
    return {**scores, "accumulation_gap": accumulation_gap, "checkpoint_gap": checkpoint_gap}


train(**{**description(p.dropout), "evaluate": evaluate_all})
