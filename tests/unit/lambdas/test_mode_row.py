"""The mode row that agents read stands before any job's first alarm, and follows the control table."""

from __future__ import annotations

import pytest

from lambdas.domain.errors import HaltedError
from lambdas.domain.policy import Control
from training_agent.contract import Mode

from .drive import Driver
from .looks import look


def test_it_stands_before_the_clusters_first_job_has_registered(driver: Driver) -> None:
    assert driver.world.quarantine.mode is None
    look(driver)
    assert driver.world.quarantine.mode is Mode.REPLACE and not driver.world.registrations.rows


@pytest.mark.parametrize("kill_switch", [False, True])
def test_a_lowered_mode_reaches_agents_at_the_next_look(driver: Driver, kill_switch: bool) -> None:
    """Also under the kill switch, which stops the pipeline and frees nobody by itself."""
    look(driver)
    driver.world.controls.control = Control(None, kill_switch=kill_switch)
    look(driver)
    assert driver.world.quarantine.mode is Mode.REPLACE
    driver.world.controls.control = Control(Mode.OBSERVE, kill_switch=kill_switch)
    look(driver)
    assert driver.world.quarantine.mode is Mode.OBSERVE
    driver.world.controls.control = Control(None, kill_switch=False)
    look(driver)
    assert driver.world.quarantine.mode is Mode.REPLACE


def test_a_mode_that_cannot_be_read_leaves_the_row_and_is_counted(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(driver)
    driver.world.quarantine.mode = Mode.CONTAIN

    def unreadable() -> Control:
        raise HaltedError("the control table's mode cannot be read: nothing is done")

    monkeypatch.setattr(driver.world.controls, "read", unreadable)
    assert look(driver)["reconcile_failed_looks"] == 1
    assert driver.world.quarantine.mode is Mode.CONTAIN
