"""Which checkpoints stay, and saves by functions of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training_agent.checkpoint import CheckpointStore
from training_agent.checkpoint_folder import MANIFEST, CheckpointInfo
from training_agent.errors import CheckpointError
from training_agent.retention import last_full_pass, superfluous


def steps(store: CheckpointStore) -> list[int]:
    return [c.step for c in store.list() if c.complete and not c.doubtful]


def save(store: CheckpointStore, step: int, passed: int | None) -> None:
    manifest = {"last_audit_pass": passed, "last_weight_check_pass": passed}
    store.save(step, {"w": torch.zeros(1)}, manifest)


def test_a10_retention_keeps_one_from_before_the_last_passed_audit_and_counts_numerically(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path, 2, keep_last=2)
    for step in (9700, 9800, 9900, 10000):  # as strings 9900 would be the newest, and 10000 would go
        save(store, step, min(step, 9900))
    assert steps(store) == [9800, 9900, 10000]  # 9800 is older than the last passed audit
    store.mark_doubtful(9901)
    newest = store.resume()
    assert newest is not None and newest.step == 9900


def test_a10_when_all_are_doubtful_nothing_is_resumed_and_nothing_deleted(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, keep_last=1)
    for step in (9900, 10000):
        save(store, step, None)
    store.mark_doubtful(1)
    with pytest.raises(CheckpointError, match="Ask a human"):
        store.resume()
    save(store, 10100, 10100)
    save(store, 10200, 10200)
    assert sorted(c.step for c in store.list() if c.doubtful) == [9900, 10000]


def test_without_any_pass_the_oldest_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, keep_last=1)
    for step in (10, 20, 30):
        save(store, step, None)
    assert steps(store) == [10, 30]


def test_partial_ones_are_listed_and_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, keep_last=1)
    store.begin(5)
    for step in (10, 20, 30):
        save(store, step, step)
    assert [(c.step, c.complete) for c in store.list()] == [(5, False), (20, True), (30, True)]


@pytest.mark.parametrize("keep", [0, -1, "3", 2.5, True])
def test_keep_last_is_a_number_that_keeps_something(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ValueError, match=f"keep_last={keep!r}: .* at least one"):
        CheckpointStore(tmp_path, 2, keep_last=keep)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=30, unique=True),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_the_newest_stay_and_so_does_one_from_before_the_pass(
    all_steps: list[int], keep: int, passed: int | None
) -> None:
    found = [CheckpointInfo(s, Path(str(s)), complete=True) for s in all_steps]
    found += [CheckpointInfo(s, Path(f"{s}.d"), complete=True, doubtful=True) for s in all_steps]
    gone = superfluous(found, keep, passed)
    assert not any(c.doubtful for c in gone)
    left = sorted(set(all_steps) - {c.step for c in gone})
    assert left[-keep:] == sorted(all_steps)[-keep:]
    if passed is not None and min(all_steps) < passed:
        assert any(s < passed for s in left)
    else:
        assert min(all_steps) in left
    assert len(left) <= keep + 1


def test_the_last_full_pass_is_the_older_of_the_two() -> None:
    assert last_full_pass({"last_audit_pass": 10, "last_weight_check_pass": 30}) == 10
    assert last_full_pass({"last_audit_pass": None, "last_weight_check_pass": 30}) == 30
    assert last_full_pass({}) is None


def test_any_save_function_can_be_wrapped_and_every_file_is_hashed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)

    def write(folder: Path) -> None:
        (folder / "shards").mkdir()
        (folder / "shards" / "a.bin").write_bytes(b"weights")
        (folder / "config.json").write_text("{}")

    info = store.save_with(7, write, {"last_audit_pass": 7})
    folder, manifest = store.verified(info)
    assert (folder / "shards" / "a.bin").read_bytes() == b"weights" and manifest == {"last_audit_pass": 7}
    assert set(json.loads((folder / MANIFEST).read_text())["files"]) == {"shards/a.bin", "config.json"}
    with pytest.raises(CheckpointError, match="load of your own"):
        store.load(info)
    (folder / "shards" / "a.bin").write_bytes(b"weight5")
    with pytest.raises(CheckpointError, match="SHA-256"):
        store.verified(info)


def test_a_save_function_that_fails_or_writes_nothing_leaves_a_partial_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)

    def fails(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError):
        store.save_with(7, fails, {})
    with pytest.raises(CheckpointError, match="no file"):
        store.save_with(8, lambda folder: None, {})
    assert [(c.step, c.complete) for c in store.list()] == [(7, False), (8, False)]
    assert store.newest() is None


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/state.pt", ""])
def test_t19_a_manifest_that_names_files_outside_its_folder_is_damaged(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path, 2)
    info = store.save(3, {"w": torch.zeros(1)}, {})
    record = json.loads((info.path / MANIFEST).read_text())
    record["files"][name] = {"sha256": "0" * 64, "bytes": 0}
    (info.path / MANIFEST).write_text(json.dumps(record))
    (found,) = store.list()
    assert not found.complete and "damaged" in str(found.reason)
