"""Random generators beside torch's own: Python's, numpy's, and generator objects that a program holds.

Comes in: nothing, or a generator. Goes out: its state as a value that can be compared, shipped and put back.
Used by `_kept`: a forward that draws from one must draw the same elsewhere, and a replay must leave no trace.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """State of one generator; `kind` says of which sort, so that it is put into no other."""

    kind: str
    state: Any


def state_of(value: Any) -> GeneratorState | None:
    """The state of a generator; None for anything else."""
    way = _way(value)
    return None if way is None else GeneratorState(way[0], way[1](value))


def put_into(value: Any, state: GeneratorState) -> None:
    """Make a generator go on from `state`; one of another sort, or nothing, stays as it is."""
    way = _way(value)
    if way is not None and way[0] == state.kind:
        way[2](value, state.state)


def everywhere() -> dict[str, Any]:
    """What stands for the generators that a whole process shares, by name."""
    found: dict[str, Any] = {"python": random._inst}
    numpy = sys.modules.get("numpy.random")
    shared = None if numpy is None else getattr(getattr(numpy, "mtrand", None), "_rand", None)
    return found if shared is None else found | {"numpy": shared}


def _way(value: Any) -> tuple[str, Callable[[Any], Any], Callable[[Any, Any], None]] | None:
    """Its sort, and how its state is read and set."""
    if isinstance(value, torch.Generator):
        return "torch", torch.Generator.get_state, lambda g, s: g.set_state(s)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return "python", random.Random.getstate, random.Random.setstate
    kind, library = type(value).__name__, type(value).__module__.partition(".")[0]
    if library != "numpy":
        return None
    if kind == "RandomState":
        return "numpy", lambda g: g.get_state(legacy=False), lambda g, s: g.set_state(s)
    if kind == "Generator":
        return "numpy generator", lambda g: g.bit_generator.state, _set_bit_generator
    return None


def _set_bit_generator(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state
