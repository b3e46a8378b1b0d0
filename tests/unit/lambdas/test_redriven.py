"""An execution that is redriven, or started once more by hand, after its incident has ended: it does nothing.

Step Functions redrives a failed execution from its failed state, with the press of a button; by then the
reconciler has ended the incident, and people have put the node back.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from lambdas.domain.errors import PermanentError
from lambdas.domain.incident import TERMINAL, State
from tests.events import builder

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
STATES = ["locate", "contain", "decide", "confirm", "replace", "verify", "resume"]


def touched(driver: Driver) -> list[Any]:
    """All that a step could change and that is no entry of the trail."""
    world = driver.world
    return deepcopy(
        [
            world.kubernetes.nodes, world.kubernetes.pods, world.kubernetes.evicted, world.cluster.calls,
            world.quarantine.rows, world.incidents.past, world.incidents.rows, world.incidents.gates,
            world.controls.locks, world.controls.breaker_reason, world.mail.sent, world.approvals.rows,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("end", sorted(TERMINAL, key=lambda s: s.value), ids=lambda s: s.value)
def test_no_step_does_anything_for_an_incident_that_has_ended(driver: Driver, end: State) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.answer(driver.until_asked(incident))
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=end)
    driver.world.incidents.gates.clear()
    driver.world.incidents.past.clear()
    driver.world.quarantine.rows.clear()
    driver.world.kubernetes.change(NODE, unschedulable=False, annotations={})  # a person put it back
    driver.add_pod("llama-tiny-1", "pod-new", SUSPECT)
    before = touched(driver)
    for state in STATES:
        assert driver.step(state, incident)["outcome"] in ("joined", "human", "closed"), state
        assert touched(driver) == before, state
    with pytest.raises(PermanentError):
        driver.step("request_approval", incident, task_token="token-2")
    assert driver.step("request_approval", incident, notice="human", seen={})["outcome"] == "told"
    assert touched(driver) == before
