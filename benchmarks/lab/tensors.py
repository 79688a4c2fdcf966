"""Pure tensors, no torch.optim: a character model with a hand-written RNN and Adam."""

import sys

import torch

TEXT = "the quick brown fox jumps over the lazy dog and runs back to the quiet brown den " * 6
LETTERS = sorted(set(TEXT))
SIZE, WIDTH, SPAN, BATCH = len(LETTERS), 24, 12, 16

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
torch.manual_seed(seed)

codes = torch.tensor([LETTERS.index(c) for c in TEXT])
split = int(0.8 * len(codes))
train, valid = codes[:split], codes[split:]


def weight(rows, columns, gain=1.0):
    w = torch.empty(rows, columns)
    torch.nn.init.orthogonal_(w, gain)
    return w.requires_grad_()


E = (torch.randn(SIZE, WIDTH) * 0.3).requires_grad_()
W_x = weight(WIDTH, WIDTH)
W_h = weight(WIDTH, WIDTH)
b_h = torch.zeros(WIDTH, requires_grad=True)
W_o = weight(WIDTH, SIZE, gain=0.5)
b_o = torch.zeros(SIZE, requires_grad=True)
parameters = [E, W_x, W_h, b_h, W_o, b_o]

optimizer = torch.optim.RMSprop(parameters, lr=3e-3, alpha=0.95)


def batches(data, shuffle):
    starts = torch.arange(0, len(data) - SPAN - 1, SPAN // 3)
    if shuffle:
        starts = starts[torch.randperm(len(starts))]
    for chunk in starts.split(BATCH):
        window = chunk[:, None] + torch.arange(SPAN)
        yield data[window], data[window + 1]


def step(h, x):
    return torch.tanh(E[x] @ W_x + h @ W_h + b_h)


def model(x):
    h = torch.zeros(x.shape[0], WIDTH)
    outputs = []
    for t in range(x.shape[1]):
        h = step(h, x[:, t])
        outputs.append(h @ W_o + b_o)
    return torch.stack(outputs, 1)


def nll(logits, y):
    logp = logits - logits.logsumexp(-1, keepdim=True)
    return -logp.gather(-1, y.unsqueeze(-1)).mean()


def clip(grads, most=0.5):
    norm = torch.sqrt(sum((g**2).sum() for g in grads))
    scale = min(1.0, most / (norm.item() + 1e-6))
    for g in grads:
        g.mul_(scale)


for epoch in range(epochs):
    for x, y in batches(train, shuffle=True):
        loss = nll(model(x), y)
        for p in parameters:
            p.grad = None
        loss.backward()
        clip([p.grad for p in parameters])
        optimizer.step()
    with torch.no_grad():
        losses = [nll(model(x), y) for x, y in batches(valid, shuffle=False)]
        print(f"epoch {epoch} val_loss {torch.stack(losses).mean().item():.6f}")
