"""What a save takes along beside weights, and running statistics: flips are caught, no program is accused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.conftest import runs_of
from tests.distributed.expect import the_alarm
from tests.distributed.state_models import Buffered
from training_agent.contract import Check, FindingKind, Verdict

RANKS = 3
Results = dict[str, list[dict[str, Any]]]
pytestmark = pytest.mark.timeout(600)


def launched(folder: Any, *args: str, timeout: float = 500) -> Results:
    return runs_of("tests.distributed.state_job", RANKS, folder, *args, timeout=timeout)[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Every run by name, one entry per rank."""
    return launched(tmp_path_factory.mktemp("state"))


def quiet(runs: Results, name: str) -> dict[str, Any]:
    """The manifest of a run without an alarm."""
    assert [(r["alarm"], r["error"]) for r in runs[name]] == [(None, "")] * RANKS
    manifest: dict[str, Any] = runs[name][0]["manifest"]
    return manifest


# -- steady buffers ------------------------------------------------------------------------------------

FLIPPED = {
    "table, rank 1": (1, "table"),
    "table, rank 0": (0, "table"),
    "phases, rank 2": (2, "phases"),  # complex
}


@pytest.mark.parametrize("name", FLIPPED)
def test_a_bit_flipped_in_a_steady_buffer_is_named_by_majority_before_the_save(
    runs: Results, name: str
) -> None:
    rank, buffer = FLIPPED[name]
    alarm = the_alarm(runs[name])
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 4, (rank,))
    assert alarm.divergent_tensors == (f"buffer {buffer}",)
    assert alarm.suspect_window == (3, 4)


def test_the_window_of_a_buffer_begins_where_buffers_were_compared_not_only_weights(runs: Results) -> None:
    alarm = the_alarm(runs["table before the last check"])  # flipped at 5; weights passed at 5, 6 and 7
    assert (alarm.step, alarm.named_ranks, alarm.suspect_window) == (8, (2,), (5, 8))


@pytest.mark.parametrize("name", ["mask, rank 1", "halves, rank 2", "data of one rank"])
def test_what_a_program_could_have_written_through_data_stops_the_save_and_names_nobody(
    runs: Results, name: str
) -> None:
    alarm = the_alarm(runs[name])
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 4, ())
    assert (finding.kind, finding.involved) == (FindingKind.SOFTWARE, ())  # row S1: nobody is cordoned
    assert "or the program writes it on one rank through .data" in finding.evidence


def test_a_finding_in_a_buffer_that_the_policy_lets_pass_is_said_once(runs: Results) -> None:
    manifest = quiet(runs, "data of one rank, warn")
    assert (manifest["warnings"], manifest["buffers_compared"]) == (1, len(Buffered.STEADY) + 1)
    assert manifest["weight_checks_passed"] == 1 + 4  # the weights themselves were equal


@pytest.mark.parametrize("broadcast", ["", ", not broadcast"])
def test_whatever_programs_do_with_buffers_accuses_nobody(runs: Results, broadcast: str) -> None:
    manifest = quiet(runs, f"buffers: clean{broadcast}")
    # `late` was written in place, `halves` replaced, `eighth` resized; `born` came later
    assert manifest["buffers_compared"] == len(Buffered.STEADY) - 2
    assert manifest["notes"] == ["buffers are no longer compared (mine): each rank has its own"]


@pytest.mark.parametrize("name", ["data of all ranks", "table spread"])
def test_copies_that_have_all_changed_alike_are_noted_with_both_reasons(runs: Results, name: str) -> None:
    (note,) = quiet(runs, name)["notes"]
    assert "wrote them through .data, or DDP's broadcast has spread a wrong bit of the first rank" in note


def test_copies_that_several_ranks_have_changed_are_a_programs(runs: Results) -> None:
    (note,) = quiet(runs, "data of two ranks")["notes"]
    assert note == "buffers are no longer compared (spoken): several ranks have changed theirs through .data"


