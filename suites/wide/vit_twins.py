"""Three trainings of one vision transformer that must come to the same: as it is, with gradients
accumulated over pieces of each batch, and with activations recomputed in the backward pass
(gradient checkpointing, Chen et al. 2016, arXiv:1604.06174).

Recomputing repeats every operation with the same dropout, so on a CPU checkpoint_gap, the largest
difference of the validation losses so far, is 0. Accumulating adds the gradients in another order,
so accumulation_gap is the rounding of float64, under 1e-9; it is measured without dropout, whose
random numbers pieces would draw otherwise. The judged metric is twins_apart: how many epochs of
both twins ended more than 1e-9 apart.
Covers torch.utils.checkpoint and its random state, backward passes that add up, means over batches,
and all that `vit_digits.py` covers.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right.
"""

import torch
from shared.digits import Digits
from shared.loop import batches, count_steps, one_cycle, using
from vit import VisionTransformer

from celedger.child.torch import Training, device, parameters, prepare, step, train

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
digits = Digits()
digits.images, digits.val_images = digits.images.double(), digits.val_images.double()


def description(dropout, recompute=False, pieces=1):
    def model():
        return VisionTransformer(p.width, 2, p.layers, dropout, recompute).double()

    return {
        "model": model,
        "optimiser": using(torch.optim.Adam, lr=p.lr),
        "schedule": one_cycle(p.lr, count_steps(p, digits.images)),
        "data": batches(p, digits.images, digits.labels),
        "loss": digits.loss,
        "evaluate": digits.evaluate,
        "pieces": pieces,
        "epochs": p.epochs,
        "seed": p.seed,
    }


def losses(**description):
    """Return the validation loss of each epoch of a training that is not reported."""
    training = Training(**description)
    model, optimiser, schedule = prepare(training, device())
    values = []
    for _ in range(p.epochs):
        model.train()
        for batch in training.data():
            step(training, model, optimiser, schedule, batch)
        model.eval()
        with torch.no_grad():
            values.append(float(digits.evaluate(model)["val_loss"]))
    return values


bare = losses(**description(dropout=0.0))
accumulated = losses(**description(dropout=0.0, pieces=p.pieces))
recomputed = losses(**description(p.dropout, recompute=True))
accumulation_gaps, checkpoint_gaps = [], []


def evaluate_all(model):
    scores, epoch = digits.evaluate(model), len(checkpoint_gaps)
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
