"""Average checkpoints in three commands, train, average and test (Izmailov et al. 2018,
arXiv:1803.05407), for a small CNN on 8 x 8 digits.

`--stage train` trains at a rate that stays high and saves a checkpoint an epoch; `average` takes
the mean of the last ones and gathers batch norm's statistics anew for it; `test` scores the mean.
The last checkpoint's val_loss is poor, because its rate is high; averaged_loss must beat it.
Covers torch.save and torch.load, state_dict, torch.optim.swa_utils (the mean and update_bn), batch
norm's running statistics, max pooling, and SGD with momentum.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right.
"""

from pathlib import Path

import torch
from shared.digits import Digits
from shared.loop import batches, run, using
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from celedger.child import log
from celedger.child.torch import device, fingerprint, parameters

p = parameters(
    stage="train",  # or average, or test
    out=".",  # folder of the checkpoints
    epochs=8,
    last=4,  # checkpoints in the mean
    lr=0.3,  # at the start; from the checkpoints on `high`
    high=0.1,
    batch=32,  # images a step
    width=8,  # channels of the first layer; twice as many after each pooling
    seed=0,
)

digits = Digits()
data = batches(p, digits.images, digits.labels)
optimiser = using(torch.optim.SGD, lr=p.lr, momentum=0.9, weight_decay=1e-3)


def checkpoint(epoch):
    return Path(p.out, f"epoch_{epoch}.pt")


def model():
    c = p.width

    def stage(inputs, outputs):
        return (
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    return nn.Sequential(
        *stage(1, c),
        nn.MaxPool2d(2),
        *stage(c, 2 * c),
        nn.MaxPool2d(2),
        *stage(2 * c, 4 * c),
        nn.Flatten(),
        nn.Linear(16 * c, 10),
    )


def schedule(optimiser):
    falling = (p.epochs - p.last) * -(-len(digits.images) // p.batch)
    return SWALR(optimiser, swa_lr=p.high, anneal_epochs=max(1, falling), anneal_strategy="cos")


epochs_seen = iter(range(p.epochs))


def evaluate(model):
    torch.save(model.state_dict(), checkpoint(next(epochs_seen)))
    return digits.evaluate(model)


if p.stage == "train":
    run(p, model, optimiser, schedule, data, digits.loss, evaluate)

elif p.stage == "average":
    mean = AveragedModel(model().to(device()))
    for epoch in range(p.epochs - p.last, p.epochs):
        member = model().to(device())
        member.load_state_dict(torch.load(checkpoint(epoch), weights_only=True))
        mean.update_parameters(member)
    with torch.no_grad():
        update_bn(digits.images.split(p.batch), mean)
    torch.save(mean.module.state_dict(), Path(p.out, "mean.pt"))

elif p.stage == "test":
    mean = model().to(device())
    mean.load_state_dict(torch.load(Path(p.out, "mean.pt"), weights_only=True))
    mean.eval()
    with torch.no_grad():
        scores = digits.evaluate(mean)
    log(
        epoch=p.epochs,  # behind those of the training: other weights
        fingerprint=fingerprint(mean),
        averaged_loss=scores["val_loss"],
        averaged_accuracy=scores["val_accuracy"],
    )
    print(f"averaged_loss {scores['val_loss']:.4g}")

else:
    raise SystemExit(f"there is no stage {p.stage!r}: train, average or test")
