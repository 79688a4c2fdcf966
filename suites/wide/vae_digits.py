"""A variational autoencoder of 8 x 8 digits (Kingma & Welling 2014, arXiv:1312.6114).

Feels changes in the Gaussian's random numbers, the reparametrised gradient, the Kullback-Leibler
divergence of torch.distributions, binary cross-entropy on logits, SiLU, and Adam with its moments
and its epsilon (gradients are small here: the loss is a mean).
The loss is the negative evidence lower bound. Trivial baseline: the mean image for every digit,
27.19 nats an image (most of it the entropy of grey pixels).
Reaches 25.05 (sd over seeds 0.05).
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from celedger.child.torch import device, parameters, shuffled, train

p = parameters(
    epochs=6,
    passes=5,  # over the data an epoch
    lr=3e-3,  # at the start; falls to 0 as a cosine
    batch=64,  # images a step
    width=128,  # units of a hidden layer
    code=8,  # numbers that describe an image
    seed=0,
)

images, _, val_images, _ = (x.flatten(1) if x.dim() > 1 else x for x in digits.load(device()))
steps = p.epochs * p.passes * -(-len(images) // p.batch)
# The noise of validation, the same every epoch and seed: 8 codes an image
draws = torch.randn(8, len(val_images), p.code, generator=torch.Generator().manual_seed(0))
draws = draws.to(device())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, p.width), nn.SiLU(), nn.Linear(p.width, 2 * p.code)
        )
        self.decoder = nn.Sequential(nn.Linear(p.code, p.width), nn.SiLU(), nn.Linear(p.width, 64))

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, dim=-1)
        return Normal(mean, F.softplus(spread))


def bound(model, x, code, posterior):
    """Nats an image: what the pixels cost given the code, and the code itself."""
    logits, x = torch.broadcast_tensors(model.decoder(code), x)
    pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    prior = Normal(torch.zeros_like(posterior.loc), torch.ones_like(posterior.scale))
    return (pixels + kl_divergence(posterior, prior).sum(-1)).mean()


def optimiser(model):
    return torch.optim.Adam(model.parameters(), lr=p.lr)


def schedule(optimiser):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)


def data():
    for _ in range(p.passes):
        yield from shuffled(images, size=p.batch)


def loss(model, batch):
    (x,) = batch
    posterior = model(x)
    return bound(model, x, posterior.rsample(), posterior)


def evaluate(model):
    posterior = model(val_images)
    codes = posterior.loc + posterior.scale * draws
    return {"val_loss": bound(model, val_images, codes, posterior)}


train(
    model=Autoencoder,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    epochs=p.epochs,
    seed=p.seed,
)
