"""Faults of the kind that frameworks have shipped, each put into torch by replacing one function.

`FAULTS` maps a name to a function that injects it; its docstring says what is wrong. `TARGETS`
tells which functions a fault replaces, so that a task that never calls them need not be run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributions import Normal, kl
from torch.optim import _functional as sparse_module
from torch.optim import adam as adam_module
from torch.optim import lr_scheduler, swa_utils
from torch.optim import sgd as sgd_module
from torch.utils import checkpoint as checkpoint_module

Fault = Callable[[], None]
FAULTS: dict[str, Fault] = {}
TARGETS: dict[str, tuple[object, str]] = {}


def fault(owner: object, name: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Registers a wrapper `wrong(right, *args, **kwargs)` of `owner.name` as a fault."""

    def register(wrong: Callable[..., object]) -> Callable[..., object]:
        title = wrong.__name__.replace("_", "-")

        def inject() -> None:
            right = getattr(owner, name)
            setattr(owner, name, lambda *args, **kwargs: wrong(right, *args, **kwargs))

        inject.__doc__ = wrong.__doc__
        FAULTS[title] = inject
        TARGETS[title] = (owner, name)
        return wrong

    return register


def inject(name: str) -> Fault | None:
    """Inject one fault, or `mutation:…` of a training (see `torch_mutations`). With `count:FILE`
    break nothing: what is returned is to be called at the end."""
    if name.startswith("mutation:"):
        import torch_mutations

        torch_mutations.mutate(name.removeprefix("mutation:"))
    elif name.startswith("count:"):
        return _count(name.removeprefix("count:"))
    else:
        FAULTS[name]()
    return None


def _count(path: str) -> Fault:
    """What writes the names of the faults whose function was called."""
    from pathlib import Path

    called: set[str] = set()
    places: dict[tuple[int, str], list[str]] = {}
    for title, (owner, name) in TARGETS.items():
        places.setdefault((id(owner), name), []).append(title)
    for titles in places.values():
        owner, name = TARGETS[titles[0]]
        right = getattr(owner, name)

        def counted(*args, right=right, titles=titles, **kwargs):
            called.update(titles)
            return right(*args, **kwargs)

        setattr(owner, name, counted)

    def write() -> None:
        file = Path(path)
        before = file.read_text().split() if file.exists() else []  # by an earlier command
        file.write_text("\n".join(sorted({*before, *called})))

    return write


# --- normalisation


