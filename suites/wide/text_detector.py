"""A detector of words in images by differentiable binarisation (Liao et al. 2020, "DB",
arXiv:1911.08947): a residual backbone with a feature pyramid, and heads for a probability and a
threshold map, from which training makes an approximate binary map. scene_text.py draws the images.
Far smaller than the paper's: three stages instead of ResNet-18's four, no deformable convolution;
dice for the binary map, as in the authors' code.

Covers strided and transposed convolution, batch norm, nearest upsampling, sigmoid, binary
cross-entropy, topk, masked means, Adam under a warm-up and a polynomial schedule, and the latency
of one image from pixels to boxes.
Trivial baseline: threshold and components on raw pixels (scene_text.threshold_boxes), an F-measure
of 0.68.
"""

import time
from functools import partial
from itertools import pairwise

import numpy as np
import rectangles
import scene_text
import torch
import torch.nn.functional as F
from residual import Block, conv
from shared.loop import count_steps, run, using, warmed
from torch import nn
from torch.optim.lr_scheduler import PolynomialLR

from celedger.child.torch import device, parameters, quantile, shuffled

p = parameters(
    epochs=8,
    images=384,  # to train on
    val_images=96,
    lr=1e-2,  # of Adam after the warm-up (the paper: SGD, 7e-3); falls to 0 as (1 - done)^0.9
    warmup=0.1,  # share of all steps
    batch=8,  # images a step
    width=12,  # channels of the first stage
    pyramid=24,  # channels of the feature pyramid, all its levels together
    k=50.0,  # steepness of the binarisation
    negatives=3.0,  # pixels without text that count in the loss, to one with text: the hardest
    alpha=1.0,  # the paper's weight of the binary map's loss
    beta=10.0,  # the paper's weight of the threshold map's loss
    threshold=0.3,  # of the probability map, to find boxes
    score=0.6,  # least mean probability of a box
    unclip=1.5,  # the paper's r', which grows a found kernel back to the text
    seed=0,
)

LOW, HIGH = 0.3, 0.7  # the threshold map's range, so that it stays off the sigmoid's ends
SMALLEST = 6  # pixels of a component that may be text
where = device()


def targets(boxes):
    """Maps (4, SIZE, SIZE): shrunk texts; threshold; where the threshold counts; whole texts.

    The threshold map is HIGH at a text's border and falls to LOW at the offset, on both sides.
    """
    kernel, border, near = np.zeros((3, scene_text.SIZE, scene_text.SIZE), np.float32)
    for box in boxes:
        far, reach = rectangles.distance(box, scene_text.SIZE), rectangles.offset(box)
        kernel[far <= -reach] = 1
        near[far <= reach] = 1
        border = np.maximum(border, 1 - np.abs(far) / reach)
    return np.stack([kernel, LOW + (HIGH - LOW) * border, near])


def load(count, seed):
    images, boxes = scene_text.images(count, seed)
    maps = np.stack([targets(b) for b in boxes]).astype(np.float32)
    pixels = torch.from_numpy(images)[:, None] - 0.5
    return pixels.to(where), torch.from_numpy(maps).to(where), boxes


images, maps, _ = load(p.images, seed=1)  # the data are the same for every --seed
val_images, val_maps, val_boxes = load(p.val_images, seed=2)
optimiser = using(torch.optim.Adam, lr=p.lr)
schedule = warmed(count_steps(p, images), p.warmup, partial(PolynomialLR, power=0.9))


