"""Denoising diffusion of points in the plane (Ho et al. 2020, arXiv:2006.11239, with the cosine
schedule of Nichol & Dhariwal 2021, arXiv:2102.09672).

The points lie on two rings of radius 0.5 and 1.5 with a spread of 0.05. Two scores: the error of
the predicted noise (val_loss), and how far the points that the model makes lie from the nearer
ring (ring_distance; 0.04 for the data themselves).
Covers normal and integer random numbers, cumulative products, sine and cosine, SiLU, the squared
error, AdamW, and the average of weights (torch.optim.swa_utils), which is scored.
Trivial baseline: predicting no noise, an error of 1; a normal distribution with the data's mean and
deviation, a distance of 0.26.
"""

import math

import torch
from shared.loop import batches, cosine, count_steps, run
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from celedger.child.torch import device, parameters

p = parameters(
    epochs=6,
    passes=20,  # over the points an epoch
    lr=5e-3,  # at the start; falls to 0 as a cosine
    batch=200,  # points a step
    width=96,  # units of a hidden layer
    times=50,  # steps from data to noise
    average=0.98,  # of the weights, kept at each step
    seed=0,
)


def rings(count, random):
    """(count, 2) points."""
    radius = torch.tensor([0.5, 1.5])[torch.randint(2, (count,), generator=random)]
    angle = 2 * math.pi * torch.rand(count, generator=random)
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return points + 0.05 * torch.randn(count, 2, generator=random)


fixed = torch.Generator().manual_seed(0)  # data and the noise of validation: of no trial's seed
points, val_points = rings(2000, fixed).to(device()), rings(2000, fixed).to(device())
val_noise = torch.randn(20, 2000, 2, generator=fixed).to(device())
val_times = torch.randint(p.times, (20, 2000), generator=fixed).to(device())
walk = torch.randn(p.times + 1, 500, 2, generator=fixed).to(device())
data = batches(p, points, passes=p.passes)
schedule = cosine(count_steps(p, points, p.passes))

# remaining[t]: share of the data's variance that is left after t + 1 steps
line = torch.linspace(0, 1, p.times + 1, dtype=torch.float64)
curve = torch.cos((line + 0.008) / 1.008 * math.pi / 2) ** 2
alphas = (curve[1:] / curve[:-1]).clamp(min=0.001).float().to(device())
remaining = torch.cumprod(alphas, dim=0)


def waves(x, count):
    """Sines and cosines of x (…, n) at `count` octaves from 1 rad: (…, 2 * count * n)."""
    angles = (x[..., None] * 2.0 ** torch.arange(count, device=x.device)).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Denoiser(nn.Module):
    """The noise in points (…, 2) at times (…). It is given waves of the points, because a plain
    perceptron learns their fine structure too slowly (Tancik et al. 2020, arXiv:2006.10739)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2 + 16 + 8, p.width), nn.SiLU(),
            nn.Linear(p.width, p.width), nn.SiLU(),
            nn.Linear(p.width, p.width), nn.SiLU(),
            nn.Linear(p.width, 2),
        )  # fmt: skip

    def forward(self, x, times):
        time = (times / p.times)[..., None]
        return self.body(torch.cat([x, waves(x, 4), waves(time, 4)], dim=-1))


def noised(x, times, noise):
    share = remaining[times][..., None]
    return share.sqrt() * x + (1 - share).sqrt() * noise


def sample(model):
    """(500, 2) points made from noise that is the same every time: the paper's equation 7, with
    the points it believes in held to where data can be."""
    x = walk[p.times]
    for t in reversed(range(p.times)):
        noise = model(x, torch.full((len(x),), t, device=x.device))
        clean = ((x - (1 - remaining[t]).sqrt() * noise) / remaining[t].sqrt()).clamp(-2, 2)
        before = remaining[t - 1] if t else torch.ones_like(remaining[0])
        x = before.sqrt() * (1 - alphas[t]) / (1 - remaining[t]) * clean + (
            alphas[t].sqrt() * (1 - before) / (1 - remaining[t]) * x
        )
        x = x + ((1 - before) / (1 - remaining[t]) * (1 - alphas[t])).sqrt() * walk[t]
    return x


def ring_distance(x):
    """Mean distance of points from the nearer ring."""
    radius = x.norm(dim=-1)
    return torch.minimum((radius - 0.5).abs(), (radius - 1.5).abs()).mean()


def model():
    global average
    model = Denoiser().to(device())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(p.average))
    return model


def optimiser(model):
    optimiser = torch.optim.AdamW(model.parameters(), lr=p.lr, weight_decay=1e-3)
    optimiser.register_step_post_hook(lambda *_: average.update_parameters(model))
    return optimiser


def loss(model, batch):
    (x,) = batch
    times = torch.randint(p.times, (len(x),)).to(device())
    noise = torch.randn(x.shape).to(device())
    return (model(noised(x, times, noise), times) - noise).square().mean()


def evaluate(model):
    guess = average(noised(val_points, val_times, val_noise), val_times)
    return {
        "val_loss": (guess - val_noise).square().mean(),
        "ring_distance": ring_distance(sample(average)),
    }


run(p, model, optimiser, schedule, data, loss, evaluate)
