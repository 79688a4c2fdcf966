"""A graph network that tells the communities of a graph from a few labels (GraphSAGE with mean
aggregation, Hamilton et al. 2017, arXiv:1706.02216).

The graph is a stochastic block model: 800 nodes in 4 communities, an edge with probability 0.03
inside one and 0.004 between two, and 8 features of pure noise but for a shift of 0.5 along one
axis for each community. A quarter of the nodes is for training, the rest for validation.
Covers gather and scatter (the mean and the maximum over neighbours), their gradients, layer norm,
ELU, dropout, and Adam with coupled weight decay.
Trivial baseline: the communities' shares, a loss of ln 4 = 1.39 and 25 % right; the best guess from
a node's own features is 39 % right.
"""

import torch
import torch.nn.functional as F
from shared.loop import cosine, run, using
from torch import nn

from celedger.child.torch import device, parameters

p = parameters(
    epochs=5,
    steps=20,  # an epoch, each over the whole graph
    lr=5e-3,  # at the start; falls to 0 as a cosine
    decay=5e-3,  # of all weights, added to the gradient
    width=32,
    dropout=0.5,
    seed=0,
)

NODES, COMMUNITIES, FEATURES = 800, 4, 8


def graph():
    """Labels (n,), features (n, 8), and edges (2, e) in both directions, sorted by target."""
    fixed = torch.Generator().manual_seed(0)
    labels = torch.arange(NODES) % COMMUNITIES
    features = torch.randn(NODES, FEATURES, generator=fixed)
    features[torch.arange(NODES), labels] += 0.5
    inside = labels[:, None] == labels[None, :]
    probability = torch.where(inside, 0.03, 0.004)
    drawn = torch.rand(NODES, NODES, generator=fixed).triu(1) > 1 - probability
    return labels, features, (drawn | drawn.T).nonzero().T.flip(0).contiguous()


labels, features, edges = (tensor.to(device()) for tensor in graph())
degrees = edges[1].bincount(minlength=NODES).clamp(min=1)[:, None]
optimiser = using(torch.optim.Adam, lr=p.lr, weight_decay=p.decay)
schedule = cosine(p.epochs * p.steps)
labelled = (torch.arange(NODES, device=device()) // COMMUNITIES) % 4 == 0
train_nodes, val_nodes = labelled.nonzero()[:, 0], (~labelled).nonzero()[:, 0]


class Layer(nn.Module):
    """Each node from itself, and from the mean and the maximum over its neighbours."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(3 * inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x):
        source, target = edges
        message = x[source]
        rows = target[:, None].expand_as(message)
        # A mean by scatter_reduce has no fixed order of additions on CUDA in every torch.
        mean = torch.zeros_like(x).index_add(0, target, message) / degrees
        most = torch.zeros_like(x).scatter_reduce(0, rows, message, "amax", include_self=False)
        return F.elu(self.norm(self.linear(torch.cat([x, mean, most], dim=1))))


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(FEATURES, p.width), Layer(p.width, p.width)])
        self.head = nn.Linear(p.width, COMMUNITIES)

    def forward(self, x):
        for layer in self.layers:
            x = F.dropout(layer(x), p.dropout, self.training)
        return self.head(x)


def data():
    return [train_nodes] * p.steps


def loss(model, batch):
    return F.cross_entropy(model(features)[batch], labels[batch])


def evaluate(model):
    logits = model(features)[val_nodes]
    return {
        "val_loss": F.cross_entropy(logits, labels[val_nodes]),
        "val_accuracy": (logits.argmax(1) == labels[val_nodes]).double().mean(),
    }


run(p, GraphNetwork, optimiser, schedule, data, loss, evaluate)
