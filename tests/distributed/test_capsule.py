"""A persistent fault on real ranks, its capsule, and what `sdc replay` says of it elsewhere."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.capsule_job import ALARM, BAD
from training_agent.cli.app import main
from training_agent.contract import Alarm, TargetedAuditResult, decode

JOB = "tests.distributed.capsule_job"
INCIDENT, NODE = "3f1c9a0b7d2e4685", "hyperpod-i-0a1b2c3d4e5f60002"
Replay = Any


@pytest.fixture
def replay(alarm: Alarm, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Run the command on the capsule; exit code and JSON."""

    def run(*options: str | Path, model: str = "build") -> tuple[int, dict[str, Any]]:
        arguments = ["replay", alarm.capsules[0].path, "--model", f"{JOB}:{model}", "--json"]
        code = main([*arguments, *map(str, options)])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_the_alarm_lists_one_capsule_written_by_the_rank_that_holds_the_micro_batch(
    alarm: Alarm, shared: Path
) -> None:
    assert (alarm.step, alarm.named_ranks) == (ALARM, (BAD,))
    (capsule,) = alarm.capsules
    assert capsule.rank == BAD
    written = Path(capsule.path).read_bytes()
    assert (sha256(written).hexdigest(), len(written)) == (capsule.sha256, capsule.nbytes)
    assert [p.name for p in (shared / "capsules").glob("*.sdc")] == [Path(capsule.path).name]


def test_on_a_healthy_gpu_the_bits_are_the_expected_ones_and_not_the_observed(
    replay: Replay, shared: Path
) -> None:
    code, said = replay("--checkpoint", shared / "checkpoints" / "step-11.doubtful-1", "--repeat", "3")
    assert (code, said["answer"]) == (0, "equal"), said["why"]
    assert [(r["equal"], BAD in r["observed_by"]) for r in said["repeats"]] == [(True, False)] * 3
    assert said["repeats"][0]["differs_in"]  # from what rank 1 computed


def test_on_the_gpu_with_the_fault_the_bits_are_those_that_were_observed(replay: Replay) -> None:
    code, said = replay("--repeat", "2", model="build_faulty")  # the capsule holds the weights as well
    assert (code, said["answer"]) == (1, "different"), said["why"]
    assert [(r["equal"], r["observed_by"], r["differs_in"]) for r in said["repeats"]] == [
        (False, [BAD], [])
    ] * 2


def test_with_other_weights_only_a_reference_from_a_trusted_gpu_tells(
    replay: Replay, shared: Path, tmp_path: Path
) -> None:
    older = ("--checkpoint", shared / "checkpoints" / "step-0", "--repeat", "2")
    code, said = replay(*older, "--save-reference", tmp_path / "reference.json")
    assert (code, said["answer"]) == (4, "undecided")
    assert "weights are not those of step 12" in said["why"]
    compared = (*older, "--reference", tmp_path / "reference.json")
    assert replay(*compared)[0] == 0
    code, said = replay(*compared, model="build_faulty")  # its fault is code: it shows in the operations
    assert (code, "made of other operations" in said["why"]) == (4, True)
    code, said = replay("--reference", tmp_path / "reference.json")  # made from other weights
    assert (code, "other weights" in said["why"]) == (4, True)


@pytest.mark.parametrize(("model", "passed"), [("build", True), ("build_faulty", False)])
def test_the_receipt_is_the_targeted_audit_result_of_the_instance_that_computed(
    replay: Replay, alarm: Alarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, passed: bool
) -> None:
    monkeypatch.setenv("NODE_NAME", NODE)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    replay("--incident", INCIDENT, "--receipt", tmp_path / "r.json", "--repeat", "1", model=model)
    receipt = decode(TargetedAuditResult, (tmp_path / "r.json").read_bytes())
    assert (receipt.cluster, receipt.incident_id, receipt.instance_id, receipt.gpu_uuid) == (
        "demo",
        INCIDENT,
        NODE.removeprefix("hyperpod-"),
        "GPU-b",
    )
    assert (receipt.passed, receipt.capsule_hash) == (passed, alarm.capsules[0].sha256)
    assert f"step {ALARM}, micro-batch of rank {BAD}" in receipt.evidence


def test_an_undecided_replay_gives_no_receipt(
    replay: Replay, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", NODE)
    older = ("--checkpoint", shared / "checkpoints" / "step-0", "--repeat", "1")
    code, said = replay(*older, "--incident", INCIDENT, "--receipt", tmp_path / "r.json")
    assert (code, said["receipt"], (tmp_path / "r.json").exists()) == (4, None, False)
