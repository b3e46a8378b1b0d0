"""What a job's reporter leaves behind: on the disk first, then on the log, then at AWS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.recording import RecordingReporter
from tests.patience import PATIENCE_S
from training_agent.contract import Alarm, Check, FindingKind, NodeRegistration, Pair, decode, delivery_key
from training_agent.quarantine import entries_of, read_record
from training_agent.report import GroupReporter, StepChecks, choose_publishers, job_reporter
from training_agent.spool import Spool, name_of

from .builders import ROOT, FakeAws, a_finding, a_place, a_registration, an_alarm, settings_of

BETWEEN = StepChecks(audited=False, weight_checked=False, last_audit_pass=10, last_weight_check_pass=10)


def logged(capsys: pytest.CaptureFixture[str], kind: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [p for p in parsed if p["sdc"] == kind]


def metric(call: dict[str, Any], name: str) -> list[float]:
    return [d["Value"] for d in call["MetricData"] if d["MetricName"] == name]


def test_an_alarm_stands_everywhere_when_the_call_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = FakeAws()
    log = tmp_path / "termination-log"
    log.touch()
    alarm = an_alarm(pairs=(Pair(2, 1), Pair(1, 0)))
    job_reporter(settings_of(tmp_path, termination_log=log), 0, client=aws.factory).alarm(alarm)

    key = delivery_key(alarm)
    assert (tmp_path / "spool" / f"{name_of(alarm)}.json").exists()
    assert (tmp_path / "spool" / f"{name_of(alarm)}.sent").exists()
    assert read_record(tmp_path).entries == entries_of(alarm)
    assert "named ranks: 1" in log.read_text()
    (line,) = logged(capsys, "alarm")
    assert line["delivery_key"] == key
    assert decode(Alarm, json.dumps(line["alarm"])) == alarm
    assert [decode(Alarm, e["Detail"]) for e in aws.events] == [alarm]
    assert metric(aws.metrics[-1], "sdc_replay_mismatch") == [2.0, 2.0]


def test_the_spool_is_written_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []
    alarm = an_alarm()

    class Watching(FakeAws):
        def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
            seen.append((tmp_path / "spool" / f"{name_of(alarm)}.json").exists())
            return super().put_events(Entries)

    job_reporter(settings_of(tmp_path), 0, client=Watching().factory).alarm(alarm)
    assert seen == [True]


def test_only_rank_0_writes_the_record_and_only_publishers_send(tmp_path: Path) -> None:
    aws = FakeAws()
    reporter = job_reporter(settings_of(tmp_path, rank=3), 3, publishers={0, 2}, client=aws.factory)
    reporter.alarm(an_alarm())
    assert aws.events == [] and aws.metrics == []
    assert not (tmp_path / "quarantine.json").exists()
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)


def test_two_publishers_send_the_same_key(tmp_path: Path) -> None:
    aws = FakeAws()
    for rank in (0, 2):
        job_reporter(settings_of(tmp_path, rank), rank, publishers={0, 2}, client=aws.factory).alarm(
            an_alarm()
        )
    assert {delivery_key(decode(Alarm, e["Detail"])) for e in aws.events} == {delivery_key(an_alarm())}
    assert len(aws.events) == 2


def test_publishers_are_rank_0_and_the_first_rank_of_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_publishers([a_place(r) for r in (5, 1, 0, 2, 4, 3)]) == {0, 2}
    assert choose_publishers([a_place(0), a_place(1)]) == {0, 1}
    assert choose_publishers([a_place(0)]) == {0}
    aws = FakeAws()
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    sent = []
    for rank in range(6):
        job_reporter(settings_of(None, rank), rank, client=aws.factory).alarm(an_alarm())
        sent.append(len(aws.events))
    assert sent == [1, 1, 2, 2, 2, 2]


def test_on_a_single_node_two_ranks_send_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = FakeAws()
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3):
        job_reporter(settings_of(None, rank), rank, client=aws.factory).alarm(an_alarm())
    assert len(aws.events) == 2


def test_in_a_group_without_rank_0_its_lowest_rank_does_what_rank_0_does(tmp_path: Path) -> None:
    group = [a_place(r) for r in (3, 4, 5)]
    for rank in (3, 4, 5):
        aws = FakeAws()
        shared = tmp_path / str(rank)
        reporter = job_reporter(settings_of(shared, rank), rank, client=aws.factory)
        reporter.among(group)
        reporter.alarm(an_alarm())
        assert (read_record(shared).entries != ()) is (rank == 3)
        assert bool(aws.metrics) is (rank == 3)
        assert bool(aws.events) is (rank in choose_publishers(group))


def test_the_publishers_that_a_loop_names_stay_so(tmp_path: Path) -> None:
    aws = FakeAws()
    reporter = job_reporter(settings_of(tmp_path, 3), 3, publishers={5}, client=aws.factory)
    reporter.among([a_place(r) for r in (3, 4, 5)])
    reporter.alarm(an_alarm())
    assert aws.events == []


def test_an_alarm_that_names_nobody_holds_the_job(tmp_path: Path) -> None:
    alarm = an_alarm(a_finding(None, FindingKind.REDUCED), check=Check.NONFINITE, reduced_nonfinite=True)
    job_reporter(settings_of(tmp_path, event_bus=None), 0).alarm(alarm)
    (entry,) = read_record(tmp_path).entries
    assert (entry.instance_id, entry.gpu_uuid) == (None, None)


def test_a_registration_is_published(tmp_path: Path) -> None:
    aws = FakeAws()
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    reporter.started(a_registration())
    reporter.close()
    (entry,) = aws.events
    assert entry["DetailType"] == "SDC Node Registered"
    assert decode(NodeRegistration, entry["Detail"]) == a_registration()


def test_the_next_start_sends_what_the_last_one_could_not_under_the_same_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing credentials: one warning, the alarm waits in the spool, the next start sends it."""
    aws = FakeAws()
    aws.broken = RuntimeError("NoCredentialsError: Unable to locate credentials")
    first = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    first.started(None)
    first.progress(1, BETWEEN)
    first.alarm(an_alarm())
    assert len(logged(capsys, "warning")) == 1
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)

    aws.broken = None
    second = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    second.started(None)
    second.close()
    assert [delivery_key(decode(Alarm, e["Detail"])) for e in aws.events] == [delivery_key(an_alarm())]
    assert Spool(tmp_path / "spool").unsent() == ()

    third = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    third.started(None)
    third.close()
    assert len(aws.events) == 1


