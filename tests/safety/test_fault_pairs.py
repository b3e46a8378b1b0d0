"""Two faults in one story: sampled pairs of the recorded call sites, each hit by some fault.

The first fault may turn the story aside, so that the second finds no call: then the pair was a single one,
which `test_single_faults.py` has judged; how many pairs struck twice is counted and asserted.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from .asl import Definition
from .plant import Plant
from .test_single_faults import STORIES, record_stories, unsafe
from .wires import Fault, Plan, Site

SPARED = (0, 0, 0, 1, 2)  # calls of a site that go well before one fails
PAIRS, SOAK_PAIRS = 60, 1000


@pytest.fixture(scope="module")
def recorded(definition: Definition) -> dict[str, list[Site]]:
    return record_stories(definition)


def check(definition: Definition, recorded: dict[str, list[Site]], count: int, seed: int) -> Counter[str]:
    """Play `count` sampled pairs; how many of them struck twice, and what was wrong."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for _ in range(count):
        story = rng.choice(list(STORIES))
        plans = [
            Plan(site, rng.choice(list(Fault)), spared=rng.choice(SPARED))
            for site in rng.sample(recorded[story], 2)
        ]
        with pytest.MonkeyPatch.context() as patched:
            plant = Plant(patched, definition)
            plant.wires.plans.extend(plans)
            STORIES[story](plant)
            found = unsafe(plant)
        counts["pairs"] += 1
        counts["both struck"] += all(plan.struck for plan in plans)
        names = " + ".join(f"{plan.fault.value} at {plan.site}" for plan in plans)
        failures += [f"{story}: {names}: {text}" for text in found]
    assert not failures, "\n".join(failures)
    return counts


def test_pairs_of_faults_lead_to_a_safe_or_correct_end(
    definition: Definition, recorded: dict[str, list[Site]]
) -> None:
    assert check(definition, recorded, PAIRS, seed=3)["both struck"] > PAIRS // 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak_a_thousand_pairs_of_faults(definition: Definition, recorded: dict[str, list[Site]]) -> None:
    counts = check(definition, recorded, SOAK_PAIRS, seed=1)
    assert counts["pairs"] == SOAK_PAIRS and counts["both struck"] > SOAK_PAIRS // 5, counts
