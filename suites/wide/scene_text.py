"""Images with words among clutter, drawn from a seed: words of a 5 x 7 bitmap font, scaled and
turned, on an uneven ground with lines, discs, frames, noise, and bar patterns that have a word's
size and contrast but no letters. Each comes with the rotated rectangles of its words."""

import numpy as np
from rectangles import corners, distance, find_boxes, local
from scipy import ndimage

SIZE = 80  # pixels, both sides
WORDS = (1, 3)  # of an image; fewer where no place was left
LETTERS = (2, 5)  # of a word
CELL = (1.2, 2.0)  # pixels of one cell of the font, so letters are 8 to 14 pixels high
ANGLE = np.radians(20)  # a word is turned by as much at most, each way
CONTRAST = (0.25, 0.6)  # of a word to the ground under it; images are in 0..1
BARS, LINES, SHAPES = 2, 3, 2  # at most, of each kind of distractor
NOISE = 0.04  # standard deviation of a pixel
GAP = 3  # pixels between words, and between words and distractors of their size

# 7 rows of a letter, 5 bits each
FONT = {
    "A": "0E 11 11 1F 11 11 11", "B": "1E 11 11 1E 11 11 1E", "C": "0E 11 10 10 10 11 0E",
    "D": "1E 11 11 11 11 11 1E", "E": "1F 10 10 1E 10 10 1F", "F": "1F 10 10 1E 10 10 10",
    "G": "0E 11 10 17 11 11 0F", "H": "11 11 11 1F 11 11 11", "I": "0E 04 04 04 04 04 0E",
    "J": "07 02 02 02 02 12 0C", "K": "11 12 14 18 14 12 11", "L": "10 10 10 10 10 10 1F",
    "M": "11 1B 15 15 11 11 11", "N": "11 11 19 15 13 11 11", "O": "0E 11 11 11 11 11 0E",
    "P": "1E 11 11 1E 10 10 10", "Q": "0E 11 11 11 15 12 0D", "R": "1E 11 11 1E 14 12 11",
    "S": "0F 10 10 0E 01 01 1E", "T": "1F 04 04 04 04 04 04", "U": "11 11 11 11 11 11 0E",
    "V": "11 11 11 11 11 0A 04", "W": "11 11 11 15 15 1B 11", "X": "11 11 0A 04 0A 11 11",
    "Y": "11 11 0A 04 04 04 04", "Z": "1F 01 02 04 08 10 1F", "0": "0E 11 13 15 19 11 0E",
    "1": "04 0C 04 04 04 04 0E", "2": "0E 11 01 06 08 10 1F", "3": "0E 11 01 06 01 11 0E",
    "4": "02 06 0A 12 1F 02 02", "5": "1F 10 1E 01 01 11 0E", "6": "06 08 10 1E 11 11 0E",
    "7": "1F 01 02 04 08 08 08", "8": "0E 11 11 0E 11 11 0E", "9": "0E 11 11 0F 01 02 0C",
}  # fmt: skip
GLYPHS = np.array([[[int(row, 16) >> (4 - bit) & 1 for bit in range(5)] for row in rows.split()]
                   for rows in FONT.values()], dtype=float)  # fmt: skip


def images(count, seed):
    """`count` images (n, SIZE, SIZE) in 0..1, float32, and for each the rectangles of its words."""
    # RandomState's stream is frozen (NEP 19): every version of numpy draws the same images
    random = np.random.RandomState(seed)
    drawn = [image(random) for _ in range(count)]
    return np.stack([pixels for pixels, _ in drawn]), [boxes for _, boxes in drawn]


