"""Three trainings of one vision transformer that must come to the same: as it is, with gradients
accumulated over pieces of each batch, and with activations recomputed in the backward pass
(gradient checkpointing, Chen et al. 2016, arXiv:1604.06174).

How equal: recomputing draws the dropout of the first pass again and repeats every operation, so
on a CPU checkpoint_gap, the difference of the validation losses, is 0 to the last digit.
Accumulating adds the same gradients in another order: accumulation_gap is the rounding of
float64 after a whole training, under 1e-9. (It is measured without dropout, whose random numbers
pieces would draw otherwise.) Both are the gap of the worst epoch so far. What is judged is
twins_apart, how many epochs of both twins ended more than 1e-9 apart: 0 whatever the seed, where
the gaps themselves are rounding, different for each.
Feels changes in torch.utils.checkpoint and its random state, backward passes that add up, means
over batches, and all that `vit_digits.py` feels.
Trivial baseline: always the commonest class, 10 % right; knowing only the classes' shares, a
loss of ln 10 = 2.30. Reaches 0.60 (sd over three seeds 0.05), 80 % right: it is short, and its
twins are what it is for.
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from vit import VisionTransformer

from celedger.child.torch import Training, device, parameters, prepare, shuffled, step, train

p = parameters(
    epochs=6,
    lr=1e-2,  # the highest of the cycle
    batch=48,  # images a step
    pieces=4,  # of a batch, in the accumulating twin
    width=16,
    layers=1,
    dropout=0.2,
    seed=0,
)

ROUNDING = 1e-9  # nats
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
    return torch.optim.lr_scheduler.OneCycleLR(
        optimiser, p.lr, total_steps=steps, cycle_momentum=False
    )


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
recomputed = losses(**description(p.dropout, recompute=True))
accumulation_gaps, checkpoint_gaps = [], []


def evaluate_all(model):
    scores, epoch = evaluate(model), len(checkpoint_gaps)
    accumulation_gaps.append(abs(accumulated[epoch] - bare[epoch]))
    checkpoint_gaps.append(abs(recomputed[epoch] - float(scores["val_loss"])))
    gaps = accumulation_gaps + checkpoint_gaps
    return {
        **scores,
        "accumulation_gap": max(accumulation_gaps),
        "checkpoint_gap": max(checkpoint_gaps),
        "twins_apart": sum(not gap <= ROUNDING for gap in gaps),  # NaN is apart
    }


train(**{**description(p.dropout), "evaluate": evaluate_all})
