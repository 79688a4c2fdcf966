"""A vision transformer on 8 x 8 digits (Dosovitskiy et al. 2021, arXiv:2010.11929).

Covers patch embedding, attention, layer norm, GELU, dropout, label smoothing, AdamW under a
one-cycle rate, and clipping; with `--amp true` autocast and the gradient scaler, too, which must
unscale before the gradient is clipped.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right. With labels smoothed by
0.1 a perfect model still has a loss of 0.50.
"""

import torch
from shared.digits import Digits
from shared.loop import batches, count_steps, one_cycle, run, using
from vit import VisionTransformer

from celedger.child.torch import device, latency, parameters

p = parameters(
    epochs=16,
    lr=4e-3,  # the highest of the cycle
    decay=0.05,  # of all weights, decoupled
    batch=64,  # images a step
    width=32,
    heads=4,
    layers=2,
    dropout=0.1,
    smoothing=0.1,  # of the labels, in training and validation alike
    clip=1.0,  # largest norm of the gradient
    amp=False,  # mixed precision
    seed=0,
)

digits = Digits(p.smoothing, p.amp)
data = batches(p, digits.images, digits.labels)
optimiser = using(torch.optim.AdamW, lr=p.lr, weight_decay=p.decay)
schedule = one_cycle(p.lr, count_steps(p, digits.images))


def model():
    return VisionTransformer(p.width, p.heads, p.layers, p.dropout)


def evaluate(model):
    return {
        **digits.evaluate(model),
        **latency(lambda: model(digits.val_images[:1])),
    }


scaler = torch.amp.GradScaler(device().type) if p.amp else None
run(p, model, optimiser, schedule, data, digits.loss, evaluate, clip=p.clip, scaler=scaler)
