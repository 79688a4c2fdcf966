"""Video of moving shapes, drawn from a seed: a target and distractors, each a polygon of its own
form and colours, drift, turn, breathe and bounce off the borders over an uneven ground; poles stand
in front of them and hide what passes. Every frame knows the target's box and its visible pixels."""

import numpy as np
from scipy import ndimage

SIZE = 80  # pixels of a frame, both sides
RADIUS = (7.0, 12.0)  # pixels from a shape's centre to its farthest corner
STRETCH = (0.7, 1.0)  # its shorter axis to its longer one
CORNERS = (3, 7)  # of the polygon; half of the shapes are stars with twice as many
SPEED = (0.5, 3.0)  # pixels a frame
TURN = 0.12  # radians a frame, at most
BREATHING = 0.15  # a shape's size swings by as much at most, over a period of SWING frames
SWING = 20
DISTRACTORS = 3
POLES = (0, 2)
POLE = (3.0, 6.0)  # pixels a pole is wide
SEEN = 0.4  # share of the target that is seen in every frame, all of it in the first
CORE = 0.3  # radius of a shape's core, in its second colour, to its own
GROUND = (0.4, 0.6)  # of each colour, from place to place
NOISE = 0.04  # standard deviation of a pixel; frames are in 0..1


def sequences(count, length, seed):
    """Frames (n, length, 3, SIZE, SIZE) uint8, boxes (n, length, 4) of the target as x0, y0, x1, y1
    in pixels, whether seen or not, and the target's visible pixels (n, length, SIZE, SIZE) bool."""
    random = np.random.RandomState(seed)  # its stream is frozen: see scene_text.py
    drawn = []
    while len(drawn) < count:
        frames, boxes, masks, seen = sequence(length, random)
        if seen[0] == 1 and seen.min() >= SEEN:
            drawn.append((frames, boxes, masks))
    return tuple(np.stack(parts) for parts in zip(*drawn, strict=True))


def sequence(length, random):
    """One video, as above, and the share (length,) of the target that is seen in each frame."""
    ground = np.stack([ndimage.zoom(random.uniform(*GROUND, (5, 5)), SIZE / 5, order=1)
                       for _ in range(3)])  # fmt: skip
    shapes = [Shape(random) for _ in range(1 + DISTRACTORS)]
    poles = [(random.uniform(0, SIZE), random.uniform(*POLE), random.uniform(size=3))
             for _ in range(random.randint(POLES[0], POLES[1] + 1))]  # fmt: skip
    order = random.permutation(len(shapes))  # who passes in front of whom; the first is the target
    frames, boxes, masks, seen = [], [], [], []
    for time in range(length):
        frame, visible = ground.copy(), np.zeros((SIZE, SIZE), bool)
        for which in order:
            silhouette = shapes[which].draw(frame, time)
            visible = visible & ~silhouette
            if which == 0:
                visible = target = silhouette
        for x, width, colour in poles:
            columns = np.abs(np.arange(SIZE) + 0.5 - x) < width / 2
            frame[:, :, columns] = colour[:, None, None]
            visible = visible & ~columns
        frame += NOISE * random.standard_normal(frame.shape)
        frames.append((255 * frame.clip(0, 1)).astype(np.uint8))
        boxes.append(box_of(target))
        masks.append(visible)
        seen.append(visible.sum() / target.sum())
    return np.stack(frames), np.array(boxes, np.float32), np.stack(masks), np.array(seen)


class Shape:
    """A polygon of two colours with its path."""

    def __init__(self, random):
        count = random.randint(CORNERS[0], CORNERS[1])
        star = random.randint(2)
        corners = 2 * count if star else count
        reach = np.where(np.arange(corners) % 2, 0.5, 1.0) if star else np.ones(corners)
        angles = 2 * np.pi * np.arange(corners) / corners
        self.corners = np.stack([np.cos(angles), np.sin(angles)], 1) * reach[:, None]
        self.corners[:, 1] *= random.uniform(*STRETCH)
        self.radius = random.uniform(*RADIUS)
        self.margin = self.radius * (1 + BREATHING)
        self.start = random.uniform(self.margin, SIZE - self.margin, 2)
        heading = random.uniform(0, 2 * np.pi)
        self.velocity = random.uniform(*SPEED) * np.array([np.cos(heading), np.sin(heading)])
        self.angle, self.turn = random.uniform(0, 2 * np.pi), random.uniform(-TURN, TURN)
        self.breathing, self.phase = random.uniform(0, BREATHING), random.uniform(0, 2 * np.pi)
        self.colours = random.uniform(size=(2, 3))

    def centre(self, time):
        """On its way between two borders and back: a line folded into the frame."""
        room = SIZE - 2 * self.margin
        way = (self.start + self.velocity * time - self.margin) % (2 * room)
        return self.margin + np.minimum(way, 2 * room - way)

    def draw(self, frame, time):
        """Into a frame (3, SIZE, SIZE), the second colour at the core; its silhouette."""
        angle = self.angle + self.turn * time
        swing = self.breathing * np.sin(2 * np.pi * time / SWING + self.phase)
        x, y = self.centre(time)
        near = tuple(slice(int(at - self.margin), int(at + self.margin) + 1) for at in (y, x))
        rows, columns = np.mgrid[near] + 0.5
        u = ((columns - x) * np.cos(angle) + (rows - y) * np.sin(angle)) / self.radius / (1 + swing)
        v = ((rows - y) * np.cos(angle) - (columns - x) * np.sin(angle)) / self.radius / (1 + swing)
        silhouette = np.zeros((SIZE, SIZE), bool)
        silhouette[near] = inside(self.corners, u, v)
        core = np.zeros((SIZE, SIZE), bool)
        core[near] = np.hypot(u, v) < CORE
        frame[:, silhouette] = self.colours[0][:, None]
        frame[:, silhouette & core] = self.colours[1][:, None]
        return silhouette


def inside(corners, u, v):
    """Whether points lie in a polygon: a ray from each crosses its sides an odd number of times."""
    odd = np.zeros(u.shape, bool)
    for (u0, v0), (u1, v1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if v0 != v1:
            odd ^= ((v0 > v) != (v1 > v)) & (u < u0 + (v - v0) * (u1 - u0) / (v1 - v0))
    return odd


def box_of(mask):
    """x0, y0, x1, y1: the borders of the pixels that are set."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
