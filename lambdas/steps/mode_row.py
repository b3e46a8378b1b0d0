"""The mode row of the quarantine table, which agents read: in observe mode nobody holds.

Used by `register` at a job's start and by `reconcile` every five minutes, so that it stands before any job's
first alarm and follows a lowered mode. The kill switch is no mode: it stops the pipeline and frees nobody.
"""

from __future__ import annotations

from typing import Protocol

from training_agent.contract import Mode

from ..domain.policy import effective_mode
from ..ports import Controls, Quarantine


class Deployed(Protocol):
    @property
    def mode(self) -> Mode: ...


class Teller(Protocol):
    @property
    def settings(self) -> Deployed: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def quarantine(self) -> Quarantine: ...


def tell_mode(needs: Teller) -> None:
    """Write the lower of the deployed and the table's mode.

    Raises:
        HaltedError: the table's mode cannot be read; the row stays as it is, and agents hold by it.
    """
    needs.quarantine.put_mode(effective_mode(needs.settings.mode, needs.controls.read()))
