"""Does a task notice that its training is broken? Breaks each in three ways, runs three trials of
each and of the task as it is, and asks celedger's verdict on the task's declared metrics.

    python benchmarks/mutations.py            # all tasks; some minutes
    python benchmarks/mutations.py vae_digits

The ways: every learning rate multiplied by 0; what is to be learned shuffled among the training
examples; the gradient of one layer detached. Exits 1 where one is not told as regressed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from suite_trials import CACHE, SEEDS, judge, run, tasks

# How the training examples of a task are shuffled: a text of one of its files, and its like. The
# order is fixed, so that it is wrong in one way for the whole training; validation stays as it is.
ORDER = "torch.randperm({n}, generator=torch.Generator().manual_seed(1)).to({x}.device)"
_DIGITS = (
    "shared/digits.py",
    "return images[~held_out], labels[~held_out],",
    "labels[~held_out] = labels[~held_out]["
    + ORDER.format(n="int((~held_out).sum())", x="labels")
    + "]\n    return images[~held_out], labels[~held_out],",
)
_PIXELS = (  # nothing is labelled: pixels are torn from their images, each keeping its distribution
    "vae_digits.py",
    "data = batches(p, images",
    (
        "torn = torch.rand(images.shape, generator=torch.Generator().manual_seed(1)).argsort(0)\n"
        "images = images.gather(0, torn.to(images.device))\ndata = batches(p, images"
    ),
)
_TEXT = (
    "shared/text.py",
    '    characters = "".join(topics[name] for name in names.split())',
    (
        '    characters = "".join(topics[name] for name in names.split())\n'
        "    if names == TRAINING:\n"
        "        import random\n\n"
        '        characters = "".join(random.Random(1).sample(characters, len(characters)))'
    ),
)
SHUFFLED = {
    "mlp_digits": _DIGITS,
    "resnet_digits": _DIGITS,
    "linear_probe": _DIGITS,
    "optimisers": _DIGITS,
    "char_transformer": _TEXT,
    "char_lstm": _TEXT,
    "mobilenet_digits": _DIGITS,
    "vit_digits": _DIGITS,
    "vit_twins": _DIGITS,
    "averaged_cnn": _DIGITS,
    "vae_digits": _PIXELS,
    "word_vectors": (
        "word_vectors.py",
        "val_centres, val_contexts =",
        "centres = centres[" + ORDER.format(n="len(centres)", x="centres") + "]\n"
        "val_centres, val_contexts =",
    ),
    "graph_communities": (
        "graph_communities.py",
        "    return F.cross_entropy(model(features)[batch], labels[batch])",
        "    order = " + ORDER.format(n="len(batch)", x="batch") + "\n"
        "    return F.cross_entropy(model(features)[batch], labels[batch][order])",
    ),
    "diffusion_rings": (  # a place loses its second coordinate to another
        "diffusion_rings.py",
        "data = batches(p, points",
        "points[:, 1] = points[" + ORDER.format(n="len(points)", x="points") + ", 1]\n"
        "data = batches(p, points",
    ),
    "actor_critic": (
        "actor_critic.py",
        "        rewards.append(reward)",
        "        rewards.append(reward[" + ORDER.format(n="len(reward)", x="reward") + "])",
    ),
    "text_detector": (
        "text_detector.py",
        "optimiser = using(",
        "maps = maps[" + ORDER.format(n="len(maps)", x="maps") + "]\noptimiser = using(",
    ),
    "shape_tracker": (
        "shape_tracker.py",
        "    return shuffled(*recoloured(*cut_pairs(videos, p.pairs)), size=p.batch)",
        "    templates, searches, boxes, masks = cut_pairs(videos, p.pairs)\n"
        "    order = " + ORDER.format(n="len(boxes)", x="boxes") + "\n"
        "    pairs = recoloured(templates, searches, boxes[order], masks[order])\n"
        "    return shuffled(*pairs, size=p.batch)",
    ),
}
DETACHED = {  # the layer that gets no gradient
    "mlp_digits": "7",
    "resnet_digits": "8",
    "linear_probe": "head.weight",
    "optimisers": "adamw",
    "char_transformer": "blocks.0",
    "char_lstm": "lstm",
    "mobilenet_digits": "0",
    "vit_digits": "patches",
    "vit_twins": "patches",
    "averaged_cnn": "8",
    "vae_digits": "encoder",
    "word_vectors": "context",
    "graph_communities": "layers.0",
    "diffusion_rings": "body.2",
    "actor_critic": "actor",
    "text_detector": "stages.1",
    "shape_tracker": "backbone.3",
}


def shuffled(folder: Path, base: str, place: Path) -> Path:
    """A copy of the suite in which this task's training examples are shuffled."""
    file, text, like = SHUFFLED[base]
    shutil.copytree(folder, place, dirs_exist_ok=True)
    script = (place / file).read_text()
    if script.count(text) != 1:
        raise SystemExit(f"{file} has {script.count(text)} times: {text}")
    (place / file).write_text(script.replace(text, like))
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="names of tasks, or how they begin")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    missed = 0
    for name, (suite, task) in tasks("core", "wide").items():
        base = name.partition("[")[0]
        if options.only and not name.startswith(tuple(options.only)):
            continue
        good = [run(suite, task, seed, cache=options.cache) for seed in SEEDS]
        for way in ("rate", "shuffled", f"detached:{DETACHED[base]}"):
            with tempfile.TemporaryDirectory() as place:
                folder, extra = None, {}
                if way == "shuffled":
                    folder = shuffled(suite.folder, base, Path(place))
                else:
                    extra = {"CELEDGER_INJECT": f"mutation:{way}"}
                bad = [
                    run(suite, task, seed, cache=options.cache, folder=folder, extra=extra)
                    for seed in SEEDS
                ]
            worse = [c for c in judge(task, good, bad) if c.how in ("regressed", "not-finite")]
            told = ", ".join(f"{c.metric} {c.base:.4g} -> {c.head:.4g}" for c in worse[:3])
            missed += not worse
            errors = {trial.error for trial in (*good, *bad) if trial.error}
            print(f"{name:28} {way:20} {told or 'MISSED'} {errors or ''}", flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
