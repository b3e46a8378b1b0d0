"""The proof: what happened, read back from the places where it happened, and whether it was right.

Comes in: the bus, the incident rows, the fake HyperPod's request log, the injector's record and the weights'
hashes. Goes out: `summary.json`, and why the demo failed, if it did. No value comes from the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training_agent.contract import Alarm, ExitCode

# how an incident of each row must end here, when the deep check passes
REPLACING_ROWS = frozenset({"C1", "C2", "V1", "W1"})
LEFT_TO_A_PERSON = (
    "the pipeline ended without a replacement or a release: the job holds until a person decides about the "
    "node, so there is nothing to prove"
)
RELEASED = "RELEASED"
REPLACED = "REPLACED"
KEPT = "REJECTED_KEPT"  # the approver's no


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was read back."""

    fault: str
    injected: Sequence[Mapping[str, Any]]  # the injector's records: rank, gpu_uuid, struck_step
    alarms: Sequence[Alarm]  # from the bus, each delivery key once, in order
    incidents: Sequence[Mapping[str, Any]]  # state rows, in the order they were opened
    replacements: Sequence[tuple[str, str | None]]  # old and new instance id, from HyperPod's request log
    mails: int
    resumed_from_step: int | None  # of the last attempt, as registered
    final_step: int | None
    reference: Mapping[int, Mapping[str, Any]]  # rank -> hashes
    resumed: Mapping[int, Mapping[str, Any]]
    poisoned: Mapping[int, Mapping[str, Any]]
    job_failure: str | None
    deep_check: str
    exit_codes: Sequence[int] = ()  # of the pods' processes in the attempts that the alarms ended


def read_hashes(folder: Path, stem: str) -> dict[int, dict[str, Any]]:
    """Read the hashes that each rank wrote beside `<stem>.pt`."""
    records = [json.loads(p.read_text()) for p in folder.glob(f"{stem}-rank-*.json")]
    return {r["rank"]: r for r in records}


def summarize(seen: Observed) -> dict[str, Any]:
    """Return the content of `summary.json`; alarm fields are null without an alarm."""
    alarm = seen.alarms[0] if seen.alarms else None
    several = seen.fault == "two-gpus"

    def scalar_or_list(values: Sequence[Any]) -> Any:
        return list(values) if several else (values[0] if values else None)

    incidents = sorted(seen.incidents, key=lambda i: sorted(i.get("ranks") or ()))
    suspects = [i["instance_id"] for i in incidents]
    # in the order of the ranks that were hit, like the lists beside them; strangers last
    replacements = sorted(
        seen.replacements, key=lambda r: suspects.index(r[0]) if r[0] in suspects else len(suspects)
    )
    rows = list(dict.fromkeys(_first_row(i) for i in incidents if i.get("decision_row")))
    states = list(dict.fromkeys(str(i["state"]) for i in incidents))
    verdicts = [f.verdict.value for f in alarm.findings if f.verdict] if alarm else []
    return {
        "fault": seen.fault,
        "injected_rank": scalar_or_list(sorted(map(_rank, seen.injected))),
        "struck_step": scalar_or_list([r["struck_step"] for r in sorted(seen.injected, key=_rank)]),
        "named_ranks": sorted({r for a in seen.alarms for r in a.named_ranks}),
        "check": alarm.check.value if alarm else None,
        "verdict": verdicts[0] if verdicts else None,
        "alarm_step": alarm.step if alarm else None,
        "suspect_window": list(alarm.suspect_window) if alarm else None,
        "suspect_instance": scalar_or_list(suspects),
        "decision_row": rows[0] if len(rows) == 1 else (rows or None),
        "decided_rows": [list(i.get("decided_rows", [])) for i in incidents],
        "terminal_state": states[0] if len(states) == 1 else (states or None),
        "replaced_instance": scalar_or_list([old for old, _ in replacements]),
        "new_instance": scalar_or_list([new for _, new in replacements]),
        "exit_codes_at_alarm": sorted(set(seen.exit_codes)),
        "resumed_from_step": seen.resumed_from_step,
        "final_step": seen.final_step,
        "weights_identical_to_fault_free_run": bool(seen.resumed) and seen.resumed == seen.reference,
        "poisoned_run_differs": None if _harmless_outside_replays(seen) else seen.poisoned != seen.reference,
    }


def failures(seen: Observed, summary: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, one sentence each; empty when the demo proved what it claims."""
    if seen.job_failure == LEFT_TO_A_PERSON and any(i["state"] == KEPT for i in seen.incidents):
        return [seen.job_failure]
    wrong = [seen.job_failure] if seen.job_failure else []
    if not summary["weights_identical_to_fault_free_run"]:
        wrong.append("the final weights or moments differ from those of the run that was never hit")
    if seen.fault == "none":
        if seen.alarms or seen.incidents or seen.mails or seen.replacements:
            wrong.append("without a fault there was an alarm, an incident, a mail or a replacement")
        return wrong
    injected = sorted(r["rank"] for r in seen.injected)
    if not injected:
        wrong.append("the fault never struck")
    if summary["named_ranks"] != injected:
        wrong.append(f"ranks {summary['named_ranks']} were named, but ranks {injected} were hit")
    if summary["poisoned_run_differs"] is False:
        wrong.append("the fault changed nothing in the run without the agent: it proves nothing")
    if ExitCode.ALARM not in seen.exit_codes:
        wrong.append(f"the processes ended with {sorted(set(seen.exit_codes))} at the alarm, not with 3")
    chosen = seen.alarms[-1].resume_from if seen.alarms else None
    if chosen is not None and summary["resumed_from_step"] != chosen.step:
        wrong.append(
            f"the job came back from step {summary['resumed_from_step']}, the agent chose {chosen.step}"
        )
    if len(seen.incidents) != len(injected):
        wrong.append(f"{len(seen.incidents)} incidents were opened for {len(injected)} bad GPUs")
    wrong += _wrong_endings(seen)
    return wrong


def _wrong_endings(seen: Observed) -> list[str]:
    """Each incident must end as its last decided row says, and only the suspects' instances be replaced."""
    wrong = []
    to_replace = set()
    for incident in seen.incidents:
        row, state = _last_row(incident), incident["state"]
        replaces = row in REPLACING_ROWS or (row == "V2" and seen.deep_check == "fail")
        if replaces:
            to_replace.add(incident["instance_id"])
        expected = REPLACED if replaces else RELEASED
        if seen.deep_check == "stuck" and not replaces:
            expected = "HEALTHCHECK_STUCK"
        if state != expected:
            wrong.append(
                f"the incident on {incident['instance_id']} (row {row}) ended {state}, not {expected}"
            )
    replaced = [old for old, _ in seen.replacements]
    if sorted(replaced) != sorted(to_replace):
        wrong.append(f"instances {sorted(replaced)} were replaced, but {sorted(to_replace)} should have been")
    return wrong


def _rank(record: Mapping[str, Any]) -> int:
    return int(record["rank"])


def _first_row(incident: Mapping[str, Any]) -> str:
    """The row that the findings hit; the incident's own `decision_row` is the newest one."""
    return str([*(incident.get("decided_rows") or ()), incident["decision_row"]][0])


def _last_row(incident: Mapping[str, Any]) -> str:
    decided = list(incident.get("decided_rows") or [])
    return str(decided[-1] if decided else incident.get("decision_row"))


def _harmless_outside_replays(seen: Observed) -> bool:
    """Faults that strike in replays only, and no fault at all, leave the run without the agent as it is."""
    return seen.fault in ("none", "replayer-x1000")
