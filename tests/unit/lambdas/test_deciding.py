"""Delivering what was decided to the execution that waits now."""

from __future__ import annotations

import pytest

from tests.events import builder

from .drive import Driver


def test_an_answer_at_the_reminders_instant_reaches_the_wait_that_has_just_begun(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first wait is over and the second has a token of its own: the row is read once more."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    approvals, newest = driver.world.approvals, driver.world.approvals.task_token
    before = iter(["the first wait's"])
    monkeypatch.setattr(approvals, "task_token", lambda i: next(before, None) or newest(i))
    assert driver.answer(driver.links()[0], "keep")["statusCode"] == 200
    assert len(driver.world.callback.answers) == 1
