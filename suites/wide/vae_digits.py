"""A variational autoencoder of 8 x 8 digits (Kingma & Welling 2014, arXiv:1312.6114).

Covers the Gaussian's random numbers, the reparametrised gradient, the Kullback-Leibler divergence
of torch.distributions, binary cross-entropy on logits, SiLU, and Adam with its moments and its
epsilon (gradients are small: the loss, the negative evidence lower bound, is a mean).
Trivial baseline: the mean image for every digit, 27.19 nats an image.
"""

import torch
import torch.nn.functional as F
from shared.digits import load
from shared.loop import batches, cosine, count_steps, run, using
from torch import nn
from torch.distributions import Normal, kl_divergence

from celedger.child.torch import device, parameters

p = parameters(
    epochs=6,
    passes=5,  # over the data an epoch
    lr=3e-3,  # at the start; falls to 0 as a cosine
    batch=64,  # images a step
    width=128,  # units of a hidden layer
    code=8,  # numbers that describe an image
    seed=0,
)

images, val_images = (x.flatten(1) for x in load()[::2])
data = batches(p, images, passes=p.passes)
optimiser = using(torch.optim.Adam, lr=p.lr)
schedule = cosine(count_steps(p, images, p.passes))
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


def loss(model, batch):
    (x,) = batch
    posterior = model(x)
    return bound(model, x, posterior.rsample(), posterior)


def evaluate(model):
    posterior = model(val_images)
    codes = posterior.loc + posterior.scale * draws
    return {"val_loss": bound(model, val_images, codes, posterior)}


run(p, Autoencoder, optimiser, schedule, data, loss, evaluate)
