"""Watches one job and the pipeline that looks after it, and plays the approver.

Comes in: `DemoSettings`, the local cloud. Goes out: what was observed (`proof.Observed`) and the evidence:
mails, pages, events, execution histories. Everything is read from outside, as a person could.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from boto3.dynamodb.types import TypeDeserializer

from emulator.cloud import LocalCloud
from emulator.eventbridge import BusEvent
from emulator.mailbox import Mail
from emulator.training_operator import TrainingOperator, gpu_uuids_of
from examples.demo import approver
from examples.demo.launch import CLUSTER, job_spec, last_line, synthesized, tail
from examples.demo.proof import LEFT_TO_A_PERSON, Observed, read_hashes
from examples.demo.settings import DemoSettings
from examples.demo.story import Progress, Story, ranks_in_words
from examples.injection import struck
from lambdas.domain.incident import State
from training_agent.contract import Alarm, DetailType, NodeRegistration, delivery_key, from_plain

JOB_TIMEOUT_SECONDS = 480.0
INTERACTIVE_TIMEOUT_SECONDS = 4 * 3600.0
END_TIMEOUT_SECONDS = 60.0  # of the executions, after the job has ended
POLL_SECONDS = 0.3
WAIT_SCALE = 1 / 40  # the pipeline looks every 1.5 s where it would look every minute: training is not scaled
TASK_TOKEN = re.compile(r"""(task_token\\?": ?\\?")[^"\\]+""", re.IGNORECASE)
INSTANCE_ID = re.compile(r"i-[0-9a-f]{17}")
APPROVER = "approver@example.com"
LETS_GO = {State.REPLACED, State.RELEASED, State.REJECTED_RELEASED}  # ends after which the job trains on


