"""Issue by issue what people train: no false alarm, the same bits as without a guard, a fault is caught."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.cases import CASES, SCALED, UNAUDITED
from tests.distributed.conftest import runs_of
from tests.distributed.expect import the_alarm
from tests.distributed.refused import REFUSED
from training_agent.contract import Check, FindingKind, Independence, Verdict

pytestmark = pytest.mark.timeout(600)  # the first test waits for all runs
RANKS = 4
BAD = 1
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Every run by name, one entry per rank."""
    return runs_of("tests.distributed.models_worker", RANKS, tmp_path_factory.mktemp("models"))[0]


def assert_nothing_moved(results: Results, step: int, *, rng_before_update: bool = True) -> None:
    """After the alarm of `step` weights, moments and RNG are those right before its update."""
    for r in results:
        per_step = -(-len(r["states"]) // r["ended at"])  # several optimizers: the first one's
        before = r["states"][(step - 1) * per_step]
        assert r["after"][:2] == before[:2]
        assert rng_before_update is False or r["after"][2] == before[2]
        assert r["guard step"] == step - 1


def same_end(results: Results, others: Results) -> bool:
    return [r["after"] for r in results] == [r["after"] for r in others]


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_run_is_quiet_audited_and_bit_identical(runs: dict[str, Results], name: str) -> None:
    clean = runs[f"{name}: clean"]
    assert [r["error"] for r in clean] == [""] * RANKS
    for r in clean:
        m = r["manifest"]
        assert (m["audits_passed"], m["audits_skipped"], m["notes"]) == (3, 0, [])
        assert m["weight_checks_passed"] == 4
    assert same_end(clean, runs[f"{name}: unguarded"])


@pytest.mark.parametrize("name", CASES)
def test_a_persistent_fault_is_caught_by_the_next_audit(runs: dict[str, Results], name: str) -> None:
    results = runs[f"{name}: x1000"]
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 4, (BAD,)), results[0]["error"]
    assert alarm.suspect_window == (3, 4)
    assert_nothing_moved(results, 4, rng_before_update="closure" not in name)


@pytest.mark.parametrize("name", CASES)
def test_a_nan_between_audits_names_its_rank_and_is_not_applied(runs: dict[str, Results], name: str) -> None:
    results = runs[f"{name}: nan"]
    if "scaler" in name:  # an overflow: the scaler skips it
        assert results[0]["error"] == ""
        assert [r["manifest"]["overflow_steps"] for r in results] == [1] * RANKS
        return
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.NONFINITE, 5, (BAD,)), results[0]["error"]
    assert alarm.suspect_window == (5, 5)
    (finding,) = alarm.findings
    assert finding.verdict is Verdict.TRANSIENT
    assert_nothing_moved(results, 5, rng_before_update="closure" not in name)


@pytest.mark.parametrize("name", ["deferred", "deferred, fused SGD", "buffers, deferred"])
def test_deferred_mode_raises_one_step_late(runs: dict[str, Results], name: str) -> None:
    results = runs[f"{name}: nan"]
    assert [r["ended at"] for r in results] == [6] * RANKS
    assert_nothing_moved(results, 5)


def test_deferred_mode_without_a_fused_optimizer_raises_in_the_step(runs: dict[str, Results]) -> None:
    assert [r["ended at"] for r in runs["deferred, not fused: nan"]] == [5] * RANKS


def test_deferred_mode_is_read_before_a_save(runs: dict[str, Results]) -> None:
    results = runs["deferred, before a save: nan"]
    alarm = the_alarm(results)
    assert (alarm.step, alarm.suspect_window, alarm.named_ranks) == (5, (5, 5), (BAD,))
    assert [r["ended at"] for r in results] == [5] * RANKS, "not one step later"
    assert_nothing_moved(results, 5)


def test_deferred_mode_raises_at_close_when_no_step_follows(runs: dict[str, Results]) -> None:
    results = runs["deferred: nan in the last step"]
    assert the_alarm(results).step == 7
    assert_nothing_moved(results, 7)


# -- what is skipped and counted, or off by name -------------------------------------------------------


@pytest.mark.parametrize("name", UNAUDITED)
def test_what_cannot_be_compared_never_alarms(runs: dict[str, Results], name: str) -> None:
    clean = runs[f"{name}: clean"]
    assert [r["error"] for r in clean] == [""] * RANKS
    assert [(r["manifest"]["audits_passed"], r["manifest"]["audits_skipped"]) for r in clean] == [
        (0, 3)
    ] * RANKS
    if name != "noisy forward":
        assert same_end(clean, runs[f"{name}: unguarded"])


