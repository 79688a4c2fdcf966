"""A tracker that also cuts its target out, in the manner of SiamMask (Wang et al. 2019,
arXiv:1812.05050): one backbone for template and search window, depthwise cross-correlation, and
heads for score, box and mask. shape_video.py draws the videos. Far smaller than the paper's: one
correlation for all heads, three anchors a place, and one refinement of the mask for its three.

Covers grouped convolution with kernels computed by the model, strided and transposed convolution,
batch norm over two kinds of input, grid_sample, indexing and its gradient, binary cross-entropy,
AdamW, and a rate that warms up and falls as a cosine.
Trivial baselines, mean overlap of boxes on the validation videos: staying where the target was at
first, 0.28 (of masks 0.21); told the true second box, too, going straight on from there, 0.52.
"""

import shape_video
import torch
import torch.nn.functional as F
from residual import Block, conv
from shared.loop import run, using, warmed
from torch import nn

from celedger.child.torch import device, parameters, shuffled

p = parameters(
    epochs=8,
    videos=192,  # to train on
    frames=6,  # of each
    pairs=3,  # of template and search window, cut from each video each epoch
    val_videos=32,
    val_frames=16,
    shift=12.0,  # pixels of the search window by which the target is off its centre at most
    scale=0.2,  # a search window is larger or smaller by as much at most (log)
    lr=3e-3,  # after the warm-up; falls to 0 as a cosine
    warmup=0.1,  # share of all steps
    batch=16,  # pairs a step
    width=12,  # channels of the stem; the last stage has three times as many
    masks=2,  # learnt of each pair, at the places that overlap the target most
    mask_weight=8.0,  # of the mask's loss to those of score and box (the paper: 32)
    penalty=0.1,  # for a box that changes size or form: exp(-penalty (change - 1))
    window=0.3,  # share of a cosine window in a box's score: targets seldom jump
    rate=0.5,  # of following the proposed box's size
    seed=0,
)

TEMPLATE, SEARCH = 32, 64  # pixels; the target's area is about (TEMPLATE / 2)^2 in both
STRIDE = 4  # pixels of the search window from one position of the response to the next
PLACES = (SEARCH - TEMPLATE) // STRIDE + 1  # positions, both ways
RATIOS = (0.5, 1.0, 2.0)  # height to width of the anchors
POSITIVE, NEGATIVE = 0.5, 0.3  # overlap of an anchor with the target from which, below which
where = device()


def load(count, length, seed):
    """Frames (n, length, 3, H, W) uint8, boxes (n, length, 4), masks (n, length, H, W)."""
    videos = shape_video.sequences(count, length, seed)
    return tuple(torch.from_numpy(part).to(where) for part in videos)


def side(sizes):
    """Side (n,) of the square cut around targets of sizes (n, 2) as the template: with half of
    width plus height as context all around, so that what is cut has four times their area."""
    return (sizes + sizes.sum(1, keepdim=True) / 2).prod(1).sqrt()


def cut(images, centres, sides, pixels):
    """Squares (n, c, pixels, pixels) around centres (n, 2: x, y) of images (n, c, H, W) float."""
    steps = ((torch.arange(pixels, device=where) + 0.5) / pixels - 0.5) * sides[:, None]
    x, y = centres[:, :1] + steps, centres[:, 1:] + steps
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), 3)
    extent = torch.tensor([images.shape[3], images.shape[2]], device=where)
    return F.grid_sample(images, 2 * grid / extent - 1, align_corners=False)


def middles(boxes):
    """Centres and sizes, each (n, 2), of boxes (n, 4)."""
    return (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]


def scaled(frames):
    return frames / 255 - 0.5  # so what lies outside of a frame, 0, is grey


def cut_pairs(videos, count):
    """`count` pairs of each video: templates (n, 3, 32, 32), search windows (n, 3, 64, 64), the
    target's box (n, 4) and mask (n, 64, 64) in the search window."""
    frames, boxes, masks = videos
    which = torch.arange(len(frames)).repeat(count)
    first, second = torch.randint(frames.shape[1], (2, len(which)))
    shifts = (p.shift * (2 * torch.rand(len(which), 2) - 1)).to(where)
    scales = (p.scale * (2 * torch.rand(len(which)) - 1)).exp().to(where)
    which, first, second = which.to(where), first.to(where), second.to(where)

    centres, sizes = middles(boxes[which, first])
    templates = cut(scaled(frames[which, first]), centres, side(sizes), TEMPLATE)
    centres, sizes = middles(boxes[which, second])
    sides = side(sizes) * scales * SEARCH / TEMPLATE
    centres = centres - shifts * sides[:, None] / SEARCH
    searches = cut(scaled(frames[which, second]), centres, sides, SEARCH)
    seen = cut(masks[which, second][:, None].float(), centres, sides, SEARCH)[:, 0]
    origin = (centres - sides[:, None] / 2).repeat(1, 2)
    targets = (boxes[which, second] - origin) * SEARCH / sides[:, None]
    return templates, searches, targets, (seen > 0.5).float()


