"""One rank of a job that is hit in its first attempt; `test_hold_and_budget.py` runs it as a process.

In: `how` (hold, or refuse by exit code), `accused` (job, or the node rank), the pod's environment, the
quarantine table as a JSON file. Out: the job's record of suspects and exit code 3; later the hold, and, when
it lets go, a file that says where the rank finished and how long it had waited.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from training_agent import exit_codes
from training_agent.contract import ExitCode, QuarantineEntry
from training_agent.hold import hold_while_quarantined
from training_agent.quarantine import add_to_record
from training_agent.settings import AgentSettings, Worker

KEY = "alarm-of-attempt-1"
TABLE_FILE = "quarantine-table.json"
QUICK = timedelta(seconds=0.05)


class FileTable:
    """GetItem on a file, which the test's "pipeline" replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_item(self, *, Key: dict[str, Any], **_: Any) -> dict[str, Any]:  # noqa: N803 - boto3's name
        rows = json.loads(self._path.read_text())
        item = rows.get(Key["subject"]["S"])
        return {"Item": item} if item else {}


def accuse(settings: AgentSettings, worker: Worker, accused: str) -> None:
    """Write what an alarm leaves for the restarts: rank 0 for the whole job, a rank for its own node."""
    whole_job = accused == "job"
    if worker.rank != (0 if whole_job else int(accused)):
        return
    instance = None if whole_job else settings.place(worker.rank, worker.local_rank).instance_id
    entry = QuarantineEntry(KEY, instance, None, (1, 10), None, "2026-01-01T00:00:00Z")
    assert settings.shared_dir is not None
    add_to_record(settings.shared_dir, (entry,))


def main(how: str, accused: str) -> int:
    """Return the exit code of this rank."""
    settings, worker = AgentSettings.from_env(), Worker.from_env()
    assert settings.shared_dir is not None
    if settings.job.attempt == 1:
        accuse(settings, worker, accused)
        return int(ExitCode.ALARM)
    if how == "refuse":
        settings = replace(settings, hold_timeout=timedelta(0))
    table = FileTable(settings.shared_dir / TABLE_FILE)
    result = hold_while_quarantined(settings, poll=QUICK, heartbeat=QUICK, client=lambda _: table)
    told = {"node": settings.node, "waited_s": result.waited.total_seconds(), "torch": "torch" in sys.modules}
    (settings.shared_dir / f"finished-{worker.rank}.json").write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    exit_codes.leave(main(sys.argv[1], sys.argv[2]))