def head():
    """A map (n, 1, SIZE, SIZE) of logits from features at a quarter of that."""
    c = p.pyramid // 2
    return nn.Sequential(
        conv(p.pyramid, c),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.ConvTranspose2d(c, c, 2, stride=2),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.ConvTranspose2d(c, 1, 2, stride=2),
    )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [p.width, 3 * p.width // 2, 2 * p.width, 3 * p.width]
        self.stem = nn.Sequential(conv(1, p.width, stride=2), nn.BatchNorm2d(p.width), nn.ReLU())
        self.stages = nn.ModuleList(Block(i, o, stride=2) for i, o in pairwise(widths))
        levels = widths[1:]
        self.lateral = nn.ModuleList(nn.Conv2d(w, p.pyramid, 1) for w in levels)
        shares = [p.pyramid // 2, p.pyramid // 4, p.pyramid // 4]
        self.smooth = nn.ModuleList(conv(p.pyramid, share) for share in shares)
        self.probability, self.threshold = head(), head()

    def features(self, x):
        """The pyramid: levels at 1/4, 1/8, 1/16 of the image, brought to 1/4 and joined."""
        x, levels = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        above, joined = 0, []
        for i in (2, 1, 0):
            above = self.lateral[i](levels[i]) + above
            joined.append(F.interpolate(self.smooth[i](above), scale_factor=float(2**i)))
            above = F.interpolate(above, scale_factor=2.0)
        return torch.cat(joined, 1)

    def forward(self, x):
        """Logits of probability and threshold, each (n, SIZE, SIZE)."""
        features = self.features(x)
        return self.probability(features).squeeze(1), self.threshold(features).squeeze(1)


def balanced_cross_entropy(logits, target):
    """Mean over all pixels of text and the `negatives` times as many others of the largest loss."""
    losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    positive = losses[target > 0.5]
    negative = losses[target <= 0.5]
    count = min(len(negative), int(p.negatives * len(positive)))
    hardest = negative.topk(count).values
    return (positive.sum() + hardest.sum()) / max(1, len(positive) + count)


def dice(probability, target):
    """1 - 2 |A and B| / (|A| + |B|)."""
    return 1 - 2 * (probability * target).sum() / (probability.sum() + target.sum() + 1e-6)


def loss_of(outputs, maps):
    probability, threshold = outputs[0], outputs[1].sigmoid()
    kernel, border, near = maps.unbind(1)
    binary = (p.k * (probability.sigmoid() - threshold)).sigmoid()
    l1 = ((threshold - border).abs() * near).sum() / near.sum().clamp(min=1)
    return (
        balanced_cross_entropy(probability, kernel) + p.alpha * dice(binary, kernel) + p.beta * l1
    )


def varied(images, maps):
    """Half of the images as negatives, half of them mirrored with their maps."""
    sign = (2 * torch.randint(2, (len(images), 1, 1, 1)) - 1).to(where)
    mirrored = torch.randint(2, (len(images), 1, 1, 1)).bool().to(where)
    return images.flip(3).where(mirrored, images) * sign, maps.flip(3).where(mirrored, maps)


def data():
    return (varied(*batch) for batch in shuffled(images, maps, size=p.batch))


def loss(model, batch):
    images, maps = batch
    return loss_of(model(images), maps)


def boxes(model, image):
    """Texts found in an image (1, SIZE, SIZE); the threshold map served in training only."""
    logits = model.probability(model.features(image[None]))
    probability = logits[0, 0].sigmoid().cpu().numpy()
    return rectangles.find_boxes(probability, p.threshold, p.score, SMALLEST, p.unclip)


def evaluate(model):
    times, guessed, true, both = [], 0, 0, 0
    for image, truth in zip(val_images, val_boxes, strict=True):
        start = time.perf_counter()
        guess = boxes(model, image)
        times.append(time.perf_counter() - start)
        guessed, true = guessed + len(guess), true + len(truth)
        both += rectangles.matches(guess, truth, scene_text.SIZE)
    parts = zip(val_images.split(32), val_maps.split(32), strict=True)
    losses = [loss_of(model(x), y) * len(x) for x, y in parts]
    return {
        "val_loss": sum(losses) / len(val_images),
        "val_fmeasure": 2 * both / (guessed + true),
        "val_precision": both / max(1, guessed),
        "val_recall": both / true,
        "latency_p50": quantile(times, 0.50),
        "latency_p90": quantile(times, 0.90),
        "latency_p99": quantile(times, 0.99),
    }


run(p, Detector, optimiser, schedule, data, loss, evaluate)
