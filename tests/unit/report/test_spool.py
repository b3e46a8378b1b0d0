"""Alarms on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from training_agent.contract import decode
from training_agent.contract.alarm import Alarm
from training_agent.shared_files import write_atomic
from training_agent.spool import Spool, name_of

from .builders import an_alarm


def test_an_alarm_is_unsent_until_it_is_marked(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert spool.unsent() == ()
    key = spool.put(an_alarm())
    assert key == name_of(an_alarm())
    assert spool.unsent() == (an_alarm(),)
    spool.mark_sent(key)
    assert spool.unsent() == ()
    assert decode(Alarm, (tmp_path / "spool" / f"{key}.json").read_bytes()) == an_alarm()


def test_all_ranks_of_a_job_spool_one_file(tmp_path: Path) -> None:
    for _ in range(6):
        Spool(tmp_path).put(an_alarm())
    assert len(list(tmp_path.iterdir())) == 1


def test_unsent_alarms_come_oldest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for step in (50, 9, 30):
        spool.put(an_alarm(step=step, time=f"2026-01-02T03:04:{step:02d}.000Z"))
    assert [a.step for a in spool.unsent()] == [9, 30, 50]


def test_a_damaged_spool_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "0000.json").write_text('{"half": ')
    Spool(tmp_path).put(an_alarm())
    assert Spool(tmp_path).unsent() == (an_alarm(),)
    assert (tmp_path / "0000.json").exists()


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_the_same_alarm_of_the_next_attempt_is_spooled_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first = an_alarm()
    spool.mark_sent(spool.put(first))
    again = replace(first, job=replace(first.job, attempt=first.job.attempt + 1))
    spool.put(again)
    assert spool.unsent() == (again,)
