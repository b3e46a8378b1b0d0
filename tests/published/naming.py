"""The published way from mismatching pairs to a name; pure.

A rank wrong in both of its ring comparisons is the culprit. One mismatching pair is confirmed by one third
GPU on a third node, and by the target itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pair = tuple[int, int]  # replayer, target
Ask = Callable[[int, int], str]  # (who, whose micro-batch) -> result


@dataclass(frozen=True, slots=True)
class Name:
    """One accusation."""

    rank: int | None
    verdict: str  # culprit, persistent, transient, replayer, unattributable


def third(target: int, offset: int, world: int) -> int:
    """Who confirms: one node further than the target, so on neither of the two nodes."""
    return (target + offset) % world


def name(
    pairs: Sequence[Pair], results: Callable[[Pair], tuple[str, str]], ask: Ask, offset: int, world: int
) -> list[Name]:
    """Judge one audit.

    Args:
        pairs: mismatching ones.
        results: original and replayed result of a pair.
        ask: computes a micro-batch again on some rank.
    """
    count = Counter(rank for pair in pairs for rank in pair)
    twice = sorted(rank for rank, seen in count.items() if seen > 1)
    names = [Name(rank, "culprit") for rank in twice]
    for replayer, target in pairs:
        if replayer in twice or target in twice:
            continue
        original, replayed = results((replayer, target))
        confirmed = ask(third(target, offset, world), target)
        again = ask(target, target)
        if confirmed == original:
            names.append(Name(replayer, "replayer"))
        elif confirmed == replayed:
            names.append(Name(target, "persistent" if again == original else "transient"))
        else:
            names.append(Name(None, "unattributable"))
    return names