def anchors():
    """Centres and sizes (PLACES^2 x 3, 4), in pixels of the search window; forms vary fastest."""
    cell = TEMPLATE / 2 + STRIDE * torch.arange(PLACES, device=where)
    y, x = torch.meshgrid(cell, cell, indexing="ij")
    ratios = torch.tensor(RATIOS, device=where)
    w, h = TEMPLATE / 2 / ratios.sqrt(), TEMPLATE / 2 * ratios.sqrt()
    forms = torch.stack([w, h], 1).repeat(PLACES**2, 1)
    return torch.cat([torch.stack([x, y], 2).view(-1, 2).repeat_interleave(3, 0), forms], 1)


ANCHORS = anchors()


def iou(a, b):
    """Intersection over union of boxes (..., 4)."""
    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(0)
    both, areas = both.prod(-1), [(c[..., 2:] - c[..., :2]).prod(-1) for c in (a, b)]
    return both / (areas[0] + areas[1] - both)


def correlated(search, template):
    """Depthwise cross-correlation: how each channel (h, w) of the template answers at each place
    of the same channel of the search window; (n, c, H - h + 1, W - w + 1)."""
    n, c, h, w = template.shape
    answers = F.conv2d(search.reshape(1, n * c, *search.shape[2:]),
                       template.reshape(n * c, 1, h, w), groups=n * c)  # fmt: skip
    return answers.view(n, c, *answers.shape[2:]) / (h * w)


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        c, f = p.width, 3 * p.width
        self.backbone = nn.Sequential(
            conv(3, c, stride=2),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            Block(c, 2 * c, stride=2),
            Block(2 * c, f, stride=1),
            nn.Conv2d(f, f, 1, bias=False),
            nn.BatchNorm2d(f),
        )
        self.join = nn.Sequential(nn.BatchNorm2d(f), conv(f, f), nn.BatchNorm2d(f), nn.ReLU())
        self.score = nn.Conv2d(f, len(RATIOS), 1)
        self.box = nn.Conv2d(f, 4 * len(RATIOS), 1)
        self.spread = nn.ConvTranspose2d(f, f, TEMPLATE // STRIDE)
        self.mask = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(f, c, 2, stride=2),
            nn.ReLU(),
            conv(c, c),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 1, 2, stride=2),
        )

    def forward(self, template, search):
        """Of the features of template and search window: logits (n, anchors) that an anchor holds
        the target, offsets (n, anchors, 4) to its box, the response (n, c, PLACES, PLACES)."""
        response = self.join(correlated(search, template))
        score = self.score(response).permute(0, 2, 3, 1).flatten(1)
        box = self.box(response).permute(0, 2, 3, 1).reshape(len(score), -1, 4)
        return score, box, response

    def masks(self, search, response, row, cell):
        """Logits (m, 1, TEMPLATE, TEMPLATE) that a pixel is the target's, in the windows that begin
        at `cell` of the search features of `row` (both (m,)): from what the template answered
        there and, as the paper's refinement does, from the features of the window itself."""
        y, x = cell // PLACES, cell % PLACES
        reach = torch.arange(TEMPLATE // STRIDE, device=where)
        down, right = (y[:, None] + reach)[:, :, None], (x[:, None] + reach)[:, None, :]
        window = search.permute(0, 2, 3, 1)[row[:, None, None], down, right].permute(0, 3, 1, 2)
        return self.mask(window + self.spread(response[row, :, y, x][:, :, None, None]))


def loss_of(model, templates, searches, boxes, masks):
    search = model.backbone(searches)
    score, offsets, response = model(model.backbone(templates), search)
    centres, sizes = ANCHORS[:, :2], ANCHORS[:, 2:]
    overlap = iou(torch.cat([centres - sizes / 2, centres + sizes / 2], 1), boxes[:, None])
    positive = overlap >= overlap.amax(1, keepdim=True).clamp(max=POSITIVE)  # at least the best
    negative = overlap < NEGATIVE

    losses = F.binary_cross_entropy_with_logits(score, positive.float(), reduction="none")
    score_loss = (losses[positive].mean() + losses[negative].mean()) / 2

    centre, size = middles(boxes)
    wanted = [(centre[:, None] - centres) / sizes, (size[:, None] / sizes).log()]
    box_loss = (offsets - torch.cat(wanted, 2))[positive].abs().sum(1).mean()

    # a mask is learnt where the best anchors are, and covers what the template does there
    cell = overlap.view(len(boxes), -1, len(RATIOS)).amax(2).topk(p.masks).indices.flatten()
    row = torch.arange(len(boxes), device=where).repeat_interleave(p.masks)
    seen = masks.unfold(1, TEMPLATE, STRIDE).unfold(2, TEMPLATE, STRIDE)
    seen = seen[row, cell // PLACES, cell % PLACES][:, None]
    logits = model.masks(search, response, row, cell)
    mask_loss = F.binary_cross_entropy_with_logits(logits, seen)
    return score_loss + box_loss + p.mask_weight * mask_loss


def follow(model, frames, box):
    """Track from the first frame's boxes (n, 4) through frames (n, t, 3, H, W): boxes (n, t - 1, 4)
    and masks (n, t - 1, H, W). Each frame is searched around the last place."""
    centres, sizes = middles(box)
    template = model.backbone(cut(scaled(frames[:, 0]), centres, side(sizes), TEMPLATE))
    extent = torch.tensor([frames.shape[4], frames.shape[3]], device=where)
    cosine = torch.hann_window(PLACES + 2, periodic=False, device=where)[1:-1]
    window = cosine.outer(cosine).flatten().repeat_interleave(len(RATIOS))
    rows = torch.arange(len(frames), device=where)
    boxes, masks = [], []
    for frame in frames.unbind(1)[1:]:
        sides = side(sizes) * SEARCH / TEMPLATE
        pixel = sides[:, None] / SEARCH  # of the search window, in pixels of the frame
        search = model.backbone(cut(scaled(frame), centres, sides, SEARCH))
        score, offsets, response = model(template, search)
        proposed = ANCHORS[:, 2:] * offsets[:, :, 2:].clamp(-2, 2).exp() * pixel[:, None]
        change = (proposed.log() - sizes[:, None].log()).abs().sum(2).exp()
        score = score.sigmoid() * (-p.penalty * (change - 1)).exp()
        best = ((1 - p.window) * score + p.window * window).argmax(1)

        origin = centres - sides[:, None] / 2
        middle = ANCHORS[best, :2] + ANCHORS[best, 2:] * offsets[rows, best, :2]
        logits = model.masks(search, response, rows, best // len(RATIOS))
        window_middle = origin + ANCHORS[best, :2] * pixel
        masks.append(paste(logits.sigmoid(), window_middle, pixel * TEMPLATE, frame) > 0.5)
        centres = torch.minimum((origin + middle * pixel).clamp(min=0), extent)
        sizes = sizes + p.rate * (proposed[rows, best] - sizes)
        boxes.append(torch.cat([centres - sizes / 2, centres + sizes / 2], 1))
    return torch.stack(boxes, 1), torch.stack(masks, 1)


def paste(squares, centres, sides, frame):
    """The opposite of `cut`: squares (n, 1, h, h) back at their places; (n, H, W), 0 elsewhere."""
    height, width = frame.shape[2:]
    x = (torch.arange(width, device=where) + 0.5 - centres[:, :1]) * 2 / sides
    y = (torch.arange(height, device=where) + 0.5 - centres[:, 1:]) * 2 / sides
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), 3)
    return F.grid_sample(squares, grid, align_corners=False)[:, 0]


def overlap_of_masks(a, b):
    return (a & b).sum((-2, -1)) / (a | b).sum((-2, -1))


videos, val_videos = load(p.videos, p.frames, seed=1), load(p.val_videos, p.val_frames, seed=2)
torch.manual_seed(0)  # `train` seeds again: data and validation pairs are the same for every --seed
val_pairs = cut_pairs(val_videos, 4)
optimiser = using(torch.optim.AdamW, lr=p.lr, weight_decay=1e-3)
steps = p.epochs * -(-len(videos[0]) * p.pairs // p.batch)
schedule = warmed(steps, p.warmup, torch.optim.lr_scheduler.CosineAnnealingLR)


def recoloured(templates, searches, *targets):
    """Each pair with its colour channels in another order, half of the pairs as negatives."""
    order = torch.rand(len(templates), 3).argsort(1).to(where)
    sign = (2 * torch.randint(2, (len(templates), 1, 1, 1)) - 1).to(where)
    rows = torch.arange(len(templates), device=where)[:, None]
    return templates[rows, order] * sign, searches[rows, order] * sign, *targets


def data():
    return shuffled(*recoloured(*cut_pairs(videos, p.pairs)), size=p.batch)


def loss(model, batch):
    return loss_of(model, *batch)


def evaluate(model):
    frames, boxes, masks = val_videos
    guess, guess_masks = follow(model, frames, boxes[:, 0])
    return {
        "val_loss": loss_of(model, *val_pairs),
        "val_box_iou": iou(guess, boxes[:, 1:]).double().mean(),
        "val_mask_iou": overlap_of_masks(guess_masks, masks[:, 1:]).double().mean(),
    }


run(p, Tracker, optimiser, schedule, data, loss, evaluate)