def test_a_disk_that_cannot_be_written_does_not_stop_the_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    aws = FakeAws()
    settings = settings_of(tmp_path / "file", termination_log=tmp_path / "missing" / "log")
    job_reporter(settings, 0, client=aws.factory).alarm(an_alarm())
    assert len(aws.events) == 1
    output = capsys.readouterr().out
    assert '"sdc":"alarm"' in output
    assert "Could not spool the alarm" in output


def test_without_a_bus_the_alarm_still_stands_on_the_disk(tmp_path: Path) -> None:
    asked: list[str] = []
    reporter = job_reporter(settings_of(tmp_path, event_bus=None), 0, client=asked.append)
    reporter.started(a_registration())
    reporter.progress(1, BETWEEN)
    reporter.alarm(an_alarm())
    reporter.close()
    assert asked == []
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)


def test_progress_never_waits_for_aws(tmp_path: Path) -> None:
    aws = FakeAws()
    aws.gate.clear()
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    for step in range(2000):
        reporter.progress(step, BETWEEN)
    assert aws.let_through == 0, "somebody waited for an answer"
    aws.gate.set()


LEAVING = """
import sys, time
from pathlib import Path
from tests.unit.report.builders import FakeAws, an_alarm, settings_of
from training_agent.report import job_reporter
from training_agent.contract import encode

class Slow(FakeAws):
    def put_events(self, Entries):
        time.sleep(0.3)
        Path(sys.argv[1], "delivered").write_text(Entries[0]["Detail"])
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}

job_reporter(settings_of(Path(sys.argv[1])), 0, client=Slow().factory).alarm(an_alarm())
sys.exit(3)
"""


def test_a7_an_alarm_survives_an_exit_right_after_it(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", LEAVING, str(tmp_path)], cwd=ROOT, check=False, timeout=PATIENCE_S
    )
    assert child.returncode == 3
    assert decode(Alarm, (tmp_path / "delivered").read_bytes()) == an_alarm()
    assert Spool(tmp_path / "spool").unsent() == ()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An endpoint that accepts connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                taken.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(PATIENCE_S)
    for connection in taken:
        connection.close()


BLACK_HOLE = """
import sys, time
from pathlib import Path
from tests.unit.report.builders import a_registration, an_alarm, settings_of
from training_agent.report import StepChecks, job_reporter

began = time.monotonic()
reporter = job_reporter(settings_of(Path(sys.argv[1])), 0)
reporter.started(a_registration())
for step in range(1000):
    reporter.progress(step, StepChecks(False, False, None, None))
print(time.monotonic() - began)
began = time.monotonic()
reporter.alarm(an_alarm())
print(time.monotonic() - began)
"""


@pytest.mark.enable_socket
def test_a8_an_endpoint_that_never_answers_delays_nothing(tmp_path: Path, black_hole: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL": black_hole,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": str(tmp_path),
    }
    child = subprocess.run(
        [sys.executable, "-c", BLACK_HOLE, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    lines = child.stdout.splitlines()
    training_s, alarm_s = [float(x) for x in lines if not x.startswith("{")]
    assert training_s < 5
    assert alarm_s < 20  # the flush gives up after 10 s
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)


def test_importing_the_reporter_loads_neither_torch_nor_boto3() -> None:
    code = (
        "import sys, training_agent.report, training_agent.settings;"
        "sys.exit(bool({'torch', 'boto3', 'botocore'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_who_is_guarded_together_is_told_to_reporters_that_ask_for_it_and_to_no_other() -> None:
    assert isinstance(job_reporter(settings_of(None, 0), 0), GroupReporter)
    assert not isinstance(RecordingReporter(), GroupReporter)
