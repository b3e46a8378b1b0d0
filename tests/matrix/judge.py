"""Decides whether a run did what its row demands, from `scenarios.json` and the raw results of all ranks."""

from __future__ import annotations

import json
from typing import Any

from tests.matrix import oracle
from tests.matrix.rows import Case

Result = dict[str, Any]  # what one rank left behind, see `job.Result`


def problems(case: Case, table: dict[str, Any], ranks: list[Result]) -> list[str]:
    """What is not as the row demands; empty: the expectation is met."""
    layout = table["layouts"][case.config.layout]
    schedule = table["schedules"][case.row["schedule"]]
    expect = case.row["expect"]
    wrong = [f"rank {r}: {found['error']}" for r, found in enumerate(ranks) if found["error"]]
    if case.row["faults"] and not any(found["strikes"] for found in ranks):
        return [*wrong, "the fault never struck"]
    alarms = [json.loads(found["alarm"]) if found["alarm"] else None for found in ranks]
    if any(a != alarms[0] for a in alarms):
        return [*wrong, f"the ranks' alarms differ: {[a and a['findings'] for a in alarms]}"]
    applied = {found["applied"] for found in ranks}
    if applied != {expect["applied"]}:
        wrong.append(f"applied: {sorted(applied)} instead of {expect['applied']}")
    saved = {tuple(s for s in found["saved"] if s > case.row["start"]) for found in ranks}
    if saved != {tuple(expect["saved"])}:
        wrong.append(f"saved: {sorted(saved)} instead of {expect['saved']}")
    for step, passes in expect.get("passes", {}).items():
        tagged = {json.dumps(found["passes"].get(step)) for found in ranks}
        if tagged != {json.dumps(passes)}:
            wrong.append(f"the checkpoint of {step} carries {sorted(tagged)} instead of {passes}")
    if expect["check"] is None:
        if alarms[0] is not None:
            wrong.append(f"alarm: {alarms[0]['findings']}")
        return wrong + _not_silent_for_nothing(expect, ranks)
    if alarms[0] is None:
        return [*wrong, "no alarm"]
    wrong += _unlike(alarms[0], expect, layout, _shift(case, layout, schedule, expect))
    if expect["applied"] < expect["step"]:
        wrong += _changed(ranks)
    return wrong + (_other_replicas(ranks, alarms[0]) if expect["check"] == "weights" else [])


def verdict(case: Case, table: dict[str, Any], ranks: list[Result]) -> list[str]:
    """`problems`; of a twin whose check is blinded, why it was not missed: `blind_problems`."""
    return blind_problems(case, ranks) if case.blinded else problems(case, table, ranks)


def blind_problems(case: Case, ranks: list[Result]) -> list[str]:
    """Why this is no proof that the check alone sees the fault; empty: the fault struck and was missed.

    A twin that crashed missed nothing, nor did one whose ranks end differently.
    """
    expect, off = case.row["expect"], ", ".join(case.row["off"])
    wrong = [f"rank {r}: {found['error']}" for r, found in enumerate(ranks) if found["error"]]
    if not any(found["strikes"] for found in ranks) and case.row["faults"]:
        wrong.append("the fault never struck")
    alarms = [json.loads(found["alarm"]) if found["alarm"] else None for found in ranks]
    if any(a != alarms[0] for a in alarms):
        return [*wrong, f"the ranks' alarms differ: {[a and a['findings'] for a in alarms]}"]
    if alarms[0] is None:
        ended = {found["applied"] for found in ranks}
        return (
            wrong if ended == {case.row["steps"]} else [*wrong, f"no alarm, and it ended at {sorted(ended)}"]
        )
    if (alarms[0]["check"], alarms[0]["step"]) == (expect["check"], expect["step"]):
        wrong.append(f"{expect['check']} alarms at step {expect['step']} although {off} is switched off")
    return wrong