@fault(F, "batch_norm")
def batch_norm_epsilon(
    right, x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Epsilon 1e-3, as another framework has it, for 1e-5."""
    return right(x, mean, var, weight, bias, training, momentum, 1e-3)


@fault(F, "batch_norm")
def batch_norm_momentum(
    right, x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Running statistics keep what they should replace: momentum 0.1 read as 0.9."""
    return right(x, mean, var, weight, bias, training, 1 - momentum, eps)


@fault(F, "layer_norm")
def layer_norm_variance(right, x, shape, weight=None, bias=None, eps=1e-5):
    """Variance divided by n - 1."""
    axes = tuple(range(-len(shape), 0))
    var, mean = torch.var_mean(x, axes, correction=1, keepdim=True)
    y = (x - mean) / (var + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@fault(F, "group_norm")
def group_norm_groups(right, x, groups, weight=None, bias=None, eps=1e-5):
    """One group of all channels."""
    return right(x, 1, weight, bias, eps)


# --- activations, attention, pooling


@fault(F, "gelu")
def gelu_tanh(right, x, approximate="none"):
    """The tanh form of GELU, off by 5e-4 at most."""
    return right(x, approximate="tanh")


@fault(F, "scaled_dot_product_attention")
def attention_scale(right, q, k, v, *args, **kwargs):
    """Scores not divided by the root of the head's width."""
    return right(q, k, v, *args, **{**kwargs, "scale": 1.0})


@fault(F, "scaled_dot_product_attention")
def causal_mask(right, q, k, v, *args, is_causal=False, **kwargs):
    """The causal mask off by one: a place sees the next."""
    if not is_causal:
        return right(q, k, v, *args, **kwargs)
    rows = q.shape[-2], k.shape[-2]
    mask = torch.ones(rows, dtype=torch.bool, device=q.device).tril(1)
    return right(q, k, v, attn_mask=mask, **kwargs)


@fault(F, "softmax")
def softmax_axis(right, x, dim=None, *args, **kwargs):
    """Over the batch, whatever dimension was asked for."""
    return right(x, 0, *args, **kwargs)


@fault(F, "avg_pool2d")
def average_pool_padding(
    right, x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, *rest
):
    """The mean counts padding, though told not to."""
    return right(x, size, stride, padding, ceil_mode, True, *rest)


@fault(F, "max_pool2d")
def max_pool_padding(right, x, size, stride=None, padding=0, *args, **kwargs):
    """Pads with zeros, which beat negative values."""
    return right(F.pad(x, (padding,) * 4), size, stride, 0, *args, **kwargs)


@fault(F, "dropout")
def dropout_scale(right, x, p=0.5, training=True, inplace=False):
    """What is kept is not divided by 1 - p."""
    return right(x, p, training) * (1 - p) if training else x


@fault(F, "dropout")
def dropout_evaluation(right, x, p=0.5, training=True, inplace=False):
    """Goes on dropping in evaluation."""
    return right(x, p, True)


# --- losses and laws


def _cross_entropy(**changed):
    def wrong(right, x, y, weight=None, size_average=None, ignore_index=-100, *rest, **kwargs):
        said = {"weight": weight, "ignore_index": ignore_index, **kwargs}
        return right(x, y, **{**said, **changed})

    return wrong


@fault(F, "cross_entropy")
def label_smoothing(right, *args, **kwargs):
    """Label smoothing ignored."""
    return _cross_entropy(label_smoothing=0.0)(right, *args, **kwargs)


@fault(F, "cross_entropy")
def ignore_index(right, *args, **kwargs):
    """Labels to be ignored are learned."""
    return _cross_entropy(ignore_index=-100)(right, *args, **kwargs)


@fault(F, "cross_entropy")
def class_weights(right, x, y, weight=None, *args, **kwargs):
    """The weighted mean divides by the number of labels, not by their weights."""
    if weight is None:
        return right(x, y, *args, **kwargs)
    return right(x, y, weight, *args, reduction="none", **kwargs).sum() / y.numel()


def _inject_kl() -> None:
    """The divergence of two normals without its factor 1/2."""
    right = kl._KL_REGISTRY[(Normal, Normal)]
    kl._KL_REGISTRY[(Normal, Normal)] = lambda p, q: 2 * right(p, q)
    kl._KL_MEMOIZE.clear()


FAULTS["kl-scale"] = _inject_kl
TARGETS["kl-scale"] = (Normal, "rsample")  # who asks for the divergence also samples


# --- optimisers and schedules


@fault(sgd_module, "sgd")
def sgd_momentum(right, *args, momentum, nesterov, **kwargs):
    """Momentum not applied."""
    return right(*args, momentum=0.0, nesterov=False, **kwargs)


@fault(sgd_module, "sgd")
def sgd_nesterov(right, *args, nesterov, **kwargs):
    """Plain momentum for Nesterov's."""
    return right(*args, nesterov=False, **kwargs)


def _adam(
    params, grads, firsts, seconds, steps, *, decoupled_weight_decay, beta1, beta2, lr,
    weight_decay, eps, corrected=True, eps_inside=False,
) -> None:  # fmt: skip
    """Adam and AdamW as Loshchilov & Hutter 2019 (arXiv:1711.05101, algorithm 2) write them."""
    for weight, gradient, m, v, step in zip(params, grads, firsts, seconds, steps, strict=True):
        step += 1
        if decoupled_weight_decay:
            weight.mul_(1 - lr * weight_decay)
        elif weight_decay:
            gradient = gradient + weight_decay * weight
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        t = step.item()
        first = m / (1 - beta1**t) if corrected else m
        second = v / (1 - beta2**t) if corrected else v
        below = (second + eps).sqrt() if eps_inside else second.sqrt() + eps
        weight.sub_(lr * first / below)


def _wrong_adam(**changed):
    keys = ("decoupled_weight_decay", "beta1", "beta2", "lr", "weight_decay", "eps")

    def wrong(right, params, grads, firsts, seconds, largest, steps, **kwargs):
        if kwargs.get("grad_scale") is not None:
            raise NotImplementedError
        said = {key: kwargs[key] for key in keys}
        with torch.no_grad():
            _adam(params, grads, firsts, seconds, steps, **{**said, **changed})

    return wrong


@fault(adam_module, "adam")
def adam_bias_correction(right, *args, **kwargs):
    """Moments not corrected for starting at zero."""
    _wrong_adam(corrected=False)(right, *args, **kwargs)


@fault(adam_module, "adam")
def adam_epsilon_place(right, *args, **kwargs):
    """Epsilon under the root."""
    _wrong_adam(eps_inside=True)(right, *args, **kwargs)


@fault(adam_module, "adam")
def adamw_coupled(right, *args, **kwargs):
    """AdamW adds its decay to the gradient, as Adam does."""
    _wrong_adam(decoupled_weight_decay=False)(right, *args, **kwargs)


@fault(adam_module, "adam")
def adam_decoupled(right, *args, **kwargs):
    """Adam decouples its decay, as AdamW does."""
    _wrong_adam(decoupled_weight_decay=True)(right, *args, **kwargs)


@fault(sparse_module, "sparse_adam")
def sparse_duplicates(right, params, grads, *args, **kwargs):
    """Of the gradients of a row that occurs more than once, the last counts, not their sum."""
    kept = []
    for gradient in grads:
        rows, values = gradient._indices()[0], gradient._values()
        last = torch.zeros(gradient.shape[0], dtype=torch.long).scatter_reduce(
            0, rows, torch.arange(len(rows)), "amax"
        )
        unique = rows.unique()
        kept.append(torch.sparse_coo_tensor(unique[None], values[last[unique]], gradient.shape))
    return right(params, kept, *args, **kwargs)


@fault(torch.nn.utils, "clip_grad_norm_")
def clip_ignored(right, weights, *args, **kwargs):
    """The norm is computed and nothing is clipped."""
    return right(weights, math.inf)


@fault(lr_scheduler.LRScheduler, "step")
def schedule_late(right, self, *args, **kwargs):
    """The first step of every schedule is lost, so that it lags by one."""
    if self._step_count == 1 and not getattr(self, "_lost", False):
        self._lost = True
        return None
    return right(self, *args, **kwargs)


@fault(torch.amp.GradScaler, "unscale_")
def scaler_clip(right, self, optimiser):
    """The gradient is unscaled after it was clipped, not before."""
    if not getattr(self, "_asked", False):
        self._asked = True  # by the script; the next call is the scaler's own, in its step
        return None
    self._asked = False
    return right(self, optimiser)


@fault(swa_utils, "get_ema_multi_avg_fn")
def average_decay(right, decay=0.999):
    """An exponential average that mistakes its decay for the share of the new."""
    return right(1 - decay)


# --- gather, scatter, sparse


@fault(F, "embedding_bag")
def embedding_bag_padding(right, *args, padding_idx=None, **kwargs):
    """Padding counts in the mean."""
    return right(*args[:10], **kwargs)  # padding_idx is the eleventh


@fault(Tensor, "scatter_reduce")
def scatter_mean(right, self, dim, index, source, reduce, **kwargs):
    """A mean over neighbours that is their sum."""
    return right(self, dim, index, source, "sum" if reduce == "mean" else reduce, **kwargs)


# --- recomputation


@fault(checkpoint_module, "checkpoint")
def checkpoint_random(right, *args, **kwargs):
    """Activations are computed anew with other random numbers."""
    return right(*args, **{**kwargs, "preserve_rng_state": False})
