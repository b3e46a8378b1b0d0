"""`sdc bisect` on what a real job with a faulty GPU left behind, launched again on healthy ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.capsule_job import ALARM, FROM
from training_agent.cli.app import main
from training_agent.contract import Alarm


def test_it_finds_the_first_poisoned_update_and_goes_on_after_an_interruption(
    alarm: Alarm, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert alarm.suspect_window == (1, ALARM)
    (spooled,) = (shared / "spool").glob("*.json")
    kept = {p.name for p in (shared / "checkpoints").iterdir()}
    assert kept == {"step-0", "step-4.doubtful-1", "step-11.doubtful-1"}

    def bisect(*options: str) -> tuple[int, dict[str, Any]]:
        launch = [sys.executable, "-m", "tests.distributed.bisect_launch", str(shared)]
        state = ["--state", str(tmp_path / "state.json"), "--json"]
        code = main(["bisect", str(spooled), *state, *options, "--", *launch])
        return code, json.loads(capsys.readouterr().out)

    code, said = bisect("--max-updates", str(FROM))  # enough for the first launch only
    assert (code, said["decided"], said["updates_computed"]) == (4, False, FROM)
    assert f"--max-updates is {FROM}" in said["why"]
    code, said = bisect()
    assert (code, said["first_poisoned"]) == (0, [FROM, FROM]), said["why"]
    # the doubtful checkpoint inside the window is proven by the replay, and the second launch began there
    assert said["back_to"]["path"] == str(shared / "checkpoints" / "step-4.doubtful-1")
    assert said["updates_computed"] == FROM + (FROM - 4)
    assert {p.name for p in (shared / "checkpoints").iterdir()} == kept