def image(random):
    ground = ndimage.zoom(random.uniform(0.25, 0.75, (4, 4)), SIZE / 4, order=1)
    for _ in range(random.randint(SHAPES + 1)):
        blend(ground, shape(random), random.uniform())
    for _ in range(random.randint(LINES + 1)):
        blend(ground, line(random), random.uniform())
    occupied, boxes = np.zeros((SIZE, SIZE), bool), []
    for _ in range(random.randint(WORDS[0], WORDS[1] + 1)):
        box = pattern(ground, word(random), occupied, random)
        boxes += [] if box is None else [box]
    for _ in range(random.randint(BARS + 1)):
        pattern(ground, bars(random), occupied, random)
    ground += NOISE * random.standard_normal(ground.shape)
    return ground.clip(0, 1).astype(np.float32), np.array(boxes).reshape(-1, 5)


def blend(ground, cover, shade):
    ground += cover * (shade - ground)


def word(random):
    """Cells (7, w) of a random word: its letters, an empty column between them."""
    letters = GLYPHS[random.randint(len(GLYPHS), size=random.randint(LETTERS[0], LETTERS[1] + 1))]
    return np.pad(letters, ((0, 0), (0, 0), (0, 1))).transpose(1, 0, 2).reshape(7, -1)[:, :-1]


def bars(random):
    """Cells (7, w) of upright bars, as wide as a word: letters' contrast without letters."""
    width = 6 * random.randint(LETTERS[0], LETTERS[1] + 1) - 1
    columns = random.uniform(size=width) < 0.5
    columns[[0, -1]] = True
    return np.repeat(columns[None].astype(float), 7, axis=0)


def pattern(ground, cells, occupied, random):
    """Draw cells where nothing is, scaled and turned; return their rectangle, None without room."""
    height, width = cells.shape
    for _ in range(20):
        cell, angle = random.uniform(*CELL), random.uniform(-ANGLE, ANGLE)
        x, y = random.uniform(0, SIZE, 2)
        # half a cell of margin all around
        box = np.array([x, y, (width + 1) * cell, (height + 1) * cell, angle])
        outline, far = corners(box), distance(box, SIZE)
        if outline.min() < 1 or outline.max() > SIZE - 1 or occupied[far < GAP].any():
            continue
        occupied |= far < 0
        u, v = local(box, SIZE)
        places = [v / cell + height / 2 - 0.5, u / cell + width / 2 - 0.5]
        cover = ndimage.map_coordinates(cells, places, order=1, mode="grid-constant")
        below = ground[far < 0].mean()
        contrast = random.uniform(*CONTRAST) * (1 if below < 0.5 else -1)
        blend(ground, (2 * cover - 0.5).clip(0, 1), below + contrast)  # edges as sharp as pixels
        return box
    return None


def line(random):
    """Cover (SIZE, SIZE) of a straight line, 1 to 2 pixels wide, longer than the image."""
    x, y = random.uniform(0, SIZE, 2)
    thin = np.array([x, y, 3 * SIZE, random.uniform(1, 2), random.uniform(0, np.pi)])
    return (0.5 - distance(thin, SIZE)).clip(0, 1)


def shape(random):
    """Cover of a disc or a turned rectangle, filled or as an outline."""
    x, y = random.uniform(0, SIZE, 2)
    w, h = random.uniform(8, 48, 2)
    if random.randint(2):
        far = np.hypot(*local((x, y, w, h, 0), SIZE)) - w / 2
    else:
        far = distance((x, y, w, h, random.uniform(0, np.pi)), SIZE)
    return (0.5 - (np.abs(far) - 1 if random.randint(2) else far)).clip(0, 1)


def threshold_boxes(pixels):
    """The trivial baseline: what differs from the median around it, joined along the line, in
    components of a word's size. Its numbers are the best of a few on training images."""
    stands_out = np.abs(pixels - ndimage.median_filter(pixels, 25)) > 0.18
    joined = ndimage.binary_closing(stands_out, np.ones((3, 9)))
    words = ndimage.binary_opening(joined, np.ones((3, 3)))
    return find_boxes(words + 0.0, threshold=0.5, least_score=0.5, least_pixels=100, unclip=0)
