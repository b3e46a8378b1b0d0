"""Layer audits on real ranks: quiet and bit-identical when healthy, the block and the rank named when not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.distributed.conftest import launch
from tests.distributed.layers_models import HEALTHY
from training_agent.contract import Alarm, Check, Verdict, decode

pytestmark = pytest.mark.timeout(300)  # the first test waits for all runs
RANKS, BAD = 3, 1
BLOCKS = ["embedding", "head", "layers.0", "layers.1", "norm"]
PLACES = ["forward-output", "input-gradient", "weight-gradient"]
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Every run by name, one entry per rank."""
    out = tmp_path_factory.mktemp("layers")
    ended = launch("tests.distributed.layers_job", RANKS, str(out), timeout=200)
    assert [code for code, _ in ended] == [0] * RANKS, "\n".join(text[-1500:] for _, text in ended)
    by_rank = [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [results[name] for results in by_rank] for name in by_rank[0]}


def the_alarm(results: Results) -> Alarm:
    assert len({r["alarm"] for r in results}) == 1
    assert results[0]["alarm"] is not None
    return decode(Alarm, results[0]["alarm"])


def books(results: Results) -> dict[str, Any]:
    """What the manifests say, the same on all ranks."""
    counted = [r["manifest"]["layer_audits"] for r in results]
    assert counted[1:] == counted[:-1]
    return counted[0]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_quiet_and_its_blocks_are_covered(runs: dict[str, Results], name: str) -> None:
    clean = runs[f"{name}: clean"]
    found = books(clean)
    assert [r["alarm"] for r in clean] == [None] * RANKS
    assert clean[0]["manifest"]["notes"] == []
    assert found["skipped"] == 0
    assert found["covered"] == BLOCKS
    if name != "budget":
        assert found["passed"] == found["turn"] == HEALTHY[name].steps


@pytest.mark.parametrize("name", HEALTHY)
def test_layer_audits_at_every_step_do_not_change_a_bit(runs: dict[str, Results], name: str) -> None:
    clean, without = runs[f"{name}: clean"], runs[f"{name}: unlayered"]
    assert [r["weights"] for r in clean] == [r["weights"] for r in without]
    assert [r["hooks"] for r in clean] == [r["hooks"] for r in without]
    assert not any(r["left on"] for r in clean)


def test_an_input_that_is_used_outside_too_is_no_reason_for_an_alarm(runs: dict[str, Results]) -> None:
    """Its gradient is summed in another order in that step, as docs/detection.md says."""
    results = runs["skip connection"]
    assert [r["alarm"] for r in results] == [None] * RANKS
    assert books(results)["passed"] == 6


@pytest.mark.parametrize("place", PLACES)
def test_a_one_off_fault_in_the_audited_block_is_caught_and_named(
    runs: dict[str, Results], place: str
) -> None:
    results = runs[f"{place}: once"]
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 8, (BAD,))
    (finding,) = alarm.findings
    assert finding.verdict is Verdict.TRANSIENT
    assert finding.evidence.startswith("block layers.1: 2 of 3 ranks agree")


@pytest.mark.parametrize("place", PLACES)
def test_a_one_off_fault_elsewhere_in_the_step_goes_unseen(runs: dict[str, Results], place: str) -> None:
    """What the published probability is about: the other blocks were not compared."""
    results = runs[f"{place}: elsewhere"]
    assert [r["alarm"] for r in results] == [None] * RANKS
    assert books(results)["passed"] == 11


@pytest.mark.parametrize("place", PLACES)
def test_a_lasting_fault_is_named_within_one_round(runs: dict[str, Results], place: str) -> None:
    alarm = the_alarm(runs[f"{place}: lasting"])
    assert (alarm.step, alarm.named_ranks) == (8, (BAD,))
    assert {f.verdict for f in alarm.findings} == {Verdict.PERSISTENT}


def test_a_passed_layer_audit_shortens_no_suspect_window(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["forward-output: once"])
    assert alarm.suspect_window == (1, 8)
    assert alarm.last_audit_pass is None