@dataclass(slots=True)
class Watch:
    """One watched run."""

    settings: DemoSettings
    story: Story
    operator: TrainingOperator | None = None
    alarm_seen: float | None = None  # time.monotonic()
    back: float | None = None  # time.monotonic() when the last attempt had registered
    _mails: int = 0
    _events: int = 0
    _registered_attempt: int = 0
    _pages: list[str] = field(default_factory=list)
    _states: set[str] = field(default_factory=set)  # seen on the bus

    def start_cloud(self) -> LocalCloud:
        """Synthesize the app as it is deployed and load its template; the demo asks for mode `replace`."""
        bad_nodes = 2 if self.settings.fault == "two-gpus" else 1
        context = {
            "bundle": False,
            "cluster_name": CLUSTER,
            "mode": "replace",
            "approvers": [APPROVER],
            "eks_access_entries": True,
            "deep_check_enabled": True,
            "replacements_per_day": bad_nodes,
            "replacements_per_hour": bad_nodes,
            # the default, 5 % of a group, lets one of three nodes go
            "replacement_budget_percent": 100 if bad_nodes > 1 else 5,
        }
        template = synthesized(self.settings.out / "cdk.out", context)
        return LocalCloud(
            template,
            nodes=self.settings.nodes,
            gpus_per_node=self.settings.gpus,
            deep_check=self.settings.deep_check,
            work_dir=self.settings.out / "cloud",
            cluster=CLUSTER,
            # a check that sticks is given up after hours of polling: seconds here
            wait_scale=None if self.settings.deep_check == "stuck" else WAIT_SCALE,
        )

    def job(self, cloud: LocalCloud, progress: Progress) -> None:
        """Run the job and answer the mails until the job and all executions have ended."""
        spec = job_spec(self.settings, cloud)
        limit = INTERACTIVE_TIMEOUT_SECONDS if self.settings.interactive else JOB_TIMEOUT_SECONDS
        deadline = time.monotonic() + limit
        with TrainingOperator(cloud.kubernetes, spec) as self.operator:
            while (
                not self.operator.done and time.monotonic() < deadline and not self._left_to_a_person(cloud)
            ):
                self._look(cloud, progress)
                time.sleep(POLL_SECONDS)
            left = self._left_to_a_person(cloud)
            if not self.operator.done:
                self.operator.failure = (
                    LEFT_TO_A_PERSON if left else f"the job did not end within {limit:.0f} s"
                )
            deadline = time.monotonic() + END_TIMEOUT_SECONDS
            while time.monotonic() < deadline and self._running(cloud):
                self._look(cloud, progress)
                time.sleep(POLL_SECONDS)
        self._look(cloud, progress)
        if self.operator.failure and not left:
            log = max(spec.log_dir.glob(f"{spec.name}-worker-0-attempt-*.log"), default=None)
            self.story.line(f"{self.operator.failure}\n{tail(log) if log else ''}")

    def observed(self, cloud: LocalCloud) -> Observed:
        """Read back what happened."""
        assert self.operator is not None
        resumed = read_hashes(self.settings.out / "resumed", "final")
        alarmed = {a.job.attempt for a in _alarms(cloud)}
        last = max(_registrations(cloud), key=lambda r: r.job.attempt, default=None)
        return Observed(
            fault=self.settings.fault,
            injected=[asdict(r) for r in struck(self.settings.out / "faults" / "job")],
            alarms=_alarms(cloud),
            incidents=_incidents(cloud),
            replacements=cloud.hyperpod.replacements(),
            mails=len(cloud.mailbox),
            resumed_from_step=last.resumed_from_step if last else None,
            final_step=min((r["step"] for r in resumed.values()), default=None),
            reference=read_hashes(self.settings.out / "reference", "final"),
            resumed=resumed,
            poisoned=read_hashes(self.settings.out / "poisoned", "final"),
            job_failure=self.operator.failure,
            deep_check=self.settings.deep_check,
            exit_codes=[code for attempt, _, code in self.operator.exit_codes if attempt in alarmed],
        )

    def keep_evidence(self, cloud: LocalCloud) -> None:
        """Write mails, pages, events, HyperPod's request log and the execution histories."""
        out = self.settings.out
        mails = [f"To: {m.to}\nSubject: {m.subject}\n\n{m.body}\n" for m in cloud.mailbox]
        requests = [m for m in mails if approver.review_link(m)]
        for name, texts in (("mail", requests), ("every-mail", mails)):
            if texts and (name == "mail" or texts != requests):
                (out / f"{name}.txt").write_text(("\n" + "=" * 72 + "\n").join(texts))
        for number, html in enumerate(self._pages, 1):
            (out / ("page.html" if number == 1 else f"page-{number}.html")).write_text(html)
        (out / "events.json").write_text(_json(cloud.bus_events))
        (out / "hyperpod-requests.json").write_text(_json(cloud.hyperpod.requests))
        histories = {e["name"]: cloud.history(e["executionArn"]) for e in cloud.executions()}
        (out / "execution-history.json").write_text(
            TASK_TOKEN.sub(r"\1(removed)", json.dumps(histories, indent=1, default=str))
        )

    def cost(self, summary: dict[str, Any]) -> str:
        """Steps lost and seconds, in one phrase."""
        total = f"{time.monotonic() - self.story.started:.0f} s in all"
        if summary["alarm_step"] is None or summary["resumed_from_step"] is None:
            return total
        lost = summary["alarm_step"] - summary["resumed_from_step"]
        if self.alarm_seen is None or self.back is None:
            return f"{lost} steps computed again, {total}"
        return f"{lost} steps computed again, {self.back - self.alarm_seen:.0f} s without training, {total}"

    def _look(self, cloud: LocalCloud, progress: Progress) -> None:
        assert self.operator is not None
        events, mails = list(cloud.bus_events), list(cloud.mailbox)
        for event in events[self._events :]:
            self._tell_event(event)
        self._events = len(events)
        for mail in mails[self._mails :]:
            self._answer(mail)
        self._mails = len(mails)
        attempt = len(self.operator.attempts)
        log = self.operator.job.log_dir / f"{self.operator.job.name}-worker-0-attempt-{attempt}.log"
        progress(
            last_line(log) or f"attempt {attempt}: the job starts, or holds while a node is in quarantine"
        )

    def _tell_event(self, event: BusEvent) -> None:
        kind, detail = event.detail_type, event.detail
        if kind == DetailType.ALARM.value and self.alarm_seen is None:
            self.alarm_seen = time.monotonic()
            alarm = from_plain(Alarm, detail)
            self.story.line(
                f"alarm at step {alarm.step}: check {alarm.check.value} names "
                f"{ranks_in_words(alarm.named_ranks)}, window "
                f"{alarm.suspect_window[0]}-{alarm.suspect_window[1]}",
                "bold",
            )
        elif kind == DetailType.NODE_REGISTERED.value:
            registration = from_plain(NodeRegistration, detail)
            if registration.job.attempt > self._registered_attempt:
                self._registered_attempt = registration.job.attempt
                self.back = time.monotonic() if self.alarm_seen else None
                start = registration.resumed_from_step
                self.story.line(
                    f"the job runs, attempt {registration.job.attempt}, from "
                    + ("the start" if start is None else f"the checkpoint of step {start}")
                )
        elif kind == DetailType.INCIDENT_STATE_CHANGED.value:
            self._states.add(str(detail.get("state")))
            self.story.line(f"pipeline: {detail.get('state')}: {detail.get('story', '')}")

    def _answer(self, mail: Mail) -> None:
        self.story.line(f"mail to {mail.to}: {mail.subject}")
        link = approver.review_link(mail.body)
        if link is None:
            return
        page = approver.read(link)
        self._pages.append(page.html)
        if self.settings.interactive:
            self.story.whole(f"\n{mail.body}\n\nOpen this in a browser and decide:\n{link}\n")
            return
        named = INSTANCE_ID.search(mail.subject + "\n" + mail.body)
        if named is None:
            self.story.line("the mail names no instance: nobody approves that")
            return
        answer = approver.approve(link, page, named.group(0), "demo: the evidence on the page is conclusive")
        self.story.line(f"the approver read the page and approved: {answer.split('.')[0]}")

    def _left_to_a_person(self, cloud: LocalCloud) -> bool:
        """All incidents have ended, one of them in a state that lets nobody go."""
        if not self._states:
            return False
        states = {State(i["state"]) for i in _incidents(cloud)}
        return all(s.terminal for s in states) and not states <= LETS_GO

    def _running(self, cloud: LocalCloud) -> bool:
        return any(e["status"] == "RUNNING" for e in cloud.executions())


