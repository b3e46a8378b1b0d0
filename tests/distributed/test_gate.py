"""The gate in a job: what deferred mode skips, and what a GradScaler answers for several optimizers."""

from __future__ import annotations

import pytest

from tests.distributed.conftest import Results, runs_of
from tests.distributed.gate_worker import OVERFLOWS, SKIPPED, STEPS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    return runs_of("tests.distributed.gate_worker", 2, tmp_path_factory.mktemp("gate"), timeout=240)[0]


@pytest.mark.parametrize("name", SKIPPED)
def test_a_skipped_step_leaves_the_same_bits_in_both_modes_and_training_goes_on(
    runs: dict[str, Results], name: str
) -> None:
    at_once, late = runs[f"{name}: immediate"], runs[f"{name}: deferred"]
    assert [(r["alarm"], r["steps"]) for r in at_once + late] == [(0, STEPS - 1)] * 4
    assert len({str(r["state"]) for r in at_once + late}) == 1


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_a_scaler_skips_for_one_of_several_optimizers_is_no_alarm_and_changes_no_bit(
    runs: dict[str, Results], name: str, mode: str
) -> None:
    guarded = runs[f"{name}: {mode}"]
    assert [r["alarm"] for r in guarded] == [0, 0]
    assert [r["state"] for r in guarded] == [r["state"] for r in runs[f"{name}: None"]]
    assert [r["steps"] for r in guarded] == [STEPS - ("head" in name)] * 2  # the last optimizer's updates


def test_a_first_step_that_the_scaler_skips_makes_no_momenta_out_of_nothing(runs: dict[str, Results]) -> None:
    first, second = runs["first overflow, with momenta"]
    assert [(r["alarm"], r["steps"]) for r in (first, second)] == [(0, STEPS - 1)] * 2
    assert first["state"] == second["state"]


@pytest.mark.parametrize(("mode", "lost"), [("immediate", 0), ("deferred", 2)])
def test_a_scale_that_grew_beside_gradients_that_never_overflow_is_no_alarm(
    runs: dict[str, Results], mode: str, lost: int
) -> None:
    """It doubles every 2,000 steps: after some 96,000 of them the norm of a float32 gradient overflowed."""
    guarded = runs[f"a grown scale: {mode}"]
    assert [(r["alarm"], r["steps"]) for r in guarded] == [(0, STEPS - lost)] * 2
    assert all("GradScaler's scale has grown beyond 4e+09" in r["notes"][0] for r in guarded)
    if not lost:
        assert [r["state"] for r in guarded] == [r["state"] for r in runs["a grown scale: None"]]


def test_a_nan_under_a_grown_scale_is_the_scalers(runs: dict[str, Results]) -> None:
    assert [(r["alarm"], r["steps"]) for r in runs["a grown scale, and a NaN"]] == [(0, STEPS - 1)] * 2


def test_a_scaler_that_has_no_part_in_a_step_excuses_nothing(runs: dict[str, Results]) -> None:
    assert [r["alarm"] for r in runs["an idle scaler"]] == [4, 4]


def test_deferred_mode_waits_for_none_of_several_optimizers(runs: dict[str, Results]) -> None:
    for guarded, plain in zip(runs["two optimizers"], runs["two optimizers: None"], strict=True):
        assert guarded["last step"] == {"host syncs": plain["last step"]["host syncs"], "late": 1}


def test_another_default_device_changes_nothing(runs: dict[str, Results]) -> None:
    """A job that sets "cuda" has the agent's host tensors there, unless they say where they belong."""
    there, here = runs["default device"], runs["default device: None"]
    assert [r["alarm"] for r in there] == [0, 0]
    assert [r["state"] for r in there] == [r["state"] for r in here]
