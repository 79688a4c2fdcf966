"""Reverses sequences of letters: a GRU encoder, a decoder with attention, packed sequences."""

import argparse
import random

import torch
from torch import nn, optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from celedger.child import log

PAD, BOS, EOS = 0, 1, 2
VOCAB = 15


def make_pairs(count, rng):
    pairs = []
    for _ in range(count):
        word = [rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 9))]
        pairs.append((word, word[::-1]))
    return pairs


def batches(pairs, size, rng=None):
    order = list(range(len(pairs)))
    if rng is not None:
        rng.shuffle(order)
    for start in range(0, len(order), size):
        chosen = [pairs[i] for i in order[start : start + size]]
        src = [torch.tensor(s + [EOS]) for s, _ in chosen]
        tgt = [torch.tensor([BOS] + t + [EOS]) for _, t in chosen]
        lengths = torch.tensor([len(s) for s in src])
        yield (
            pad_sequence(src, batch_first=True, padding_value=PAD),
            lengths,
            pad_sequence(tgt, batch_first=True, padding_value=PAD),
        )


class Encoder(nn.Module):
    def __init__(self, emb=16, hidden=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(
            self.embedding(src), lengths, batch_first=True, enforce_sorted=False
        )
        output, hidden = self.rnn(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        hidden = torch.tanh(self.bridge(torch.cat([hidden[0], hidden[1]], dim=-1)))
        return output, hidden


class Attention(nn.Module):
    """Additive attention (Bahdanau)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(2 * hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, hidden, memory, mask):
        energy = torch.tanh(self.query(hidden).unsqueeze(1) + self.key(memory))
        scores = self.score(energy).squeeze(-1)
        scores = scores.masked_fill(~mask, -1e9)
        weights = scores.softmax(dim=-1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Decoder(nn.Module):
    def __init__(self, emb=16, hidden=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb, padding_idx=PAD)
        self.attention = Attention(hidden)
        self.cell = nn.GRUCell(emb + 2 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(3 * hidden, VOCAB)

    def forward(self, token, hidden, memory, mask):
        context = self.attention(hidden, memory, mask)
        x = torch.cat([self.embedding(token), context], dim=-1)
        hidden = self.cell(self.dropout(x), hidden)
        return self.out(torch.cat([hidden, context], dim=-1)), hidden


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, src, lengths, tgt, teacher=1.0):
        memory, hidden = self.encoder(src, lengths)
        mask = torch.arange(memory.shape[1])[None, :] < lengths[:, None]
        token, outputs = tgt[:, 0], []
        for t in range(1, tgt.shape[1]):
            logits, hidden = self.decoder(token, hidden, memory, mask)
            outputs.append(logits)
            forced = random.random() < teacher
            token = tgt[:, t] if forced else logits.argmax(-1)
        return torch.stack(outputs, dim=1)


def run_epoch(model, pairs, args, rng=None, optimizer=None):
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    total, count, right = 0.0, 0, 0
    for src, lengths, tgt in batches(pairs, args.batch_size, rng):
        teacher = 0.8 if optimizer is not None else 1.0
        logits = model(src, lengths, tgt, teacher)
        gold = tgt[:, 1:]
        loss = criterion(logits.reshape(-1, VOCAB), gold.reshape(-1))
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        tokens = (gold != PAD).sum().item()
        total += loss.item() * tokens
        right += ((logits.argmax(-1) == gold) & (gold != PAD)).sum().item()
        count += tokens
    return total / count, right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    train, valid = make_pairs(192, rng), make_pairs(64, rng)
    model = Seq2Seq()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        train_loss, _ = run_epoch(model, train, args, rng, optimizer)
        model.eval()
        with torch.no_grad():
            val_loss, accuracy = run_epoch(model, valid, args)
        print(f"epoch {epoch}: train {train_loss:.6f} valid {val_loss:.6f} acc {accuracy:.6f}")
        log(epoch=epoch, val_loss=val_loss, val_accuracy=accuracy)


if __name__ == "__main__":
    main()
