"""Word vectors by a continuous bag of words with negative sampling (Mikolov et al. 2013,
arXiv:1310.4546) on English text, with sparse gradients.

Covers EmbeddingBag (its mean, its padding), sparse gradients and how repeated words in a batch add
up, SparseAdam, multinomial sampling, and the logistic loss.
Trivial baseline: a constant score for true and drawn words alike, a loss of 2.70.
"""

import re
from collections import Counter
from itertools import takewhile
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from shared import text
from shared.loop import batches, count_steps, linear, run, using
from torch import nn

from celedger.child.torch import device, parameters

p = parameters(
    epochs=5,
    passes=2,  # over the text an epoch
    lr=1e-2,  # at the start; falls to 0 as a line
    batch=256,  # words a step
    width=32,  # numbers a word
    reach=3,  # words of context on either side
    negatives=5,  # drawn for each true word
    rarest=4,  # times a word must occur to be in the vocabulary
    seed=0,
)


def words(names):
    return re.findall(r"[a-z]+|[.,()=]", "".join(topics[name] for name in names.split()).lower())


counts = Counter(words(text.TRAINING))
vocabulary = sorted(word for word, count in counts.items() if count >= p.rarest)
index = {word: i for i, word in enumerate(vocabulary, start=1)}  # 0 pads
# Drawn in proportion to count ** 0.75, as the paper does
odds = torch.tensor([0.0] + [counts[word] ** 0.75 for word in vocabulary])


def windows(names):
    """Words (n,) and their contexts (n, 2 * reach); contexts end with the sentence."""
    centres, contexts = [], []
    indices = [index.get(word) if word != "." else 0 for word in words(names)]
    line = [0] * p.reach + [i for i in indices if i is not None] + [0] * p.reach
    for i in range(p.reach, len(line) - p.reach):
        before = list(takewhile(bool, reversed(line[i - p.reach : i])))[::-1]
        after = list(takewhile(bool, line[i + 1 : i + 1 + p.reach]))
        if line[i] and before + after:
            centres.append(line[i])
            padding = [0] * p.reach
            contexts.append([*padding, *before][-p.reach :] + [*after, *padding][: p.reach])
    return torch.tensor(centres).to(device()), torch.tensor(contexts).to(device())


centres, contexts = windows(text.TRAINING)
val_centres, val_contexts = windows(text.VALIDATION)
data = batches(p, centres, contexts, passes=p.passes)
optimiser = using(torch.optim.SparseAdam, lr=p.lr)
schedule = linear(count_steps(p, centres, p.passes))
fixed = torch.Generator().manual_seed(0)  # validation draws the same words every time
val_negatives = (
    torch.multinomial(odds, len(val_centres) * p.negatives, replacement=True, generator=fixed)
    .view(-1, p.negatives)
    .to(device())
)


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        size = len(vocabulary) + 1
        self.context = nn.EmbeddingBag(size, p.width, mode="mean", padding_idx=0, sparse=True)
        self.word = nn.Embedding(size, p.width, padding_idx=0, sparse=True)
        nn.init.normal_(self.context.weight, std=0.3)
        nn.init.zeros_(self.word.weight)

    def forward(self, contexts, candidates):
        """Scores (n, k) of k candidates each."""
        return torch.einsum("nc,nkc->nk", self.context(contexts), self.word(candidates))


def logistic(model, centres, contexts, negatives):
    """Nats a word: its own score up, those of the drawn words down."""
    scores = model(contexts, torch.cat([centres[:, None], negatives], dim=1))
    return -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()


def loss(model, batch):
    centres, contexts = batch
    drawn = torch.multinomial(odds, len(centres) * p.negatives, replacement=True)
    return logistic(model, centres, contexts, drawn.view(-1, p.negatives).to(device()))


def evaluate(model):
    return {"val_loss": logistic(model, val_centres, val_contexts, val_negatives)}


run(p, Vectors, optimiser, schedule, data, loss, evaluate)
