"""Classifies the nodes of a graph of two communities; message passing under torch.compile."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_graph(nodes: int = 120, classes: int = 3, features: int = 12):
    g = torch.Generator().manual_seed(3)
    y = torch.randint(classes, (nodes,), generator=g)
    same = y[:, None] == y[None, :]
    chance = torch.where(same, 0.12, 0.02)
    edges = (torch.rand(nodes, nodes, generator=g) < chance).triu(1)
    src, dst = edges.nonzero(as_tuple=True)
    edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    x = F.one_hot(y, features).float() * 0.8 + torch.randn(nodes, features, generator=g)
    order = torch.randperm(nodes, generator=g)
    return x, y, edge_index, order[:60], order[60:]


class GCNConv(nn.Module):
    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        n = x.shape[0]
        ones = torch.ones(src.shape[0], dtype=x.dtype)
        degree = torch.zeros(n).index_add(0, dst, ones) + 1
        norm = degree.rsqrt()
        x = self.lin(x)
        messages = x[src] * (norm[src] * norm[dst]).unsqueeze(-1)
        out = torch.zeros_like(x).index_add(0, dst, messages)
        out = out + x * (1 / degree).unsqueeze(-1)
        return out + self.bias


class GNN(nn.Module):
    def __init__(self, features: int, classes: int, hidden: int = 32):
        super().__init__()
        self.conv1 = GCNConv(features, hidden)
        self.conv2 = GCNConv(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h1 = F.relu(self.conv1(x, edge_index))
        h1 = F.dropout(h1, 0.2, self.training)
        h2 = F.relu(self.conv2(h1, edge_index))
        h2 = self.norm(h2)
        return self.out(torch.cat([h1, h2], dim=-1))


def accuracy(logits: Tensor, y: Tensor) -> float:
    return (logits.argmax(-1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", default=True)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    x, y, edge_index, train, val = make_graph()
    x = x / x.norm(dim=-1, keepdim=True)
    model = GNN(x.shape[1], 3)
    net = torch.compile(model) if args.compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    for epoch in range(args.epochs):
        model.train()
        logits = net(x, edge_index)
        loss = F.cross_entropy(logits[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 5 == 4:
            model.eval()
            with torch.no_grad():
                logits = net(x, edge_index)
            val_loss = F.cross_entropy(logits[val], y[val]).item()
            print(f"epoch {epoch} val_loss {val_loss:.4f} acc {accuracy(logits[val], y[val]):.4f}")


if __name__ == "__main__":
    main()
