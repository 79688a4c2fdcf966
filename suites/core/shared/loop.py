"""What the trainings of the shipped suites share: the loop, with its batches and rates."""

from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from celedger.child.torch import shuffled, train


def run(p, model, optimiser, schedule, data, loss, evaluate, **options):
    """Train for `p.epochs` epochs with the seed `p.seed`; see celedger.child.torch.train."""
    train(
        model=model,
        optimiser=optimiser,
        schedule=schedule,
        data=data,
        loss=loss,
        evaluate=evaluate,
        epochs=p.epochs,
        seed=p.seed,
        **options,
    )


def batches(p, *tensors, passes=1):
    """Return a function that gives the batches of an epoch: each pass in a new order."""

    def data():
        for _ in range(passes):
            yield from shuffled(*tensors, size=p.batch)

    return data


def count_steps(p, rows, passes=1):
    """Return the steps of a whole training over `rows`."""
    return p.epochs * passes * -(-len(rows) // p.batch)


def using(optimiser, **options):
    """Return a function that makes the optimiser of a model."""
    return lambda model: optimiser(model.parameters(), **options)


def linear(steps, end=0.0):
    """Return a schedule whose rate falls to `end` of itself as a line."""
    return lambda optimiser: LinearLR(optimiser, 1.0, end, total_iters=steps)


def cosine(steps):
    """Return a schedule whose rate falls to 0 as a cosine."""
    return lambda optimiser: CosineAnnealingLR(optimiser, steps)


def warmed(steps, share, fall):
    """Return a schedule whose rate rises as a line for a share of the steps and then falls as the
    schedule that `fall(optimiser, steps left)` makes."""
    warmup = max(1, round(share * steps))

    def schedule(optimiser):
        up = LinearLR(optimiser, 0.05, 1.0, warmup)
        return SequentialLR(optimiser, [up, fall(optimiser, max(1, steps - warmup))], [warmup])

    return schedule


def one_cycle(rate, steps):
    """Return a schedule whose rate rises to `rate` and falls again."""
    return lambda optimiser: OneCycleLR(optimiser, rate, total_steps=steps, cycle_momentum=False)
