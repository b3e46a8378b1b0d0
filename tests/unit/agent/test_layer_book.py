"""The figures of layer audits, and how a checkpoint carries them on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from training_agent._layer_book import LayerBook


def filled() -> LayerBook:
    book = LayerBook(blocks=3, turn=2)
    book.audit_passed(7, "layers.1", 100, world=4)
    book.audit_skipped(8, "the block was called 2 times")
    return book


def test_sums_are_over_all_ranks() -> None:
    plain = filled().plain()
    assert (plain["passed"], plain["skipped"], plain["gpu_blocks"], plain["nbytes"]) == (1, 1, 4, 400)
    assert (plain["covered"], plain["blocks"], plain["last_pass"]) == (["layers.1"], 3, 7)


def test_a_start_goes_on_from_its_checkpoint_and_counts_its_own_skips_anew() -> None:
    book = LayerBook(blocks=3)
    book.resume(json.loads(json.dumps({"layer_audits": filled().plain()})))
    assert book.plain() == filled().plain()
    assert (book.skipped, book.skipped_now) == (1, 0)


@pytest.mark.parametrize("damage", [{}, {"layer_audits": {"turn": 3}}, {"layer_audits": [1]}])
def test_figures_of_another_version_are_none(damage: dict[str, Any]) -> None:
    book = LayerBook(blocks=3)
    book.resume({"layer_audits": filled().plain()})  # a newer checkpoint, which was damaged
    book.resume(damage)
    assert book.plain() == LayerBook(blocks=3).plain()


def test_the_reporter_is_told_of_steps_with_and_without_one() -> None:
    assert filled().of(7) == {"layer_audited": True, "layer_audits_skipped": 1}
    assert filled().of(8)["layer_audited"] is False
    assert LayerBook().of(8)["layer_audited"] is None  # they are off