@pytest.mark.parametrize("name", sorted(set(UNAUDITED) - {"forgotten no_grad"}))  # its NaN hits no training
def test_check_1_works_where_audits_do_not(runs: dict[str, Results], name: str) -> None:
    alarm = the_alarm(runs[f"{name}: nan"])
    assert (alarm.check, alarm.step, alarm.nonfinite_ranks) == (Check.NONFINITE, 5, (BAD,))


def test_a1_local_sgd_switches_the_weight_check_off_by_name(runs: dict[str, Results]) -> None:
    manifest = runs["local SGD: clean"][0]["manifest"]
    assert manifest["weight_checks_passed"] == 0
    assert "weight checks are off" in manifest["notes"][0]
    assert "post_localSGD_hook" in manifest["notes"][0]


def test_parameters_that_ddp_leaves_alone_are_each_ranks_own(runs: dict[str, Results]) -> None:
    manifest = runs["parameters that DDP leaves alone: clean"][0]["manifest"]
    (note,) = manifest["notes"]
    assert note.startswith("replay audits are off: DDP was told to leave table.weight alone")
    assert manifest["weight_checks_passed"] == 4  # of the others
    assert "table.weight" not in manifest["digests"]
    assert len({r["after"][0] for r in runs["parameters that DDP leaves alone: clean"]}) == RANKS


def test_a3_a_backward_that_is_not_reproducible_never_accuses(runs: dict[str, Results]) -> None:
    results = runs["noisy backward"]
    assert [r["error"] for r in results] == [""] * RANKS
    manifest = results[0]["manifest"]
    assert (manifest["audits_passed"], manifest["audits_skipped"]) == (20, 0)
    (note,) = manifest["notes"]
    assert note.startswith("audits compare output and loss only: the backward is not reproducible on ranks")
    assert "NoiseBackward" in note  # the operator that differs


def test_a3_forward_faults_are_still_caught_and_the_alarm_says_what_is_not(runs: dict[str, Results]) -> None:
    results = runs["noisy backward: x1000"]
    alarm = the_alarm(results)
    assert (alarm.step, alarm.named_ranks) == (3, (BAD,))
    assert "output and loss only" in alarm.notes[0]
    assert "output and loss only" in results[0]["error"]


def test_a_forward_that_is_not_reproducible_switches_replays_off_by_name(runs: dict[str, Results]) -> None:
    (note,) = runs["noisy forward: clean"][0]["manifest"]["notes"]
    assert note.startswith("replay audits are off: the forward is not reproducible")
    assert "first seen at aten." in note


def test_a_loss_function_that_the_loop_goes_past_is_said(runs: dict[str, Results]) -> None:
    """Found: attach() got it, the original was called, and only `loss_audited` of the manifest knew."""
    for r in runs["past compute_loss"]:
        assert (r["error"], r["manifest"]["loss_audited"]) == ("", False)
        (note,) = r["manifest"]["notes"]
        assert note.startswith("the loss function is not audited") and "guard.compute_loss(" in note


# -- refused by name before the first update -----------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_supported_is_refused(runs: dict[str, Results], name: str) -> None:
    for r in runs[name]:
        assert REFUSED[name][1] in r["error"]
        assert r["after"][0] == r["start"]  # no update was applied


# -- preflight, environment, loss, data ----------------------------------------------------------------


def test_a_gpu_that_differs_from_its_node_mate_is_named_before_the_first_update(
    runs: dict[str, Results],
) -> None:
    results = runs["fault from the start"]
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 1, (BAD,))
    assert [r["states"] for r in results] == [[]] * RANKS


def test_s1_replays_that_differ_where_an_environment_does_name_nobody(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["environment"])
    (finding,) = alarm.findings
    assert (alarm.step, alarm.named_ranks, finding.kind) == (4, (), FindingKind.SOFTWARE)
    assert alarm.independence is Independence.GPU  # two nodes
    assert (
        "environments differ: threads must be equal on all ranks: rank 0 has 1, rank 2 has 2"
        in finding.evidence
    )


def test_a_loss_that_the_model_returns_is_audited(runs: dict[str, Results]) -> None:
    assert runs["returned loss: clean"][0]["manifest"]["loss_audited"]
    assert not runs["accumulation without compute_loss: clean"][0]["manifest"]["loss_audited"]


def test_rebuilding_batches_is_quiet_and_leaves_the_run_bit_identical(runs: dict[str, Results]) -> None:
    for name in ("data: clean", "data: accumulation", "data: uneven"):
        assert [r["error"] for r in runs[name]] == [""] * RANKS
        assert [r["manifest"]["audits_passed"] for r in runs[name]] == [3] * RANKS
    assert same_end(runs["data: clean"], runs["retry: unguarded"])


