"""Runs the model: a short run always, a long one in `make soak`; examples derive from the test itself."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.mutants.run import UNSHRUNK

from .asl import Definition
from .model import PipelineModel
from .test_single_faults import record_sites
from .wires import Site

# Whoever only asks whether it fails (`make mutants`) does not wait for the shortest story.
SHARDS = 10
PHASES = [Phase.generate] if UNSHRUNK in os.environ else [Phase.generate, Phase.shrink]
ANY = settings(
    derandomize=True,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
)


@pytest.fixture(scope="module")
def sites(definition: Definition) -> list[Site]:
    return sorted(record_sites(definition))


def play(definition: Definition, sites: list[Site], examples: int, steps: int) -> None:
    how = settings(ANY, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(lambda: PipelineModel(definition, sites), settings=how)


def test_whatever_happens_in_whatever_order_the_invariants_hold(
    definition: Definition, sites: list[Site]
) -> None:
    play(definition, sites, examples=50, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_soak_the_invariants_hold_for_long(definition: Definition, sites: list[Site], shard: int) -> None:
    """2,000 examples of 50 steps, in shards with seeds of their own."""
    how = settings(ANY, derandomize=False, max_examples=2000 // SHARDS, stateful_step_count=50)
    run_state_machine_as_test(seed(shard)(lambda: PipelineModel(definition, sites)), settings=how)
