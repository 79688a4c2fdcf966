"""Two processes train one regression model with DistributedDataParallel on gloo."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD = 2


def make_data(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 6, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(count, generator=g)
    return TensorDataset(x, y.unsqueeze(1))


class ResidualMLP(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.inp = nn.Linear(6, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for layer, norm in zip(self.layers, self.norms):
            h = h + torch.relu(layer(norm(h)))
        return self.out(h)


def reduce_mean(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def worker(rank, args, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    train, val = make_data(256, 1), make_data(128, 2)
    sampler = DistributedSampler(train, WORLD, rank, shuffle=True, seed=args.seed)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    model = DDP(ResidualMLP())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    criterion = nn.SmoothL1Loss(beta=0.5)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x, y = val.tensors
            part = slice(rank, None, WORLD)
            val_loss = reduce_mean(criterion(model.module(x[part]), y[part]).item())
        if rank == 0:
            print(f"epoch {epoch} val_loss {val_loss:.6f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(args, port), nprocs=WORLD)


if __name__ == "__main__":
    main()