def test_a_flip_that_ddps_broadcast_overwrites_is_gone(runs: Results) -> None:
    assert quiet(runs, "table overwritten")["notes"] == []


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_long_no_false_alarm_in_a_thousand_checks_of_buffers(tmp_path: Any) -> None:
    found = launched(tmp_path, "soaked", timeout=1200)
    assert [quiet(found, name)["weight_checks_passed"] for name in found] == [1001, 1001]


def test_buffers_join_the_all_reduces_that_the_optimizers_state_needs(runs: Results) -> None:
    for r in runs["cost"]:
        weights, state, manifest = r["weights"], r["state"], r["manifest"]
        assert (weights["collectives"], weights["sent_bytes"]) == (1, 48 * r["weights_there"])
        tensors = r["weights_there"] + manifest["state_tensors_compared"] + manifest["buffers_compared"]
        flags = 2 * 2 + manifest["buffers_compared"]  # who wrote what, and whether all keep the same
        assert (state["collectives"], state["by_name"]["c10d::allreduce_"]) == (2, 2)
        assert state["sent_bytes"] == 48 * tensors + 8 * flags


# -- optimizer state and master weights ----------------------------------------------------------------

STATE = {
    "moment exp_avg": (2, "optimizer state exp_avg of up.weight"),
    "moment exp_avg_sq": (0, "optimizer state exp_avg_sq of up.weight"),
    "masters: flipped": (1, "master weight of head.bias"),
    "masters: flat, flipped": (1, "master weights 0"),
    "masters: moment": (1, "optimizer state exp_avg_sq of master weight of up.weight"),
}


@pytest.mark.parametrize("name", STATE)
def test_a_bit_flipped_in_what_the_optimizer_keeps_is_named_before_the_save(runs: Results, name: str) -> None:
    rank, tensor = STATE[name]
    alarm = the_alarm(runs[name])
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 4, (rank,))
    assert alarm.divergent_tensors == (tensor,)


@pytest.mark.parametrize(("name", "tensors"), [("masters: clean", 4 + 12), ("masters: flat", 1 + 3)])
def test_master_weights_outside_of_the_model_are_guarded_and_compared(
    runs: Results, name: str, tensors: int
) -> None:
    assert quiet(runs, name)["state_tensors_compared"] == tensors


def test_what_an_optimizer_of_ones_own_counts_by_rank_is_left_out_by_name(runs: Results) -> None:
    manifest = quiet(runs, "counted by rank")
    (note,) = manifest["notes"]
    assert manifest["step"] == 6  # although its step calls its parent's
    assert note.startswith("optimizer state is not compared (optimizer state seen of head.bias, ")
    alarm = the_alarm(runs["counted by rank, weight"])
    assert (alarm.step, alarm.named_ranks) == (2, (2,))  # and not rank 1, which counts


def test_a_save_between_two_checkpoint_steps_compares_moments_where_all_ranks_ask_and_says_so_otherwise(
    runs: Results,
) -> None:
    alarm = the_alarm(runs["moment, saved together"])
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 4, (2,))
    assert alarm.divergent_tensors == ("optimizer state exp_avg of up.weight",)
    (note,) = quiet(runs, "moment, saved elsewhere")["notes"]
    assert note.startswith(
        "checkpoints were saved whose moments, master weights and buffers were not compared"
    )


def test_what_an_optimizer_keeps_in_lists_and_dicts_is_compared(runs: Results) -> None:
    manifest = quiet(runs, "preconditioner")
    assert (manifest["state_tensors_compared"], manifest["notes"]) == (24, [])
    alarm = the_alarm(runs["preconditioner, flipped"])
    assert (alarm.step, alarm.named_ranks) == (4, ())
    assert (
        "optimizer state GG[1]['left'] of up.weight: the copy of rank 2 alone" in alarm.findings[0].evidence
    )


