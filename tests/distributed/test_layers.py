"""Layer audits on real ranks: quiet and bit-identical when healthy, the block and the rank named when not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.conftest import runs_of
from tests.distributed.expect import the_alarm
from tests.distributed.layers_models import HEALTHY, UNFIT, Checkpointed
from tests.matrix.layers import merged, surprises
from training_agent.capsule import content as capsule
from training_agent.capsule.recompute import Answer, replay
from training_agent.capsule.subject import Subject, put_weights
from training_agent.contract import Check, Verdict

pytestmark = pytest.mark.timeout(600)  # the first test waits for all runs
RANKS, BAD = 3, 1
BLOCKS = ["embedding", "head", "layers.0", "layers.1", "norm"]
PLACES = ["forward-output", "input-gradient", "weight-gradient"]
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Every run by name, one entry per rank."""
    out = tmp_path_factory.mktemp("layers")
    runs, _ = runs_of("tests.distributed.layers_job", RANKS, out)
    return {**runs, "files": [{"capsule": str(p)} for p in (out / "capsules").glob("*.sdc")]}


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
    assert found["covered"] == BLOCKS or (name == "budget" and found["covered"])  # as fast as it was
    whole = clean[0]["manifest"]["audits_passed"]
    if name != "budget":
        assert found["passed"] == found["turn"] == HEALTHY[name].steps - whole
    assert whole == (2 if name == "whole audits between" else 0)


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


def test_a_fault_is_named_in_front_of_a_block_that_takes_a_gradient_in_its_forward(
    runs: dict[str, Results],
) -> None:
    alarm = the_alarm(runs["a gradient inside: lasting"])
    assert (alarm.step, alarm.named_ranks) == (7, (BAD,))


def test_a_passed_layer_audit_shortens_no_suspect_window(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["forward-output: once"])
    assert alarm.suspect_window == (1, 8)
    assert alarm.last_audit_pass is None


@pytest.mark.parametrize("name", UNFIT)
def test_what_a_replay_of_a_block_cannot_know_of_accuses_nobody(runs: dict[str, Results], name: str) -> None:
    results = runs[name]
    _, off, skipped, why = UNFIT[name]
    found, notes = books(results), results[0]["manifest"]["notes"]
    assert [r["alarm"] for r in results] == [None] * RANKS
    assert found["skipped"] == skipped
    if off is None:
        assert len(notes) == 1 and notes[0].startswith("layer audits are off: ") and why in notes[0]
        assert found["passed"] == found["blocks"] == 0
        return
    assert len(notes) == len(off)
    for block, note in zip(off, notes, strict=True):
        assert note.startswith(f"layer audits of block {block} are off: ") and why in note
    assert found["passed"] == 8 - skipped


def test_a_step_that_a_scaler_skips_leaves_the_turn_to_the_next(runs: dict[str, Results]) -> None:
    results = runs["scaler"]
    found, manifest = books(results), results[0]["manifest"]
    assert manifest["overflow_steps"] >= 1
    assert (found["passed"], found["skipped"]) == (manifest["step"], 0)


def test_the_audited_block_alone_runs_deterministic_kernels_in_its_step(runs: dict[str, Results]) -> None:
    told = {tuple(t) for t in runs["kernels"][0]["told"]}
    # the embedding's turn is at step 1, those of the layers at 2 and 3
    assert {t for t in told if t[0].startswith("training")} == {
        (f"training {2 + layer}", layer, what) for layer in (0, 1) for what in ("forward", "backward")
    }
    assert ("replay 2", 0, "backward") in told


def test_a_block_that_fails_or_returns_its_input_leaves_no_switch_behind(runs: dict[str, Results]) -> None:
    told = {tuple(t) for t in runs["kernels, passing"][0]["told"]}
    assert {t for t in told if t[0].startswith("training")} <= {("training 2", 0, "forward")}


def test_the_capsule_of_a_block_is_computed_again_without_the_job(runs: dict[str, Results]) -> None:
    (file,) = runs["files"]  # the bad rank's own block
    found = capsule.load(Path(file["capsule"]), torch.device("cpu"))
    assert found.facts.parameters[-1] == "layers.1.input 0"
    subject = Subject(Checkpointed(), None, torch.device("cpu"))
    assert found.state is not None
    put_weights(subject, found.state, "the capsule")
    outcome = replay(found, subject, 2)
    assert outcome.answer is Answer.EQUAL, outcome.why
    assert outcome.repeats[0].differs_in == ("layers.1.feed_forward.2.weight",)  # from what the GPU got


def test_a_sample_of_random_faults_is_caught_in_its_blocks_turn_and_nobody_else_is_named(
    runs: dict[str, Results],
) -> None:
    seen = merged([r["seen"] for r in runs["sample"]])
    faults = [s for s in seen if s.changed]
    assert len(faults) == 35
    assert surprises(seen) == []
    assert 0 < sum(s.alarmed for s in faults) < 15  # of seven blocks one has its turn


def test_a_resumed_run_goes_on_where_it_was(runs: dict[str, Results]) -> None:
    found = books(runs["resumed"])
    assert (found["turn"], found["passed"]) == (5, 5)
    assert found["covered"] == BLOCKS  # the first three before, the others after


def test_policies_answer_a_layer_audit_like_a_whole_one(runs: dict[str, Results]) -> None:
    counted = {
        policy: [r["manifest"][what] for r in runs[f"{policy}: once"]]
        for policy, what in (("skip", "steps_skipped"), ("warn", "warnings"), ("retry", "steps_retried"))
    }
    assert counted == dict.fromkeys(counted, [1] * RANKS)
    clean = [r["weights"] for r in runs["dropout: clean"]]
    assert [r["weights"] for r in runs["retry: once"]] == clean
    assert [r["weights"] for r in runs["warn: once"]] != clean
