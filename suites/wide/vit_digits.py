"""A vision transformer on 8 x 8 digits (Dosovitskiy et al. 2021, arXiv:2010.11929).

Feels changes in patch embedding, attention, layer norm, GELU, dropout, label smoothing, AdamW
under a one-cycle rate, and clipping; with `--amp true` also in autocast (bfloat16 on a CPU,
float16 on a GPU) and the gradient scaler, which must unscale before the gradient is clipped.
Trivial baseline: always the commonest class, 10 % right; knowing only the classes' shares, a
loss of ln 10 = 2.30. With labels smoothed by 0.1 a perfect model still has a loss of 0.50.
Reaches 96.8 % right (sd over three seeds 0.9 points) at a loss of 0.604 (sd 0.016).
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from vit import VisionTransformer

from celedger.child.torch import device, latency, parameters, shuffled, train

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

images, labels, val_images, val_labels = digits.load(device())
steps = p.epochs * -(-len(images) // p.batch)
half = torch.float16 if device().type == "cuda" else torch.bfloat16


def model():
    return VisionTransformer(p.width, p.heads, p.layers, p.dropout)


def optimiser(model):
    return torch.optim.AdamW(model.parameters(), lr=p.lr, weight_decay=p.decay)


def schedule(optimiser):
    return torch.optim.lr_scheduler.OneCycleLR(
        optimiser, p.lr, total_steps=steps, cycle_momentum=False
    )


def data():
    return shuffled(images, labels, size=p.batch)


def loss(model, batch):
    images, labels = batch
    with torch.autocast(device().type, half, enabled=p.amp):
        logits = model(images)
    return F.cross_entropy(logits.float(), labels, label_smoothing=p.smoothing)


def evaluate(model):
    with torch.autocast(device().type, half, enabled=p.amp):
        logits = model(val_images).float()
    return {
        "val_loss": F.cross_entropy(logits, val_labels, label_smoothing=p.smoothing),
        "val_accuracy": (logits.argmax(1) == val_labels).double().mean(),
        **latency(lambda: model(val_images[:1])),
    }


train(
    model=model,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    clip=p.clip,
    scaler=torch.amp.GradScaler(device().type) if p.amp else None,
    epochs=p.epochs,
    seed=p.seed,
)
