"""A GAN on a ring of Gaussians, two optimisers, spectral norm, an average of the generator."""

import argparse
import copy

import torch
from torch import nn

from celedger.child import log

LATENT = 8


class Generator(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LATENT, hidden),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, 2),
        )

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.features = nn.Sequential(
            norm(nn.Linear(2, hidden)), nn.LeakyReLU(0.2), norm(nn.Linear(hidden, hidden))
        )
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(nn.functional.leaky_relu(self.features(x), 0.2)).squeeze(-1)


def sample_real(count):
    angle = torch.randint(8, (count,)) * (2 * torch.pi / 8)
    centre = torch.stack([angle.cos(), angle.sin()], dim=1)
    return 2 * centre + 0.1 * torch.randn(count, 2)


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


@torch.no_grad()
def update_average(average, model, decay=0.95):
    for mean, value in zip(average.parameters(), model.parameters()):
        mean.lerp_(value, 1 - decay)
    for mean, value in zip(average.buffers(), model.buffers()):
        mean.copy_(value)


def d_loss_fn(discriminator, real, fake):
    bce = nn.BCEWithLogitsLoss()
    on_real = discriminator(real)
    on_fake = discriminator(fake)
    real_loss = bce(on_real, torch.full_like(on_real, 0.9))
    fake_loss = bce(on_fake, torch.zeros_like(on_fake))
    return real_loss + fake_loss


def g_loss_fn(discriminator, fake):
    on_fake = discriminator(fake)
    return nn.functional.binary_cross_entropy_with_logits(on_fake, torch.ones_like(on_fake))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    opt = parser.parse_args()
    torch.manual_seed(opt.seed)

    generator, discriminator = Generator(), Discriminator()
    generator.apply(init_weights)
    average = copy.deepcopy(generator)
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=4e-3, betas=(0.5, 0.999))
    fixed = torch.randn(256, LATENT)

    for epoch in range(opt.epochs):
        for _ in range(opt.steps):
            # --- discriminator
            real = sample_real(opt.batch)
            fake = generator(torch.randn(opt.batch, LATENT)).detach()
            d_loss = d_loss_fn(discriminator, real, fake)
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()

            # --- generator
            fake = generator(torch.randn(opt.batch, LATENT))
            g_loss = g_loss_fn(discriminator, fake)
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
            update_average(average, generator)

        average.eval()
        with torch.no_grad():
            points = average(fixed)
            radius = points.norm(dim=1)
            spread = (radius - 2).abs().mean().item()
        print(f"epoch {epoch} d {d_loss.item():.6f} g {g_loss.item():.6f} spread {spread:.6f}")
        log(epoch=epoch, val_loss=spread)


if __name__ == "__main__":
    main()
