"""The smallest set of parts that has an effect: binary searches for the last part of it, one after
another (the prefixes of Junker, "QuickXplain", AAAI 2004), with guesses first."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def smallest_set(
    count: int, has_effect: Callable[[frozenset[int]], bool | None], guesses: Sequence[int] = ()
) -> frozenset[int]:
    """Return a set of parts, by their positions, that has the effect. It loses it without any one
    of them, if no part takes away what others have.

    It asks at most log2(count) + 1 sets, rounded up, for each part of the answer, and two guesses.

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
    chosen: frozenset[int] = frozenset()
    high = count  # the first `high` parts and those chosen have the effect
    while not asked(chosen):
        low = 0  # and the first `low` parts with them have it not
        while high - low > 1:
            middle = (low + high) // 2
            if asked(chosen.union(range(middle))):
                high = middle
            else:
                low = middle
        high -= 1
        chosen |= {high}
    return chosen
