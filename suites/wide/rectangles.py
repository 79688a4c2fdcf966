"""Rotated rectangles: rows (x, y, w, h, a) of a numpy array, with centre, sides in pixels, and the
angle of the side `w` to the x axis in radians. The pixel in row i and column j of an image has its
centre at (j + 0.5, i + 0.5).

Differentiable binarisation (arXiv:1911.08947, section 3.4 on) shrinks and grows polygons by Vatti's
clipping. A rectangle needs no clipping: moved inwards by d, its sides are 2 d shorter; all within d
of it, outside, is what the signed distance gives, round corners included."""

import numpy as np
from scipy import ndimage

SHRINK = 0.4  # the paper's r: a text's kernel has about r^2 of its area
ANGLES = np.radians(np.arange(-45, 45, 1.5))  # tried for a component: 90 degrees cover all


def local(rectangle, size):
    """Pixel centres of a size x size image in the rectangle's own axes: u along w, v along h."""
    x, y, _, _, a = rectangle
    rows, columns = np.mgrid[:size, :size] + 0.5
    u = (columns - x) * np.cos(a) + (rows - y) * np.sin(a)
    v = (rows - y) * np.cos(a) - (columns - x) * np.sin(a)
    return u, v


def distance(rectangle, size):
    """Signed distance of each pixel centre to the border, in pixels; negative inside."""
    u, v = local(rectangle, size)
    du, dv = np.abs(u) - rectangle[2] / 2, np.abs(v) - rectangle[3] / 2
    return np.hypot(du.clip(0), dv.clip(0)) + np.maximum(du, dv).clip(max=0)


def corners(rectangle):
    """The four corners (4, 2)."""
    x, y, w, h, a = rectangle
    along = np.array([np.cos(a), np.sin(a)]) * w / 2
    across = np.array([-np.sin(a), np.cos(a)]) * h / 2
    around = np.array([-along - across, along - across, along + across, across - along])
    return around + np.array([x, y])


def offset(rectangle, ratio=SHRINK):
    """Pixels by which the paper shrinks a polygon: area (1 - r^2) / perimeter."""
    _, _, w, h, _ = rectangle
    return w * h * (1 - ratio**2) / (2 * (w + h))


def smallest_around(pixels):
    """The rectangle of least area, among ANGLES, around pixels (n, 2) given as (row, column).

    Each pixel is a square of side 1, so rectangles come out a pixel wider than the centres.
    """
    cos, sin = np.cos(ANGLES), np.sin(ANGLES)
    rows, columns = pixels.T[:, :, None] + 0.5
    u, v = columns * cos + rows * sin, rows * cos - columns * sin  # n, angles
    pixel = cos + np.abs(sin)  # width of a unit square seen from this angle
    w, h = np.ptp(u, axis=0) + pixel, np.ptp(v, axis=0) + pixel
    best = np.argmin(w * h)
    u, v = (u.max(0) + u.min(0))[best] / 2, (v.max(0) + v.min(0))[best] / 2
    x, y = u * cos[best] - v * sin[best], u * sin[best] + v * cos[best]
    return np.array([x, y, w[best], h[best], ANGLES[best]])


def find_boxes(probability, threshold, least_score, least_pixels, unclip):
    """Text boxes (n, 5) of a probability map: its components above the threshold, each with the
    smallest rectangle around it, grown by the paper's area x unclip / perimeter."""
    labels, count = ndimage.label(probability > threshold, structure=np.ones((3, 3)))
    boxes = []
    for label, area in enumerate(ndimage.find_objects(labels, count), start=1):
        component = labels[area] == label
        if component.sum() < least_pixels or probability[area][component].mean() < least_score:
            continue
        pixels = np.argwhere(component) + np.array([area[0].start, area[1].start])
        x, y, w, h, a = smallest_around(pixels)
        grow = 2 * w * h * unclip / (2 * (w + h))
        boxes.append((x, y, w + grow, h + grow, a))
    return np.array(boxes).reshape(-1, 5)


def overlaps(ones, others, size):
    """Intersection over union (n, m), counted in the pixels of a size x size image."""
    a, b = (
        np.array([distance(r, size) <= 0 for r in group], float).reshape(len(group), size * size)
        for group in (ones, others)
    )
    both = a @ b.T
    return both / np.maximum(a.sum(1)[:, None] + b.sum(1) - both, 1)


def matches(boxes, truth, size, least=0.5):
    """How many pairs of a found and a true box overlap by `least`, each box in one pair at most,
    the best pairs first (with least >= 0.5, rarely is there a choice)."""
    iou = overlaps(boxes, truth, size)
    count = 0
    while iou.size and iou.max() >= least:
        i, j = np.unravel_index(iou.argmax(), iou.shape)
        iou[i], iou[:, j] = 0, 0
        count += 1
    return count
