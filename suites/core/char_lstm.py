"""An LSTM that predicts the next character of English text (Hochreiter & Schmidhuber 1997; Graves
2013, arXiv:1308.0850).

Covers embeddings, the LSTM's gates and their gradient through time, gradient clipping, and Adam.
Trivial baseline: the characters' frequencies, 3.3 nats a character; the commonest one, 17 % right.
"""

import torch
from shared.loop import batches, count_steps, linear, run, using
from shared.text import ALPHABET, Text
from torch import nn

from celedger.child.torch import parameters

p = parameters(
    epochs=5,
    lr=1e-2,  # at the start; falls to 0 as a line
    batch=32,  # windows a step
    length=32,  # characters of a window
    embedding=32,
    width=128,
    clip=1.0,  # largest norm of the gradient: at this rate it is needed
    seed=0,
)

text = Text(p.length)
data = batches(p, text.windows)
optimiser = using(torch.optim.Adam, lr=p.lr)
schedule = linear(count_steps(p, text.windows))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), p.embedding)
        self.lstm = nn.LSTM(p.embedding, p.width, batch_first=True)
        self.head = nn.Linear(p.width, len(ALPHABET))

    def forward(self, x):
        states, _ = self.lstm(self.characters(x))
        return self.head(states)


run(p, LSTM, optimiser, schedule, data, text.loss, text.evaluate, clip=p.clip)
