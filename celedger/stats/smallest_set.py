"""The smallest set of parts that has an effect: delta debugging (Zeller and Hildebrandt,
"Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002), with guesses first."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def smallest_set(
    count: int, has_effect: Callable[[frozenset[int]], bool | None], guesses: Sequence[int] = ()
) -> frozenset[int]:
    """Return a set of parts, by their positions, that has the effect and loses it without any one
    of them, as far as that was asked.

    Args:
        count: How many parts there are; all together have the effect, and none has it not.
        has_effect: Returns None for a set that cannot be tested.
        guesses: Positions, the likeliest first: each of the first two is asked alone.
    """
    known: dict[frozenset[int], bool] = {frozenset(range(count)): True, frozenset(): False}

    def asked(parts: frozenset[int]) -> bool:
        if parts not in known:
            known[parts] = bool(has_effect(parts))
        return known[parts]

    for guess in guesses[:2]:
        if asked(frozenset([guess])):
            return frozenset([guess])
    parts, pieces = list(range(count)), 2
    while len(parts) > 1:
        size = -(-len(parts) // pieces)
        subsets = [frozenset(parts[at : at + size]) for at in range(0, len(parts), size)]
        whole = frozenset(parts)
        one = next((subset for subset in subsets if asked(subset)), None)
        if one is not None:
            parts, pieces = sorted(one), 2
            continue
        rest = next((whole - subset for subset in subsets if asked(whole - subset)), None)
        if rest is not None:
            parts, pieces = sorted(rest), max(pieces - 1, 2)
        elif pieces >= len(parts):
            break
        else:
            pieces = min(len(parts), 2 * pieces)
    return frozenset(parts)