def seats_of(cloud: LocalCloud, settings: DemoSettings) -> list[dict[str, str]]:
    """Node and GPU UUID of each rank, in the order in which the operator fills the nodes."""
    nodes = list(cloud.kubernetes.nodes.values())[: settings.nodes]
    return [
        {"node": node["metadata"]["name"], "gpu_uuid": uuid} for node in nodes for uuid in gpu_uuids_of(node)
    ]


def _json(records: Iterable[Any]) -> str:
    return json.dumps([asdict(r) for r in records], indent=1, default=str)


def _alarms(cloud: LocalCloud) -> list[Alarm]:
    """Alarms on the bus, each once: several ranks report the same one."""
    found: dict[str, Alarm] = {}
    for event in cloud.bus_events:
        if event.detail_type == DetailType.ALARM.value:
            alarm = from_plain(Alarm, event.detail)
            found.setdefault(f"{delivery_key(alarm)}-{alarm.job.attempt}", alarm)
    return list(found.values())


def _registrations(cloud: LocalCloud) -> list[NodeRegistration]:
    kind = DetailType.NODE_REGISTERED.value
    return [from_plain(NodeRegistration, e.detail) for e in cloud.bus_events if e.detail_type == kind]


def _incidents(cloud: LocalCloud) -> list[dict[str, Any]]:
    """State rows of all incidents, in the order in which they were opened."""
    pages = (
        cloud.client("dynamodb")
        .get_paginator("scan")
        .paginate(TableName=cloud.stack.table_name("IncidentTable"), ConsistentRead=True)
    )
    read = TypeDeserializer().deserialize
    rows = [{k: read(v) for k, v in item.items()} for page in pages for item in page["Items"]]
    incidents = [r for r in rows if str(r["pk"]).startswith("incident#") and r["sk"] == "state"]
    return sorted(incidents, key=lambda r: str(r.get("opened_at", "")))
