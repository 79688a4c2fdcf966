"""The scene-text detector and the tracker of the suite `wide`: their generators, their arithmetic
against plain counterparts, and that both learn and repeat themselves."""

from __future__ import annotations

import math
import re
import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

if find_spec("torch") is None or find_spec("scipy") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

import numpy as np
import torch
from suites.conftest import ROOT, Trials, task_of
from suites.test_determinism import raising_operators

WIDE = ROOT / "suites" / "wide"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WIDE))


def script(task: str, options: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The names a task's script defines, once it has trained for no epoch."""
    monkeypatch.setattr(sys, "argv", [task, "--epochs", "0", *options.split()])
    try:
        return SimpleNamespace(**runpy.run_path(str(WIDE / f"{task}.py")))
    finally:
        torch.use_deterministic_algorithms(False)  # the training loop asks for them


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return script("text_detector", "--images 4 --val_images 2", monkeypatch)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return script("shape_tracker", "--videos 2 --val_videos 2 --val_frames 4", monkeypatch)


def test_the_text_generator_repeats_itself_and_keeps_words_inside() -> None:
    text, rectangles = import_module("scene_text"), import_module("rectangles")
    images, boxes = text.images(12, seed=5)
    again, same = text.images(12, seed=5)
    assert np.array_equal(images, again)
    assert all(np.array_equal(a, b) for a, b in zip(boxes, same, strict=True))
    assert not np.array_equal(images, text.images(12, seed=6)[0])
    assert images.shape == (12, text.SIZE, text.SIZE) and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1
    outlines = np.concatenate([[rectangles.corners(b) for b in found] for found in boxes])
    assert outlines.min() >= 1 and outlines.max() <= text.SIZE - 1
    for found in boxes:  # words do not overlap
        iou = rectangles.overlaps(found, found, text.SIZE)
        assert np.allclose(iou, np.eye(len(found)))


@pytest.mark.matrix
def test_thresholding_finds_some_words_and_takes_bars_for_words() -> None:
    text, rectangles = import_module("scene_text"), import_module("rectangles")
    images, boxes = text.images(16, seed=2)
    found = [text.threshold_boxes(image) for image in images]
    both = sum(map(rectangles.matches, found, boxes, [text.SIZE] * 16))
    fmeasure = 2 * both / (sum(map(len, found)) + sum(map(len, boxes)))
    assert 0.4 < fmeasure < 0.85  # a baseline neither of straw nor good enough to need no detector


def test_every_letter_has_a_form_of_its_own() -> None:
    text = import_module("scene_text")
    assert text.GLYPHS.shape == (36, 7, 5)
    assert len({glyph.tobytes() for glyph in text.GLYPHS}) == 36


def test_a_rectangle_s_distance_offset_and_overlap_are_those_of_geometry() -> None:
    rectangles = import_module("rectangles")
    box = np.array([20.0, 20.0, 20.0, 10.0, 0.0])
    far = rectangles.distance(box, 40)
    assert far[19, 19] == -4.5  # the pixel centre (19.5, 19.5) is 4.5 from the upper side at y = 15
    assert far[19, 35] == 5.5
    assert far[8, 6] == pytest.approx(math.hypot(3.5, 6.5))  # round a corner
    assert (far <= 0).sum() == 200
    assert rectangles.offset(box) == pytest.approx(200 * (1 - 0.16) / 60)
    turned = np.array([20.0, 20.0, 10.0, 20.0, math.pi / 2])
    assert rectangles.overlaps([box], [turned], 40)[0, 0] == pytest.approx(1)
    moved = np.array([25.0, 20.0, 20.0, 10.0, 0.0])
    assert rectangles.overlaps([box], [moved], 40)[0, 0] == pytest.approx(150 / 250)
    assert rectangles.matches(np.array([box, box]), np.array([box, moved]), 40) == 2
    assert rectangles.matches(np.array([box, box]), np.array([box]), 40) == 1
    assert rectangles.matches(np.zeros((0, 5)), np.array([box]), 40) == 0


def test_on_perfect_maps_all_words_are_found_and_nothing_else(detector: SimpleNamespace) -> None:
    text, rectangles = import_module("scene_text"), import_module("rectangles")
    options = detector.p
    worst = []
    for truth in text.images(40, seed=7)[1]:
        kernel = detector.targets(truth)[0]
        found = rectangles.find_boxes(
            kernel, options.threshold, options.score, detector.SMALLEST, options.unclip
        )
        assert len(found) == len(truth) == rectangles.matches(found, truth, text.SIZE)
        worst += list(rectangles.overlaps(found, truth, text.SIZE).max(0, initial=0))
    assert np.mean(worst) > 0.8


def test_targets_are_the_paper_s_maps(detector: SimpleNamespace) -> None:
    box = np.array([40.0, 40.0, 40.0, 10.0, 0.0])
    reach = 400 * 0.84 / 100
    kernel, border, near = detector.targets([box])
    assert kernel.sum() == 34 * 4  # centres within 16.64 and 1.64 of the middle
    assert border[40, 40] == pytest.approx(0.3)  # 4.5 from the nearest side: past the offset
    assert border[35, 40] == pytest.approx(0.3 + 0.4 * (1 - 0.5 / reach))
    assert border[34, 40] == pytest.approx(0.3 + 0.4 * (1 - 0.5 / reach))
    assert near[40, 40] == 1 and near[32, 40] == 1 and near[31, 40] == 0


def test_cross_entropy_counts_the_three_hardest_negatives_to_a_positive(
    detector: SimpleNamespace,
) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0, -2.0, -9.0]], requires_grad=True)
    target = torch.tensor([[1.0, 0, 0, 0, 0, 0]])
    loss = detector.balanced_cross_entropy(logits, target)
    hardest = [math.log1p(math.exp(x)) for x in (2, 1, -1)]
    assert loss.item() == pytest.approx((math.log(2) + sum(hardest)) / 4)
    loss.backward()
    assert (logits.grad != 0).tolist() == [[True, True, True, True, False, False]]
    assert detector.balanced_cross_entropy(logits, torch.zeros(1, 6)).item() == 0  # no text at all
    all_text = detector.balanced_cross_entropy(logits, torch.ones(1, 6))
    assert all_text.item() == pytest.approx(
        sum(math.log1p(math.exp(-x)) for x in logits[0].tolist()) / 6
    )


