"""`training_agent.train` on three real ranks: resume, policies, checkpoints, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.distributed.conftest import launch
from tests.distributed.train_job import BAD_BATCH, STEPS

Ranks = list[dict[str, Any]]
ALL = list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ranks]:
    """Every scenario, one entry per rank."""
    out = tmp_path_factory.mktemp("train")
    ended = launch("tests.distributed.train_job", 3, str(out))
    assert [code for code, _ in ended] == [0] * 3, ended[0][1][-4000:]
    ranks = [json.loads((out / f"{rank}.json").read_text()) for rank in range(3)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def state(ranks: Ranks) -> list[Any]:
    return [(r["weights"], r["moments"], r["rate"]) for r in ranks]


def without(batch: int) -> list[int]:
    return [b for b in range(1, STEPS + 2) if b != batch]


def test_it_trains_to_the_last_step_and_saves_at_the_multiples(ran: dict[str, Ranks]) -> None:
    for rank in ran["whole"]:
        assert (rank["ended"], rank["returned"], rank["saved"]) == ("", STEPS, [4, 8, 12])
        assert rank["reported"] == rank["batches"] == ALL
        assert (rank["hooks"], rank["deterministic"]) == (0, False)


def test_a_resumed_run_ends_with_the_same_bits_and_the_same_learning_rate(ran: dict[str, Ranks]) -> None:
    assert state(ran["resumed"]) == state(ran["whole"])
    assert [r["reported"] for r in ran["resumed"]] == [[9, 10, 11, 12]] * 3


def test_a_retried_step_is_clipped_again_and_ends_with_the_same_bits(ran: dict[str, Ranks]) -> None:
    assert [r["ended"] for r in ran["retry"]] == [""] * 3
    assert state(ran["retry"]) == state(ran["whole"])


@pytest.mark.parametrize("name", ["skip", "skip, deferred"])
def test_a_dropped_step_takes_its_batch_with_it_and_no_update_is_missing(
    ran: dict[str, Ranks], name: str
) -> None:
    for rank in ran[name]:
        assert (rank["ended"], rank["returned"], rank["saved"]) == ("", STEPS, [4, 8, 12])
        assert rank["batches"] == list(range(1, STEPS + 2))
        assert len(rank["reported"]) == STEPS
    assert [s[2] for s in state(ran[name])] == [s[2] for s in state(ran["whole"])]  # learning rate


def test_a_run_resumed_after_a_dropped_step_goes_on_with_the_next_batch(ran: dict[str, Ranks]) -> None:
    assert state(ran["skip, resumed"]) == state(ran["skip"])
    assert [r["batches"] for r in ran["skip, resumed"]] == [without(BAD_BATCH)[8:]] * 3


def test_a11_an_alarm_ends_it_on_every_rank_saves_nothing_and_is_raised_again(ran: dict[str, Ranks]) -> None:
    for rank in ran["stop"]:
        assert rank["ended"].startswith("SdcAlarm: SDC alarm at step 8")
        assert (rank["reported"], rank["saved"]) == (ALL[:7], [4])
        assert rank["raises_again"]


def test_a_flagged_last_step_is_judged_before_it_returns(ran: dict[str, Ranks]) -> None:
    for rank in ran["stop at the last step, deferred"]:
        assert rank["ended"].startswith("SdcAlarm: SDC alarm at step 7")
        assert rank["saved"] == [4]


def test_naming_reaches_the_guard(ran: dict[str, Ranks]) -> None:
    for lazy, unknown in zip(ran["lazy naming"], ran["unknown naming"], strict=True):
        assert lazy["ended"].startswith(f"SdcAlarm: SDC alarm at step {BAD_BATCH}")
        assert "attach(naming='none'): use one of 'full', 'lazy'" in unknown["ended"]
        assert unknown["batches"] == []


def test_an_error_of_the_users_code_takes_the_guard_off_and_the_next_call_works(
    ran: dict[str, Ranks],
) -> None:
    for rank in ran["on_step fails"]:
        assert rank["ended"] == "OSError: the progress bar is broken"
        assert (rank["hooks"], rank["deterministic"], rank["raises_again"]) == (0, False, False)
    assert [r["returned"] for r in ran["again after a failure"]] == [STEPS] * 3


def test_a_checkpoint_that_cannot_be_written_ends_every_rank_with_the_reason(ran: dict[str, Ranks]) -> None:
    for rank in ran["full disk"]:
        assert rank["ended"].startswith("CheckpointError: The checkpoint of step 4 could not be written")
        assert "No space left" in rank["ended"]
        assert rank["hooks"] == 0


def test_a10_only_doubtful_checkpoints_stop_every_rank_and_ask_a_human(ran: dict[str, Ranks]) -> None:
    for rank in ran["only doubtful checkpoints"]:
        assert rank["ended"].startswith("CheckpointError: No checkpoint in")
        assert "Ask a human" in rank["ended"]
        assert rank["batches"] == []
