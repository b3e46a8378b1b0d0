"""Checkpoints after kills, in numeric order, tampered with, and in doubt."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from training_agent.checkpoint import CheckpointStore
from training_agent.errors import CheckpointError

from .builders import ROOT

SAVER = """
import sys, torch
from pathlib import Path
from training_agent.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), world_size=2)
state = {"weights": torch.arange(2_000_000, dtype=torch.float32)}
for step in range(int(sys.argv[2]), 1_000_000):
    print(step, flush=True)
    store.save(step, state, {"step": step})
"""


def a_store(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder, world_size=2)
    for step in steps:
        store.save(step, {"weights": torch.full((3,), float(step))}, {"last_audit_pass": step})
    return store


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10)
    info = store.resume()
    assert info is not None
    assert (info.step, info.complete, info.doubtful, info.world_size) == (10, True, False, 2)
    state, manifest = store.load(info)
    assert torch.equal(state["weights"], torch.full((3,), 10.0))
    assert manifest == {"last_audit_pass": 10}


def test_a9_killed_while_saving(tmp_path: Path) -> None:
    """kill -9 at random moments of a save: partial ones are listed, never resumed from, never deleted."""
    rng = random.Random(9)
    first = 1
    kills = 5
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(first)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.readline()  # one save is done, the next one runs
        time.sleep(rng.uniform(0.0, 0.05))
        child.kill()
        child.wait()
        child.stdout.close()
        store = CheckpointStore(tmp_path, world_size=2)
        newest = store.resume()
        assert newest is not None
        state, manifest = store.load(newest)
        assert manifest["step"] == newest.step
        assert state["weights"].numel() == 2_000_000
        first = newest.step + 1
    partial = [c for c in store.list() if not c.complete]
    assert all(c.path.exists() and c.reason == "its save was interrupted" for c in partial)
    assert len(partial) >= 1, "no kill hit a save; widen the window"


def test_a10_order_is_numeric(tmp_path: Path) -> None:
    store = a_store(tmp_path, 9800, 10000, 9900)
    assert [c.step for c in store.list()] == [9800, 9900, 10000]
    newest, before = store.newest(), store.newest(before=9901)
    assert newest is not None and newest.step == 10000
    assert before is not None and before.step == 9900
    assert store.newest(before=9800) is None


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10)
    path = tmp_path / "step-10" / "state.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    info = store.newest()
    assert info is not None
    with pytest.raises(CheckpointError, match="SHA-256"):
        store.load(info)


def test_a_truncated_file_is_listed_as_incomplete(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10, 20)
    path = tmp_path / "step-20" / "state.pt"
    path.write_bytes(path.read_bytes()[:-1])
    listed = store.list()[1]
    assert not listed.complete
    assert "length" in str(listed.reason)
    assert store.resume() == store.list()[0]
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        store.load(listed)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        '{"step": 10}',
        '{"step": 10, "world_size": 2, "sdc": {}, "files": {}}',
        '{"step": 10, "world_size": 2, "sdc": {}, "files": {"state.pt": {"sha256": "", "bytes": 1}}}',
    ],
)
def test_a_damaged_manifest_makes_a_checkpoint_incomplete(tmp_path: Path, manifest: str) -> None:
    store = a_store(tmp_path, 10)
    (tmp_path / "step-10" / "manifest.json").write_text(manifest)
    assert [c.complete for c in store.list()] == [False]
    assert store.resume() is None


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]


def test_a_start_says_which_checkpoints_it_passes_over_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found with a newest manifest cut short: the start went back by one without a word."""
    store = a_store(tmp_path, 10, 20, 30, 40, 50)
    store.mark_doubtful(50)
    assert said(capsys) == []
    (tmp_path / "step-40" / "manifest.json").write_text("{")
    (tmp_path / "step-10" / "manifest.json").write_text("")  # older than what is taken: no matter
    newest = store.resume()
    assert newest is not None and newest.step == 30
    (line,) = said(capsys)
    assert "goes on from step 30 and passes over" in line
    assert "step-40: its manifest is damaged" in line and "step-50.doubtful-1: inside a suspect" in line
    assert "step-10" not in line and "step-20" not in line


def test_a_start_from_scratch_beside_checkpoints_that_are_none_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = a_store(tmp_path, 10)
    assert store.resume() is not None and said(capsys) == []
    (tmp_path / "step-10" / "manifest.json").unlink()
    assert store.resume() is None
    (line,) = said(capsys)
    assert "begins from scratch and passes over" in line and "no manifest" in line


def test_t19_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    store = a_store(tmp_path / "checkpoints", 10)
    (tmp_path / "secret").write_text("x")
    path = tmp_path / "checkpoints" / "step-10" / "manifest.json"
    record = json.loads(path.read_text())
    record["files"]["../../secret"] = {"sha256": "0" * 64, "bytes": 1}
    path.write_text(json.dumps(record))
    assert not store.list()[0].complete


def test_a_folder_renamed_to_another_step_is_incomplete(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10)
    (tmp_path / "step-10").rename(tmp_path / "step-90")
    assert "manifest is of step 10" in str(store.list()[0].reason)
    assert store.resume() is None


def test_a_checkpoint_without_manifest_is_incomplete(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10)
    (tmp_path / "step-10" / "manifest.json").unlink()
    assert "it has no manifest" in str(store.list()[0].reason)


def test_doubtful_checkpoints_are_moved_aside_and_kept(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10, 20, 30)
    moved = store.mark_doubtful(20)
    assert sorted(p.name for p in moved) == ["step-20.doubtful-1", "step-30.doubtful-1"]
    assert [(c.step, c.doubtful) for c in store.list()] == [(10, False), (20, True), (30, True)]
    newest = store.resume()
    assert newest is not None and newest.step == 10
    a_store(tmp_path, 20)
    assert [p.name for p in store.mark_doubtful(20)] == ["step-20.doubtful-2"]


def test_marking_twice_changes_nothing(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10, 20)
    store.mark_doubtful(20)
    assert store.mark_doubtful(20) == ()


def test_only_doubtful_checkpoints_left_asks_a_human(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10, 20)
    store.mark_doubtful(5)
    with pytest.raises(CheckpointError, match="Ask a human") as caught:
        store.resume()
    assert caught.value.exit_code == 4


def test_an_empty_or_missing_folder_starts_from_scratch(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path, 2).resume() is None
    assert CheckpointStore(tmp_path / "missing", 2).resume() is None


def test_a_step_saved_again_replaces_the_older_one_without_deleting_it(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10)
    store.save(10, {"weights": torch.zeros(3)}, {})
    newest = store.resume()
    assert newest is not None and newest.path.name == "step-10"
    assert torch.equal(store.load(newest)[0]["weights"], torch.zeros(3))
    assert (tmp_path / "step-10.replaced-1").is_dir()


def test_a_state_that_could_not_be_loaded_is_refused_at_the_save(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)
    with pytest.raises(CheckpointError, match="convert it first"):
        store.save(10, {"rng": np.random.default_rng(0)}, {})
    assert store.resume() is None


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-5").write_text("a file, not a folder")
    (tmp_path / "notes").mkdir()
    assert [c.step for c in a_store(tmp_path, 10).list()] == [10]


def test_the_store_is_importable_without_torch() -> None:
    code = "import sys; from training_agent import CheckpointStore; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