def test_the_loss_s_terms_are_those_computed_by_hand(detector: SimpleNamespace) -> None:
    a, b = torch.tensor([0.5, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    assert detector.dice(a, b).item() == pytest.approx(1 - 2 * 1.5 / 3.5, abs=1e-5)
    # one text pixel of probability 1/2 and threshold 1/2: the binary map is 1/2 there; the other
    # pixel has probability and threshold 1/2 too
    maps = torch.tensor([[[[1.0, 0.0]], [[0.3, 0.7]], [[1.0, 0.0]]]])
    outputs = torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)
    wanted = math.log(2) + (1 - 2 * 0.5 / 2) + 10 * 0.2
    assert detector.loss_of(outputs, maps).item() == pytest.approx(wanted, rel=1e-5)


def test_video_boxes_hold_the_masks_and_equal_them_where_nothing_hides_them() -> None:
    video = import_module("shape_video")
    frames, boxes, masks = video.sequences(4, 6, seed=5)
    for one, other in zip((frames, boxes, masks), video.sequences(4, 6, seed=5), strict=True):
        assert np.array_equal(one, other)
    assert frames.shape == (4, 6, 3, video.SIZE, video.SIZE) and frames.dtype == np.uint8
    assert boxes.min() >= 0 and boxes.max() <= video.SIZE
    for box, mask in zip(boxes.reshape(-1, 4), masks.reshape(-1, *masks.shape[2:]), strict=True):
        x0, y0, x1, y1 = video.box_of(mask)
        assert x0 >= box[0] and y0 >= box[1] and x1 <= box[2] and y1 <= box[3]
        assert mask.sum() > 0.1 * (box[2] - box[0]) * (box[3] - box[1])
    for box, mask in zip(boxes[:, 0], masks[:, 0], strict=True):  # the first frame hides nothing
        assert video.box_of(mask) == tuple(box)


def test_a_polygon_holds_the_points_inside_it() -> None:
    video = import_module("shape_video")
    square = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    u, v = np.array([0.0, 0.9, 1.1, 0.0]), np.array([0.0, -0.9, 0.0, -1.1])
    assert video.inside(square, u, v).tolist() == [True, True, False, False]


def test_depthwise_correlation_equals_a_plain_loop(tracker: SimpleNamespace) -> None:
    torch.manual_seed(0)
    search, template = torch.randn(2, 3, 6, 7), torch.randn(2, 3, 4, 4)
    answers = tracker.correlated(search, template)
    assert answers.shape == (2, 3, 3, 4)
    for n, c, i, j in np.ndindex(*answers.shape):
        product = search[n, c, i : i + 4, j : j + 4] * template[n, c]
        assert answers[n, c, i, j].item() == pytest.approx(product.mean().item(), abs=1e-6)


def test_boxes_and_masks_of_a_cut_pair_agree_and_paste_undoes_cut(tracker: SimpleNamespace) -> None:
    torch.manual_seed(0)
    templates, searches, boxes, masks = tracker.cut_pairs(tracker.videos, 4)
    assert templates.shape == (8, 3, 32, 32) and searches.shape == (8, 3, 64, 64)
    for (x0, y0, x1, y1), mask in zip(boxes.tolist(), masks, strict=True):
        rows, columns = mask.nonzero(as_tuple=True)
        assert columns.min() >= x0 - 2 and columns.max() <= x1 + 1
        assert rows.min() >= y0 - 2 and rows.max() <= y1 + 1
    mask = torch.zeros(1, 1, 40, 40)
    mask[:, :, 12:24, 15:30] = 1
    centres, sides = torch.tensor([[20.0, 18.0]]), torch.tensor([[32.0]])
    window = tracker.cut(mask, centres, sides[0], 32)
    assert torch.equal(tracker.paste(window, centres, sides, mask) > 0.5, mask[:, 0] > 0.5)


@pytest.mark.matrix
def test_the_tracker_s_trivial_baselines_are_as_stated(tracker: SimpleNamespace) -> None:
    _, boxes, masks = import_module("shape_video").sequences(32, 16, seed=2)
    boxes = torch.from_numpy(boxes)
    stated = re.findall(r"0\.\d\d", tracker.__doc__.partition("Trivial baselines")[2])
    stay = tracker.iou(boxes[:, :1], boxes[:, 1:]).mean()
    masks = torch.from_numpy(masks)
    stay_masks = tracker.overlap_of_masks(masks[:, :1], masks[:, 1:]).mean()
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    way = (centres[:, 1:2] - centres[:, :1]) * torch.arange(1, 16)[:, None]
    straight = tracker.iou(boxes[:, :1] + way.repeat(1, 1, 2), boxes[:, 1:]).mean()
    assert [f"{float(overlap):.2f}" for overlap in (stay, stay_masks, straight)] == stated[:3]


def test_an_anchor_s_overlap_is_intersection_over_union(tracker: SimpleNamespace) -> None:
    a, b = torch.tensor([0.0, 0.0, 4.0, 4.0]), torch.tensor([2.0, 0.0, 6.0, 4.0])
    assert tracker.iou(a, b).item() == pytest.approx(8 / 24)
    assert tracker.iou(a, b + 10).item() == 0
    assert tracker.ANCHORS.shape == (9 * 9 * 3, 4)
    assert tracker.ANCHORS[1].tolist() == [16, 16, 16, 16]  # the first place, the square
    assert torch.allclose(tracker.ANCHORS[:, 2:].prod(1), torch.tensor(256.0))


SHORT = {  # options that cut a task to seconds, and to what share its loss must fall
    "text_detector": (
        "--images 64 --val_images 4 --width 8 --pyramid 16 --epochs 4 --warmup 0",
        0.9,
    ),
    "shape_tracker": (
        "--videos 12 --pairs 8 --val_videos 2 --val_frames 4 --width 8 --epochs 3",
        0.8,
    ),
}
EVERY = " --batch 4 --lr 1e-2"


@pytest.mark.matrix
@pytest.mark.parametrize("task", SHORT)
def test_a_task_learns_and_reports_what_is_declared(
    task: str, tmp_path: Path, trial: Trials
) -> None:
    """That it repeats itself bit by bit was measured once, for all tasks."""
    options, share = SHORT[task]
    reports = trial(task, options + EVERY, tmp_path / "trial", operators=True)
    assert raising_operators(tmp_path / "trial") == []
    declared = {metric.name for metric in task_of(task)[1].metrics}
    for report in reports:
        assert "fingerprint" in report
        assert declared <= set(report)
        assert all(math.isfinite(report[name]) for name in declared)
    for loss in ("train_loss", "val_loss"):
        assert reports[-1][loss] < share * reports[0][loss]
