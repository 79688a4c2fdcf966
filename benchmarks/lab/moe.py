"""A mixture of experts in functional style: parameters in a dict, no nn.Module."""

import math
import sys

import torch
import torch.nn.functional as F

WIDTH, HIDDEN, EXPERTS, TOP, CLASSES = 16, 24, 4, 2, 5


def make_data(count, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES * 2, WIDTH, generator=torch.Generator().manual_seed(7))
    cluster = torch.randint(CLASSES * 2, (count,), generator=g)
    x = centres[cluster] + 0.7 * torch.randn(count, WIDTH, generator=g)
    return x, cluster % CLASSES


def init_params(generator):
    def normal(*shape, fan_in):
        return torch.randn(*shape, generator=generator) / math.sqrt(fan_in)

    params = {
        "embed.w": normal(WIDTH, HIDDEN, fan_in=WIDTH),
        "embed.b": torch.zeros(HIDDEN),
        "gate.w": normal(HIDDEN, EXPERTS, fan_in=HIDDEN),
        "experts.up": normal(EXPERTS, HIDDEN, 2 * HIDDEN, fan_in=HIDDEN),
        "experts.down": normal(EXPERTS, 2 * HIDDEN, HIDDEN, fan_in=2 * HIDDEN),
        "norm.scale": torch.ones(HIDDEN),
        "head.w": normal(HIDDEN, CLASSES, fan_in=HIDDEN),
        "head.b": torch.zeros(CLASSES),
    }
    return {name: value.requires_grad_() for name, value in params.items()}


def rms_norm(x, scale, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def route(x, gate):
    """Weights of the experts, zero but for the best TOP, and the balance loss."""
    probs = F.softmax(x @ gate, dim=-1)
    best, index = probs.topk(TOP, dim=-1)
    best = best / best.sum(-1, keepdim=True)
    weights = torch.zeros_like(probs).scatter(1, index, best)
    load = (weights > 0).float().mean(0)
    balance = EXPERTS * (load * probs.mean(0)).sum()
    return weights, balance


def experts(params, x, weights):
    hidden = torch.einsum("nd,edh->neh", x, params["experts.up"])
    hidden = F.gelu(hidden)
    out = torch.einsum("neh,ehd->ned", hidden, params["experts.down"])
    return (out * weights.unsqueeze(-1)).sum(1)


def forward(params, x):
    h = torch.tanh(x @ params["embed.w"] + params["embed.b"])
    normed = rms_norm(h, params["norm.scale"])
    weights, balance = route(normed, params["gate.w"])
    h = h + experts(params, normed, weights)
    return h @ params["head.w"] + params["head.b"], balance


def loss_fn(params, x, y):
    logits, balance = forward(params, x)
    return F.cross_entropy(logits, y) + 0.01 * balance


def lr_at(step, total, peak=0.02, warmup=4):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main(seed=0, epochs=2, batch=32):
    generator = torch.Generator().manual_seed(seed)
    x, y = make_data(256, 1)
    val_x, val_y = make_data(128, 2)
    params = init_params(generator)
    decayed = [p for name, p in params.items() if p.dim() > 1]
    others = [p for name, p in params.items() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=0.0,
    )
    total = epochs * len(x) // batch
    step = 0
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(batch):
            for group in optimizer.param_groups:
                group["lr"] = lr_at(step, total)
            loss = loss_fn(params, x[rows], y[rows])
            grads = torch.autograd.grad(loss, list(params.values()))
            for p, grad in zip(params.values(), grads):
                p.grad = grad
            optimizer.step()
            step += 1
        with torch.no_grad():
            logits, _ = forward(params, val_x)
            val_loss = F.cross_entropy(logits, val_y).item()
            accuracy = (logits.argmax(-1) == val_y).float().mean().item()
        print(f"epoch {epoch} val_loss {val_loss:.6f} accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