@pytest.mark.parametrize("name", ["counted by rank, later", "counted by rank, moment"])
def test_what_changes_alone_in_an_optimizer_of_ones_own_stops_the_save_and_names_nobody(
    runs: Results, name: str
) -> None:
    alarm = the_alarm(runs[name])
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 4, ())
    assert finding.kind is FindingKind.SOFTWARE
    assert "which is not torch's, keeps something by rank" in finding.evidence


def test_a_dropped_step_leaves_master_weights_alone_and_equal(runs: Results) -> None:
    manifest = quiet(runs, "masters: nan, skipped")
    assert (manifest["step"], manifest["steps_skipped"], manifest["weight_checks_passed"]) == (5, 1, 3)


def test_a_step_that_is_computed_again_adds_no_gradient_to_the_models_own(runs: Results) -> None:
    assert quiet(runs, "masters: retried")["steps_retried"] == 1
    ends = [[r["end"] for r in runs[name]] for name in ("masters: retried", "masters: clean")]
    assert ends[0] == ends[1]


def test_an_optimizers_tensors_without_the_models_values_are_no_masters(runs: Results) -> None:
    for r in runs["masters: others"]:
        assert "trained parameters (up.weight, up.bias, head.weight) are in no optimizer" in r["error"]


def test_a_ranks_own_parameter_in_the_optimizer_is_not_compared(runs: Results) -> None:
    assert quiet(runs, "extra")["state_tensors_compared"] == 12


# -- after a load --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("damaged moment", "optimizer state exp_avg_sq of up.bias"), ("damaged buffer", "positions")],
)
def test_a_file_whose_moments_or_buffers_were_damaged_is_refused_on_every_rank(
    runs: Results, name: str, tensor: str
) -> None:
    for r in runs[f"loaded: {name}"]:
        assert f"The checkpoint of step 4 is damaged: {tensor} (1 tensors)" in r["error"]


@pytest.mark.parametrize("name", ["loaded", "loaded: older manifest", "loaded: optimizer later"])
def test_a_sound_file_an_older_manifest_and_an_optimizer_that_is_loaded_later_go_on(
    runs: Results, name: str
) -> None:
    assert quiet(runs, name)["step"] == 5


# -- running statistics --------------------------------------------------------------------------------


def test_a_gpu_that_updates_running_statistics_wrong_is_named_by_the_audit(runs: Results) -> None:
    alarm = the_alarm(runs["statistics: persistent"])
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 4, (1,))


def test_statistics_that_were_wrong_once_are_transient(runs: Results) -> None:
    (finding,) = the_alarm(runs["statistics: once"]).findings
    assert (finding.rank, finding.verdict) == (1, Verdict.TRANSIENT)


def test_without_their_rows_nobody_sees_wrong_statistics(runs: Results) -> None:
    assert quiet(runs, "statistics: blind")["audits_passed"] == 3


@pytest.mark.parametrize(
    ("name", "audits"),
    [("checkpointed, accumulated", 3), ("forward only", 3), ("rank 0's histogram", 6)],
)
def test_statistics_that_are_written_twice_and_a_ranks_own_buffers_pass_audits(
    runs: Results, name: str, audits: int
) -> None:
    manifest = quiet(runs, f"statistics: {name}")
    assert (manifest["audits_passed"], manifest["audits_skipped"]) == (audits, 0)


def test_statistics_that_are_no_function_of_the_batch_are_left_out_by_name(runs: Results) -> None:
    manifest = quiet(runs, "statistics: not reproducible")
    why = "they are not reproducible on ranks [0, 1, 2]"
    assert manifest["notes"] == [f"running statistics are not compared: {why}"]
    assert manifest["audits_passed"] == 3


def test_layers_that_are_set_differently_by_rank_are_audited_with_each_ranks_own_settings(
    runs: Results,
) -> None:
    manifest = quiet(runs, "statistics: set differently")
    assert (manifest["notes"], manifest["audits_passed"], manifest["audits_skipped"]) == ([], 3, 0)