def test_data_that_a_peer_builds_otherwise_stop_the_step_and_name_nobody(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["data: spoilt"])
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 4, ())
    assert [p.target for p in alarm.pairs] == [BAD]
    assert (finding.kind, finding.rank) == (FindingKind.SOFTWARE, None)
    assert "computed step 4 from other data" in finding.evidence


def test_a_rebuild_batch_that_gives_something_else_everywhere_is_said_to(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["data: other"])
    assert (alarm.step, len(alarm.pairs), alarm.named_ranks) == (2, RANKS, ())
    assert "does not give what the loop trains on" in alarm.findings[0].evidence


def test_a_rebuild_batch_that_fails_on_one_rank_skips_the_audit_on_all(runs: dict[str, Results]) -> None:
    counts = [
        (r["manifest"]["audits_passed"], r["manifest"]["audits_skipped"]) for r in runs["data: failing"]
    ]
    assert counts == [(0, 3)] * RANKS
    assert "pass attach(compute_loss=...)" in runs["data: without compute_loss"][0]["error"]


# -- hooks of users ------------------------------------------------------------------------------------


def test_post_accumulate_hooks_fire_once_a_step(runs: dict[str, Results]) -> None:
    fired = [r["notes"]["accumulated"] for r in runs["users' hooks: clean"]]
    assert fired == [CASES["users' hooks"].steps] * RANKS


def test_hooks_that_only_watch_do_not_see_replays_and_others_do(runs: dict[str, Results]) -> None:
    steps = CASES["forward hook"].steps
    for r in runs["forward hook: clean"]:
        assert r["notes"]["watched"] == steps
        assert r["notes"]["calls"] > steps  # it might have been part of the model


# -- GradScaler ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCALED)
def test_a5_overflows_are_counted_and_the_due_audit_moves(runs: dict[str, Results], kind: str) -> None:
    results = runs[f"{kind}: overflows"]
    assert [r["error"] for r in results] == [""] * RANKS
    for r in results:
        m = r["manifest"]
        assert (m["step"], m["overflow_steps"]) == (9, 3)
        # Deferred mode may have begun the next step as an audit before it knew that this one was skipped.
        assert m["audits_passed"] >= 4 if "deferred" in kind else m["audits_passed"] == 4
        assert m["audits_skipped"] == 0


@pytest.mark.parametrize("kind", SCALED)
def test_a5_a_rank_that_overflows_forever_is_an_ambiguous_alarm(runs: dict[str, Results], kind: str) -> None:
    alarm = the_alarm(runs[f"{kind}: overflows forever"])
    (finding,) = alarm.findings
    assert (finding.kind, finding.verdict, finding.rank) == (FindingKind.PAIR, Verdict.UNATTRIBUTABLE, None)
    assert [p.rank for p in finding.involved] == [2]


# -- policies ------------------------------------------------------------------------------------------


def test_retry_repairs_a_one_off_fault_bit_by_bit(runs: dict[str, Results]) -> None:
    mixed = "float32 inside autocast"
    for repaired, whole in (("retry: once", "retry"), ("retry: nan", "retry"), (f"{mixed}: retried", mixed)):
        results = runs[repaired]
        assert [r["error"] for r in results] == [""] * RANKS
        assert [r["manifest"]["steps_retried"] for r in results] == [1] * RANKS
        assert same_end(results, runs[f"{whole}: unguarded"])


def test_retry_stops_a_persistent_fault(runs: dict[str, Results]) -> None:
    alarm = the_alarm(runs["retry: x1000"])
    assert (alarm.step, alarm.named_ranks) == (4, (BAD,))


def test_retry_does_not_repeat_a_step_whose_gradients_the_loop_has_changed(runs: dict[str, Results]) -> None:
    assert the_alarm(runs["retry, clipped: nan"]).step == 5


@pytest.mark.parametrize("name", ["skip: nan", "skip: once", "skip, deferred: nan"])
def test_skip_drops_the_step_on_all_ranks(runs: dict[str, Results], name: str) -> None:
    results = runs[name]
    assert [r["error"] for r in results] == [""] * RANKS
    assert [(r["manifest"]["step"], r["manifest"]["steps_skipped"]) for r in results] == [(6, 1)] * RANKS
    assert len({r["after"][0] for r in results}) == 1


def test_warn_goes_on(runs: dict[str, Results]) -> None:
    results = runs["warn: once"]
    assert [r["error"] for r in results] == [""] * RANKS
    assert [(r["manifest"]["step"], r["manifest"]["warnings"]) for r in results] == [(7, 1)] * RANKS