def _shift(case: Case, layout: dict[str, Any], schedule: dict[str, Any], expect: dict[str, Any]) -> int:
    before = len(oracle.audit_steps(schedule, case.start + 1, expect["step"] - 1))
    return oracle.offset(layout, before, case.config.partner)


def shift_of(case: Case, table: dict[str, Any]) -> int:
    """The shift of the audit that the row is about; of the first one when it expects none."""
    layout = table["layouts"][case.config.layout]
    expect = case.row["expect"]
    if expect.get("step") is None:
        return oracle.offset(layout, 0, case.config.partner)
    return _shift(case, layout, table["schedules"][case.row["schedule"]], expect)


def _not_silent_for_nothing(expect: dict[str, Any], ranks: list[Result]) -> list[str]:
    wrong = []
    manifests = [found["manifest"] for found in ranks]
    if "audits" in expect:
        made = {m["audits_passed"] for m in manifests}
        if made != {expect["audits"]}:
            wrong.append(f"audits passed: {sorted(made)} instead of {expect['audits']}")
        if expect["audits"] and not all(m["tensors_compared"] and m["bytes_compared"] for m in manifests):
            wrong.append("an audit passed that compared nothing")
    if any(m["audits_skipped"] for m in manifests):
        wrong.append("an audit was skipped")
    if "loss_audited" in expect and any(m["loss_audited"] != expect["loss_audited"] for m in manifests):
        wrong.append("the manifest is wrong about what was audited")
    return wrong


def _unlike(alarm: dict[str, Any], expect: dict[str, Any], layout: dict[str, Any], shift: int) -> list[str]:
    findings = alarm["findings"]
    # findings without a name may accompany named ones only where the row says so
    seen: dict[str, Any] = {
        "check": alarm["check"],
        "step": alarm["step"],
        "window": alarm["suspect_window"],
        "named": sorted({f["rank"] for f in findings if f["rank"] is not None}),
        "kinds": sorted(f["kind"] for f in findings),
        "verdicts": sorted(str(f["verdict"]) for f in findings),
        "second": sorted(str(f["second_confirmation"]) for f in findings),
        "nonfinite": sorted(alarm["nonfinite_ranks"]),
        "reduced": alarm["reduced_nonfinite"],
        "reproduced": any(f["reproduced"] for f in findings),
        "loss_audited": alarm["loss_audited"],
    }
    wanted = {key: value for key, value in expect.items() if key in seen}
    for key in ("named", "nonfinite"):
        if key in wanted:
            wanted[key] = sorted(oracle.rank_of(role, layout, shift) for role in wanted[key])
    for key in ("kinds", "verdicts", "second"):
        if key in wanted:
            wanted[key] = sorted(wanted[key])
    wrong = [f"{key}: {seen[key]} instead of {value}" for key, value in wanted.items() if seen[key] != value]
    if "pairs" in expect:
        pairs = {(p["replayer"], p["target"]) for p in alarm["pairs"]}
        right = oracle.pairs(expect["pairs"], layout, shift)
        if pairs != right:
            wrong.append(f"pairs: {sorted(pairs)} instead of {sorted(right)}")
    return wrong


def _changed(ranks: list[Result]) -> list[str]:
    """The flagged step must leave no trace: weights, moments and RNG of every rank are those before it."""
    return [
        f"rank {r}: the flagged step left a trace: {found['before']} -> {found['after']}"
        for r, found in enumerate(ranks)
        if found["before"] != found["after"]
    ]


def _other_replicas(ranks: list[Result], alarm: dict[str, Any]) -> list[str]:
    """The named ranks must be those whose weights really differ from most."""
    weights = [found["after"][0] for found in ranks]
    common = max(set(weights), key=weights.count)
    differ = [r for r, w in enumerate(weights) if w != common]
    named = sorted({f["rank"] for f in alarm["findings"] if f["rank"] is not None})
    return [] if differ == named else [f"weights differ on {differ}, named {named}"]
