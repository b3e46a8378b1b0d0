"""The publishing thread: batches, refused entries, retries, a full queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.patience import PATIENCE_S, eventually
from training_agent.contract import MAX_DETAIL_BYTES, Contest, DetailType, Vote, decode, delivery_key
from training_agent.contract.alarm import Alarm
from training_agent.report import publisher as module
from training_agent.report.event_bus import Event, alarm_event, batches, put
from training_agent.report.metrics import MetricState
from training_agent.report.publisher import Publisher
from training_agent.spool import name_of

from .builders import FakeAws, a_finding, an_alarm


def alarms(count: int) -> list[Event]:
    return [alarm_event(an_alarm(step=step)) for step in range(1, count + 1)]


def steps(aws: FakeAws) -> list[int]:
    return [json.loads(e["Detail"])["step"] for e in aws.events if e["DetailType"] == "SDC Alarm"]


def held_back(aws: FakeAws, **changes: Any) -> Publisher:
    """Make a publisher whose first call waits until `aws.gate` opens, so that a queue can form."""
    aws.gate.clear()
    publisher = Publisher("sdc-bus", aws.factory, **changes)
    publisher.offer(Event(DetailType.NODE_REGISTERED, "{}"))
    eventually(lambda: publisher._busy)
    return publisher


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.02)


def test_an_event_carries_source_type_bus_and_detail() -> None:
    aws = FakeAws()
    put(aws, "sdc-bus", [alarm_event(an_alarm())])
    (entry,) = aws.events
    assert entry["Source"] == "training.sdc"
    assert entry["DetailType"] == "SDC Alarm"
    assert entry["EventBusName"] == "sdc-bus"
    assert entry["Resources"] == []
    assert decode(Alarm, entry["Detail"]) == an_alarm()


def test_a13_twelve_alarms_are_two_calls_and_only_the_refused_entry_is_sent_again() -> None:
    aws = FakeAws()
    aws.refuse = lambda call, index: (call, index) == (1, 3)
    sent: list[Event] = []
    publisher = held_back(aws, on_sent=sent.append)
    for event in alarms(12):
        publisher.offer(event)
    aws.gate.set()
    assert publisher.flush(10)
    assert aws.calls == [1, 10, 2, 1]  # the first one is the registration that held the queue
    assert sorted(steps(aws)) == list(range(1, 13))
    assert {e.key for e in sent if e.key} == {name_of(an_alarm(step=s)) for s in range(1, 13)}
    assert publisher.dropped == 0


def test_a13_three_refusals_give_up_and_count(capsys: pytest.CaptureFixture[str]) -> None:
    aws = FakeAws()
    aws.refuse = lambda call, index: True
    sent: list[Event] = []
    publisher = Publisher("sdc-bus", aws.factory, on_sent=sent.append)
    publisher.offer(alarms(1)[0])
    assert publisher.flush(10)
    assert aws.calls == [1, 1, 1]
    assert publisher.dropped == 1
    assert sent == []
    (warning,) = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    assert "ThrottlingException" in warning["message"]


def test_a_call_that_fails_as_a_whole_is_made_again() -> None:
    class Flaky(FakeAws):
        def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
            if not self.calls:
                self.calls.append(0)
                raise RuntimeError("EndpointConnectionError")
            return super().put_events(Entries)

    aws = Flaky()
    publisher = Publisher("sdc-bus", aws.factory)
    publisher.offer(alarms(1)[0])
    assert publisher.flush(10)
    assert steps(aws) == [1]


def test_refusals_without_entries_count_for_the_whole_batch() -> None:
    class Terse(FakeAws):
        def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
            return {"FailedEntryCount": 1, "Entries": []}

    refused, why = put(Terse(), "sdc-bus", alarms(3))
    assert refused == {0, 1, 2}
    assert "without saying which" in why


def test_batches_stay_below_ten_entries_and_the_older_size_limit() -> None:
    large = [Event(DetailType.ALARM, "x" * 60_000, str(n)) for n in range(9)]
    assert [len(b) for b in batches(large, lambda e: e)] == [4, 4, 1]
    assert [len(b) for b in batches(alarms(21), lambda e: e)] == [10, 10, 1]


def test_a_full_queue_gives_up_registrations_before_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_LENGTH", 3)
    aws = FakeAws()
    publisher = held_back(aws)
    publisher.offer(Event(DetailType.NODE_REGISTERED, '{"late": 1}'))
    for event in alarms(4):
        publisher.offer(event)
    assert publisher.dropped == 2
    aws.gate.set()
    assert publisher.flush(10)
    assert steps(aws) == [1, 2, 3]


def test_a_registration_is_tried_longer_and_an_alarm_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 30.0)
    aws = FakeAws()
    aws.refuse = lambda call, index: call == 0
    publisher = Publisher("sdc-bus", aws.factory)
    publisher.offer(Event(DetailType.NODE_REGISTERED, "{}"))
    eventually(lambda: bool(aws.calls) and not publisher._busy)
    assert publisher.flush(0.1), "a registration on its pause must not delay an alarm's flush"
    assert aws.events == []
    publisher.offer(alarms(1)[0])
    assert publisher.flush(10)
    assert [e["DetailType"] for e in aws.events] == ["SDC Node Registered", "SDC Alarm"]


def test_clients_are_made_before_there_is_anything_to_send() -> None:
    asked: list[str] = []

    def factory(service: str) -> FakeAws:
        asked.append(service)
        return FakeAws()

    Publisher("sdc-bus", factory, metrics=MetricState("demo", "llama")).prepare()
    eventually(lambda: asked == ["events", "cloudwatch"])


def test_a_flush_is_bounded() -> None:
    aws = FakeAws()
    publisher = held_back(aws)
    publisher.offer(alarms(1)[0])
    assert not publisher.flush(0.1)
    aws.gate.set()


def test_a_callback_that_breaks_does_not_kill_the_thread() -> None:
    aws = FakeAws()

    def broken(event: Event) -> None:
        raise RuntimeError("bug")

    publisher = Publisher("sdc-bus", aws.factory, on_sent=broken)
    for event in alarms(2):
        publisher.offer(event)
        assert publisher.flush(10)
    assert steps(aws) == [1, 2]


def test_a_closed_publisher_ends_its_thread() -> None:
    publisher = Publisher("sdc-bus", FakeAws().factory)
    publisher.offer(alarms(1)[0])
    publisher.close(10)
    assert publisher._thread is not None
    publisher._thread.join(PATIENCE_S)
    assert not publisher._thread.is_alive()


def test_an_alarm_too_large_for_an_event_goes_without_its_votes_under_the_same_key() -> None:
    votes = tuple(Vote(rank, "0" * 64, "arbiter") for rank in range(1000))
    alarm = an_alarm(a_finding(1), contests=(Contest(1, 2, votes, None, None),))
    event = alarm_event(alarm)
    assert event.fits
    assert len(event.detail) < MAX_DETAIL_BYTES
    slim = decode(Alarm, event.detail)
    assert slim.findings == alarm.findings
    assert event.key == name_of(alarm) == name_of(slim)
    assert delivery_key(alarm) == delivery_key(slim)


def test_a_closed_publisher_ends_although_every_call_takes_longer_than_the_interval() -> None:
    aws = FakeAws()
    aws.slow_s = 0.05
    metrics = MetricState("demo", "llama")
    metrics.alarm(an_alarm())
    publisher = Publisher("sdc-bus", aws.factory, metrics=metrics, metrics_every_s=0.0)
    publisher.prepare()
    eventually(lambda: bool(aws.metrics))
    publisher.close(10)
    assert publisher._thread is not None
    publisher._thread.join(PATIENCE_S)
    assert not publisher._thread.is_alive()
