"""Sensitivity and false alarms: small forms in `make test`, the whole in `make soak`."""

from __future__ import annotations

import pytest

from tests.matrix import (
    false_alarms,
    layers,
    quiet_job,
    reduction,
    reduction_job,
    sensitivity,
    sensitivity_job,
)
from tests.matrix.markdown import section
from training_agent.faults import Flip


def test_flips_are_counted_as_seen_harmless_or_missed() -> None:
    count = sensitivity.computed_place("weight gradient", "fp32", sensitivity.single, bits=2, seeds=2)
    assert count.flips == 4 and count.seen["deterministic audit"] == 4 - count.harmless
    assert not count.seen["forward-only audit"] and not count.missed_bits


def test_a_flip_of_the_reduced_gradient_is_missed_and_said_to_be() -> None:
    count = sensitivity.stored_place("reduced gradient", lambda _b, _s: (20, Flip((20,))), seeds=1)
    assert count.missed_bits[20] + count.harmless == count.flips == 32
    assert count.missed_bits[20] > 0


def test_a_flip_of_a_weight_is_always_seen() -> None:
    count = sensitivity.stored_place("weights", sensitivity.single, seeds=1)
    assert (count.seen["weight check"], count.harmless) == (32, 0)


def test_tables_in_the_docs_have_the_shape_of_their_commands() -> None:
    written = section("sensitivity").splitlines()
    assert written[0].count("|") == len(sensitivity.CHECKS) + 6
    places = sum(1 for _ in range(3)) * 9
    assert len(written) == 2 + places
    assert section("false alarms").splitlines()[-1].startswith("| all | ")
    kinds = [line.split(" | ")[0].removeprefix("| ") for line in section("reduction").splitlines()[2:]]
    assert kinds == [*reduction_job.KINDS, "all"]
    drawn = [line.split(" | ")[0].removeprefix("| ") for line in section("layers").splitlines()[2:]]
    places = [f"of these: {place}" for place in layers.PLACES]
    assert drawn == [layers.UNIFORM, *places, layers.BY_SHARE, layers.OUTSIDE, "none: healthy steps"]
    assert {line.split(" | ")[-1] for line in section("layers").splitlines()[2:]} == {"0 |"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_sample_of_the_flips_has_the_same_verdict_under_real_guards() -> None:
    assert sensitivity_job.differing(160, sensitivity.SEEDS, timeout=3000) == []


def test_the_sample_holds_each_row_of_the_table() -> None:
    flips = sensitivity_job.picked(160, sensitivity.SEEDS)
    assert list(map(str, flips)) == list(map(str, sensitivity_job.picked(160, sensitivity.SEEDS)))
    assert {flip.row.name for flip in flips} == {row.name for row in sensitivity.table_rows()}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_flip_of_a_weight_and_of_a_computation_is_seen_by_its_check() -> None:
    for name, count in sensitivity.rows(sensitivity.SEEDS):
        if "reduced gradient" not in name:
            assert not count.missed_bits, name


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_false_alarm_in_ten_thousand_audited_steps() -> None:
    found = false_alarms.count(false_alarms.STEPS, timeout=7200)
    assert not [r["alarm"] for ranks in found.values() for r in ranks if r["alarm"]]
    audited = sum(ranks[0]["audits_passed"] for ranks in found.values())
    assert audited >= 10_000
    assert all(r["tensors_compared"] and r["bytes_compared"] for ranks in found.values() for r in ranks)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_false_alarm_of_the_reductions_checksum_and_every_error_of_the_published_size_is_seen() -> None:
    for rank in reduction.count(1500, 20, *reduction_job.KINDS):
        assert [one["alarms"] for one in rank.values()] == [0] * len(reduction_job.KINDS)
        for kind in ("fp32 weights", "bucket views", "accumulation under no_sync"):
            assert rank[kind]["seen"]["1.0e-06"] == 20


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a3_two_hundred_audits_of_a_backward_that_is_not_reproducible_accuse_nobody() -> None:
    (ranks,) = false_alarms.count(200, 1000, quiet_job.NOISY).values()
    assert [r["alarm"] for r in ranks] == [""] * 3
    assert [r["audits_passed"] for r in ranks] == [200] * 3
    for rank in ranks:
        assert "the backward is not reproducible on ranks [0, 1, 2]" in rank["notes"][0]
        assert rank["tensors_compared"] == 2  # output and loss


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_layer_audits_catch_a_fault_in_its_blocks_turn_never_out_of_it_and_name_nobody_else() -> None:
    for seen in layers.count(700, *layers.DRAWS).values():
        assert layers.surprises(seen) == []
