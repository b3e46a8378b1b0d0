"""A shared folder that hangs, or a process without threads to spare, must not keep an alarm or training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, eventually
from training_agent import _alarm
from training_agent._patience import within
from training_agent.contract import Alarm, decode
from training_agent.report import StepChecks, job_reporter
from training_agent.report import job as job_module
from training_agent.spool import Spool

from .builders import FakeAws, an_alarm, settings_of


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Spool writes wait until it is set."""
    back = threading.Event()
    real = Spool.put

    def put(self: Spool, alarm: Alarm) -> str:
        back.wait(PATIENCE_S)
        return real(self, alarm)

    monkeypatch.setattr(Spool, "put", put)
    monkeypatch.setattr(job_module, "FILES_S", 0.2)
    yield back
    back.set()


def test_an_alarm_leaves_the_process_although_its_shared_folder_hangs(
    hung: threading.Event, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = FakeAws()
    job_reporter(settings_of(tmp_path), 0, client=aws.factory).alarm(an_alarm())
    assert [decode(Alarm, e["Detail"]) for e in aws.events] == [an_alarm()]
    out = capsys.readouterr().out
    assert '"sdc":"alarm"' in out and "Could not spool the alarm: TimeoutError" in out


def test_a_folder_that_comes_back_still_gets_the_alarm(hung: threading.Event, tmp_path: Path) -> None:
    job_reporter(settings_of(tmp_path, event_bus=None), 0).alarm(an_alarm())
    assert Spool(tmp_path / "spool").alarms() == ()
    hung.set()
    eventually(lambda: Spool(tmp_path / "spool").alarms() != ())


def test_checkpoints_that_cannot_be_searched_cost_the_alarm_its_resume_point_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    class Hung:
        folder = Path("/shared")

        def mark_doubtful(self, first_step: int) -> tuple[Path, ...]:
            over.wait(PATIENCE_S)
            return ()

        def newest(self, before: int | None = None) -> None:
            return None

    monkeypatch.setattr(_alarm, "FILES_S", 0.1)
    assert _alarm._resume_point(Hung(), 5) is None
    over.set()
    assert "checkpoints could not be searched" in capsys.readouterr().out


def test_a_process_without_threads_to_spare_trains_on_and_still_writes_its_alarm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    settings = settings_of(tmp_path, otlp_endpoint="http://127.0.0.1:9")
    reporter = job_reporter(settings, 0, client=FakeAws().factory)
    for step in range(3):
        reporter.progress(step, StepChecks(False, False, None, None))
    reporter.alarm(an_alarm())
    reporter.close()
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)
    assert "can't start new thread" in capsys.readouterr().out


def test_what_an_act_raises_or_returns_comes_back() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(OSError, match="full"):
        within(5, _full)


def _full() -> None:
    raise OSError("disk full")
