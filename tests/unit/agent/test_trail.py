"""What an alarm leaves for `sdc bisect`, and how a replay keeps to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training_agent import Schedule
from training_agent._bisecting import Plan, layer_audits, plan
from training_agent._rhythm import Rhythm
from training_agent._trail import Trail, raw, short, short_of, text
from training_agent.checkpoint import CheckpointStore
from training_agent.digest import digest
from training_agent.pace import Pace


def test_the_digest_of_a_manifest_is_that_of_the_weights_that_it_was_made_from() -> None:
    weights = {"a": torch.arange(5.0), "b": torch.randn(3)}
    table = digest(list(weights.values()))
    manifest = dict(zip(("b", "buffer", "a"), [table[1].tolist(), [1, 2, 3], table[0].tolist()], strict=True))
    assert short_of(manifest, ["a", "b"]) == short(raw(table)) != short_of(manifest, ["b", "a"])
    assert short_of(manifest, ["a", "c"]) is None


def test_a_step_that_was_taken_back_is_forgotten_and_the_alarms_own_weights_are_the_last_point() -> None:
    trail = Trail()
    for step in (2, 4, 6, 4):
        trail.passed(step, "")
    trail.audits.append(4)
    trail.layers += [3, 5]
    written = json.loads(text(6, 3, ["w"], (5, "now"), trail))
    assert [s for s, _ in written["points"]] == [2, 4, 5]
    assert (written["world"], written["audits"], written["layers"]) == (3, [4], [3, 5])


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    (tmp_path / "step-20").mkdir()
    made = Plan(str(tmp_path / "step-20"), 20, 3, ((22, "x"),), str(tmp_path / "record"), (23, 27), (24,))
    made.save(tmp_path / "plan.json")
    monkeypatch.setenv("SDC_BISECT", str(tmp_path / "plan.json"))
    return made


def test_a_replay_audits_the_steps_that_the_job_audited_although_a_start_is_watchful(replayed: Plan) -> None:
    comm: Any = None
    rhythm = Rhythm(comm, Pace(Schedule(max_poisoned_steps=50, ckpt_every=None), 20))
    assert [s for s in range(21, 35) if rhythm.due(s)] == [23, 27]
    pace = Pace(Schedule(layer_budget=0.5, ckpt_every=None).of_layers, 20)
    layers = Rhythm(comm, pace, "layer_audit_rate", _replayed=layer_audits())
    assert [s for s in range(21, 35) if layers.due(s)] == [24]
    fixed = Rhythm(comm, Pace(Schedule(audit_every=10, ckpt_every=None), 20))
    assert [s for s in range(21, 35) if fixed.due(s)] == [30]


def test_a_replay_begins_where_it_is_told_and_keeps_no_checkpoint(replayed: Plan, tmp_path: Path) -> None:
    assert plan() == replayed
    store = CheckpointStore(tmp_path, 3)
    found = store.resume()
    assert found is not None and found.path == tmp_path / "step-20"
    assert not store.save(24, {"model": {}}, {}).complete
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json", "step-20"]
