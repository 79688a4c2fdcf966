"""An actor and a critic learn to stop a cart at the origin (advantage actor-critic, Mnih et al.
2016, arXiv:1602.01783; Williams 1992).

The cart is a mass on a line with place x and speed v, pushed left, not at all, or right for 0.2 s
at a time, which changes v by 0.2. An episode has 25 pushes from places and speeds in -1..1. A push
costs x² + 0.1 v², and 0.01 more unless it is none.
Covers torch.distributions.Categorical (sampling, log-probability, entropy), softmax, tanh, the
smooth L1 loss, gradients stopped by detach, Adam, and clipping.
The score val_cost is the mean cost of a push when the likelier push is always chosen, from 256
starts that training does not draw. A failure costs 0.2 or 40, as chance has it; val_stopped, the
share of episodes that end near the origin and slow (both under 0.25), is bounded and judged, too.
Trivial baseline: never pushing, 3.48; by chance, 5.21.
"""

import torch
import torch.nn.functional as F
from shared.loop import linear, run, using
from torch import nn
from torch.distributions import Categorical

from celedger.child.torch import device, parameters

p = parameters(
    epochs=4,
    steps=30,  # an epoch
    lr=5e-3,  # at the start; falls to 0 as a line
    episodes=96,  # a step
    pushes=25,  # an episode
    discount=0.9,  # of the cost of the next push
    entropy=3e-3,  # weight of staying undecided, against settling too early
    width=64,
    clip=0.5,  # largest norm of the gradient
    seed=0,
)

optimiser = using(torch.optim.Adam, lr=p.lr)
schedule = linear(p.epochs * p.steps)
fixed = torch.Generator().manual_seed(0)
val_starts = (2 * torch.rand(256, 2, generator=fixed) - 1).to(device())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, p.width), nn.Tanh(), nn.Linear(p.width, p.width), nn.Tanh()
        )
        self.actor = nn.Linear(p.width, 3)
        self.critic = nn.Linear(p.width, 1)

    def forward(self, state):
        y = self.body(state)
        return F.softmax(self.actor(y), dim=-1), self.critic(y)[..., 0]


def push(state, action):
    """The next state (n, 2) and the reward (n,) of pushes 0, 1, 2: left, none, right."""
    force = action - 1.0
    x, v = state.unbind(-1)
    v = v + 0.2 * force
    x = x + 0.2 * v
    return torch.stack([x, v], dim=-1), -(x**2 + 0.1 * v**2 + 0.01 * force**2)


def data():
    return (2 * torch.rand(p.episodes, 2).to(device()) - 1 for _ in range(p.steps))


def loss(model, starts):
    state, values, logs, entropies, rewards = starts, [], [], [], []
    for _ in range(p.pushes):
        chances, value = model(state)
        choice = Categorical(chances)
        action = choice.sample()
        state, reward = push(state, action)
        values.append(value)
        logs.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        rewards.append(reward)
    with torch.no_grad():
        following = model(state)[1]  # the episode is cut, not over: what would have come
    returns = []
    for reward in reversed(rewards):
        following = (1 - p.discount) * reward + p.discount * following  # a mean, not a sum
        returns.append(following)
    returns, values = torch.stack(returns[::-1]), torch.stack(values)
    advantage = (returns - values).detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    actor = -(torch.stack(logs) * advantage).mean() - p.entropy * torch.stack(entropies).mean()
    return actor + 0.5 * F.smooth_l1_loss(values, returns)


def evaluate(model):
    state, cost = val_starts, 0.0
    for _ in range(p.pushes):
        state, reward = push(state, model(state)[0].argmax(-1))
        cost = cost - reward.mean() / p.pushes
    chances, _ = model(val_starts)
    return {
        "val_cost": cost,
        "val_stopped": (state.abs() < 0.25).all(-1).double().mean(),
        "val_entropy": Categorical(chances).entropy().mean(),
    }


run(p, ActorCritic, optimiser, schedule, data, loss, evaluate, clip=p.clip)
