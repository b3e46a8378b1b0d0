"""What one rank cannot do is refused on every rank, before the first update; one launch for all."""

from __future__ import annotations

import json

import pytest

from tests.distributed.conftest import launch
from tests.distributed.refusals_job import MODES, UNCAUGHT
from training_agent.contract import ExitCode

SAYS = {
    "no ddp": "wrap the model in torch.nn.parallel",
    "other step": "step must be equal on all ranks: rank 0 has 0, rank 1 has 5",
    "no audits": "schedule must be equal on all ranks: rank 0 has Schedule(audit_every=2",
    "no function": "rank 1: attach(compute_loss='loss'): give a function, or None.",
    "two guards": "this model has a guard already, and two would end each other's steps. close() the",
    "bad local rank": "rank 1: ValueError: invalid literal",
    "foreign manifest": "rank 1: after_load() got no manifest with digest version",
    "another manifest": "Ranks loaded different manifests of step 0: their last passed checks",
    "no memory to digest": "rank 1: RuntimeError: DefaultCPUAllocator",
    UNCAUGHT: "rank 1: The node of this process is unknown",
}


@pytest.fixture(scope="module")
def ended() -> list[tuple[int, str]]:
    return launch("tests.distributed.refusals_job", 3, NODE_NAME="")


@pytest.mark.parametrize("mode", [m for m in MODES if m != UNCAUGHT])
def test_what_one_rank_cannot_do_is_refused_on_every_rank(mode: str, ended: list[tuple[int, str]]) -> None:
    for _, out in ended:
        told = [json.loads(line) for line in out.splitlines() if line.startswith('{"mode"')]
        (said,) = [t for t in told if t["mode"] == mode]
        assert said["code"] == ExitCode.CONFIGURATION and SAYS[mode] in said["says"], said


def test_a_refusal_that_nobody_catches_ends_every_rank_with_code_4(ended: list[tuple[int, str]]) -> None:
    assert [code for code, _ in ended] == [ExitCode.CONFIGURATION] * 3, ended[0][1]
    assert all(SAYS[UNCAUGHT] in out for _, out in ended)
