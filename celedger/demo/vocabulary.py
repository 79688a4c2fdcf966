"""What differs between two demos of the same steps: names, numbers and people, drawn by seed.
The numbers' ranges are those in which every planted regression was measured to be clear of the
noise (`benchmarks/demo_truth.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_PACKAGES = ("tinygrove", "pebblenet", "smallfire", "twignet", "mosslib", "fernwork", "lowtide")
_MODELS = ("Sequential", "Chain", "Stack", "Network")
_TRAINERS = ("Trainer", "Loop", "Training", "Teacher")
_SUITES = ("daily", "guard", "smoke", "watch")
_FIRST = (
    "Ada", "Bela", "Chidi", "Dagny", "Emre", "Farah", "Goran", "Hana", "Ines", "Jun", "Kofi",
    "Lena", "Mateo", "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Sanna", "Tariq", "Uma",
    "Viktor", "Yael",
)  # fmt: skip
_LAST = (
    "Almeida", "Berg", "Castro", "Dalal", "Eriksen", "Fofana", "Gruber", "Haas", "Ito", "Jansen",
    "Kovac", "Lindqvist", "Moreau", "Nakamura", "Okafor", "Petrov", "Rossi", "Silva", "Tanaka",
    "Vogel", "Weiss", "Yilmaz",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    email: str


def words(random: Random) -> dict[str, str]:
    """The vocabulary of the templates."""
    momentum = random.choice((0.85, 0.9))
    # what counts is the length of a step once the velocity is built up: lr / (1 - momentum)
    step = random.choice((0.08, 0.09, 0.1))
    return {
        "package": random.choice(_PACKAGES),
        "Sequential": random.choice(_MODELS),
        "Trainer": random.choice(_TRAINERS),
        "suite": random.choice(_SUITES),
        "pixels": "144",
        "alphabet": str(random.randrange(1000)),
        "noise": random.choice(("1.9", "2.0", "2.1")),
        "train": random.choice(("3250", "3350", "3450")),
        "validation": random.choice(("1900", "2000", "2100")),
        "batch": random.choice(("56", "64", "72")),
        "wide": random.choice(("120", "128", "136")),
        "narrow": random.choice(("60", "64", "72")),
        "dropout": random.choice(("0.15", "0.2")),
        "momentum": f"{momentum:g}",
        "lr": f"{step * (1.0 - momentum):.3g}",
        "epochs": "12",
        "every": "4",
        "channels": random.choice(("5", "6", "8")),
        "predict": random.choice(("500", "512", "1000")),
    }


def people(random: Random) -> list[Person]:
    """Four to six authors of the library, the busiest first."""
    count = random.randint(4, 6)
    first, last = random.sample(_FIRST, count), random.sample(_LAST, count)
    return [
        Person(f"{a} {b}", f"{a.lower()}.{b.lower()}@example.org")
        for a, b in zip(first, last, strict=True)
    ]


def subject_style(random: Random) -> str:
    """How this project words its subjects: a format of kind, area, and either `{Subject}` or
    `{subject}`."""
    return random.choice(("{Subject}", "{area}: {subject}", "{kind}({area}): {subject}"))
