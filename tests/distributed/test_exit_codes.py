"""How a guarded process ends: the same way on every rank, with the documented code."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.distributed.conftest import launch
from training_agent.contract import ExitCode

JOB = "tests.distributed.small_job"


def run(
    mode: str, ranks: int = 3, one: int = 1, stopped: int | None = None, **env: str
) -> tuple[list[int], list[str]]:
    ended = launch(JOB, ranks, mode, str(one), stopped=stopped, **env)
    return [code for code, _ in ended], [out for _, out in ended]


def test_a7_an_alarm_that_nobody_catches_ends_every_rank_with_code_3(
    accused: tuple[Path, list[tuple[int, str]]],
) -> None:
    _, ended = accused
    assert [code for code, _ in ended] == [ExitCode.ALARM] * 3, ended[0][1]
    for _, out in ended:
        assert '{"sdc":"alarm"' in out
        assert "SDC alarm at step 12" in out
        assert "done" not in out


def test_two_ranks_detect_and_name_nobody() -> None:
    codes, outputs = run("alarm", ranks=2)
    assert codes == [ExitCode.ALARM] * 2, outputs[0]
    assert "nobody named; involved: rank 0" in outputs[0]


def test_a6_a_peer_that_dies_in_a_replay_ends_the_others_with_code_130_and_accuses_nobody() -> None:
    codes, outputs = run("dies in replay")
    assert codes == [ExitCode.PEER_LOST, -signal.SIGKILL, ExitCode.PEER_LOST], outputs[0]
    assert '"sdc":"alarm"' not in "".join(outputs)
    assert "a peer vanished" in outputs[0]
    assert all('"sdc":"peer_lost"' in outputs[rank] for rank in (0, 2))


@pytest.mark.parametrize(
    "mode",
    [
        "stops in replay",
        *(
            pytest.param(mode, marks=pytest.mark.soak)
            for mode in (
                "stops in arbitration",
                "stops in weight check",
                "dies in arbitration",
                "dies in weight check",
            )
        ),
    ],
)
def test_a6_a_peer_that_is_stopped_or_killed_in_a_check_is_said_to_be_lost_within_the_group_timeout(
    mode: str,
) -> None:
    codes, outputs = run(mode, stopped=1)
    assert [codes[0], codes[2]] == [ExitCode.PEER_LOST] * 2, outputs[0]
    for rank in (0, 2):
        assert '"sdc":"peer_lost"' in outputs[rank]
        assert "Nobody is suspected for that" in outputs[rank]
    assert '"sdc":"alarm"' not in "".join(outputs)


def test_deferred_mode_judges_the_last_step_although_the_loop_did_not_close_the_guard() -> None:
    codes, outputs = run("deferred, not closed")
    assert codes == [ExitCode.ALARM] * 3, outputs[0]
    for out in outputs:
        assert '{"sdc":"alarm"' in out
        assert '"nonfinite_ranks":[1]' in out
        assert '"reproduced":true' in out  # the data's NaN, not a GPU's


def test_deferred_mode_alarms_and_names_nobody_when_the_group_is_gone_before_the_last_step_was_judged() -> (
    None
):
    codes, outputs = run("deferred, group destroyed first")
    assert codes == [ExitCode.ALARM] * 3, outputs[0]
    for out in outputs:
        assert '{"sdc":"alarm"' in out
        assert "call guard.close() before destroy_process_group()" in out
        assert '"rank":null' in out


@pytest.mark.parametrize(
    "mode", ["error_if_nonfinite", pytest.param("deferred, error_if_nonfinite", marks=pytest.mark.soak)]
)
def test_a_loop_that_raises_on_a_nonfinite_norm_ends_as_the_alarm_that_explains_it(mode: str) -> None:
    codes, outputs = run(mode)
    assert codes == [ExitCode.ALARM] * 3, outputs[0]
    for out in outputs:
        assert "norm of order 2.0" in out  # torch's own words are not swallowed
        assert '"nonfinite_ranks":[1]' in out
        assert '"reproduced":true' in out


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["scaled, error_if_nonfinite", "deferred, scaled, error_if_nonfinite"])
def test_a_loop_that_raises_on_a_scaled_overflow_ends_with_its_own_error(mode: str) -> None:
    codes, outputs = run(mode)
    assert codes == [1] * 3, outputs[0]
    for out in outputs:
        assert "norm of order 2.0" in out and "could not be judged" not in out
        assert '"sdc":"alarm"' not in out


@pytest.mark.soak
def test_an_overflow_in_the_last_step_is_no_alarm_although_the_others_have_gone() -> None:
    codes, outputs = run("deferred, scaled, others gone")
    assert codes == [0] * 3, outputs[1]
    assert '"sdc":"alarm"' not in "".join(outputs) and "Traceback" not in "".join(outputs)


def test_a_replay_that_fails_on_one_rank_is_skipped_on_all_and_accuses_nobody() -> None:
    codes, outputs = run("fails in replay")
    assert codes == [0] * 3, outputs[0]
    for out in outputs:
        assert "done at 5 2" in out
        assert "replay audits are off, a micro-batch cannot be recomputed: rank 1: RuntimeError" in out


def test_a_ranks_own_error_inside_a_weight_check_is_not_called_a_vanished_peer() -> None:
    codes, outputs = run("no memory in weight check")
    assert codes[1] not in (0, ExitCode.PEER_LOST), outputs[1]
    assert "can't allocate memory" in outputs[1] and "peer vanished" not in outputs[1]


def test_a_rank_alone_is_refused() -> None:
    codes, outputs = run("alone", 1)
    assert codes == [ExitCode.CONFIGURATION]
    assert "start two ranks or more" in outputs[0]
