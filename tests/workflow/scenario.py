"""A training job without the training: pods, registrations and a recorded alarm, then the people's side
over HTTP.

What goes in goes through the bus, as the agent sends it; what is asserted is read from outside: HyperPod's
request log, node objects, mails, the execution's history, the incident's row.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

from emulator.cloud import LocalCloud
from emulator.mailbox import Mail
from emulator.names import GPU_UUIDS_ANNOTATION
from emulator.stack import Stack
from tests.patience import PATIENCE_S
from training_agent.contract import (
    EVENT_SOURCE,
    Alarm,
    Check,
    DetailType,
    Finding,
    FindingKind,
    Independence,
    Job,
    NodeRegistration,
    Place,
    ResumePoint,
    SecondConfirmation,
    Verdict,
    encode,
    instance_id_of,
)

APPROVER = "approver@example.com"
NODES = 3
GPUS = 2
NAMESPACE = "training"
ALARM_STEP = 30
RESUME_STEP = 20
T = TypeVar("T")


@dataclass(frozen=True)
class Page:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    text: str


def until(probe: Callable[[], T | None], what: str, timeout: float = 60.0) -> T:
    """First answer of `probe` that is not None."""
    end = time.monotonic() + timeout
    while (found := probe()) is None:
        assert time.monotonic() < end, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.02)
    return found


def fetch(method: str, url: str, form: dict[str, str] | None = None, **headers: str) -> Page:
    """One request of a browser that stands on the page's own site."""
    parts = urllib.parse.urlsplit(url)
    data = urllib.parse.urlencode(form).encode() if form is not None else None
    headers = {"Origin": f"{parts.scheme}://{parts.netloc}", "Sec-Fetch-Site": "same-origin"} | headers
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return Page(answer.status, dict(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as e:
        with e:
            return Page(e.code, dict(e.headers), e.read().decode())


class Scenario:
    """One job on three nodes that no other scenario has used."""

    _used: ClassVar[set[str]] = set()
    _numbers: ClassVar[Any] = itertools.count(1)

    def __init__(self, cloud: LocalCloud, stack: Stack | None = None) -> None:
        self.cloud, self.stack = cloud, stack or cloud.stack
        self.job = Job(f"job-{next(self._numbers)}", str(uuid.uuid4()), namespace=NAMESPACE)
        free = [n for n in cloud.kubernetes.free_nodes(GPUS) if instance_id_of(n) and n not in self._used]
        self.nodes = free[:NODES]
        assert len(self.nodes) == NODES, "the cluster of the tests is used up: raise NODES in conftest.py"
        self._used.update(self.nodes)
        self.places = [p for rank, node in enumerate(self.nodes) for p in self._start_pod(node, rank)]
        self._mails_before = len(cloud.mailbox)
        self._requests_before = len(cloud.hyperpod.requests)

    # -- what the agent does ---------------------------------------------------------------------------------

    def register(self, attempt: int = 1, resumed_from: int | None = None, *, wait: bool = True) -> None:
        """Publish the registration of every node of one attempt, and wait until the pipeline has stored
        them."""
        self.job = replace(self.job, attempt=attempt)
        for node in self.nodes:
            places = tuple(p for p in self.places if p.node == node)
            registration = NodeRegistration(
                cluster=self.cloud.hyperpod.name,
                job=self.job,
                node=node,
                instance_id=instance_id_of(node),
                places=places,
                world_size=len(self.places),
                nodes=len(self.nodes),
                time=_now(),
                resumed_from_step=resumed_from,
            )
            self.put(DetailType.NODE_REGISTERED, encode(registration))
        if wait:
            until(lambda: self._registered(attempt) or None, f"registration of attempt {attempt}")

    def alarm(self, *findings: Finding, check: Check = Check.REPLAY) -> Alarm:
        """An alarm of this job with these findings."""
        return Alarm(
            cluster=self.cloud.hyperpod.name,
            job=self.job,
            check=check,
            step=ALARM_STEP,
            time=_now(),
            findings=findings,
            suspect_window=(RESUME_STEP + 1, ALARM_STEP),
            world_size=len(self.places),
            nodes=len(self.nodes),
            independence=Independence.NODE,
            resume_from=ResumePoint(RESUME_STEP, f"/shared/checkpoints/step-{RESUME_STEP}"),
        )

    def put(self, kind: DetailType, detail: str) -> None:
        """PutEvents, as the agent calls it."""
        entry = {
            "Source": EVENT_SOURCE,
            "DetailType": kind.value,
            "Detail": detail,
            "EventBusName": self.stack.event_bus_name,
        }
        answer = self.cloud.client("events").put_events(Entries=[entry])
        assert answer["FailedEntryCount"] == 0, answer

    def raise_alarm(self, *findings: Finding, check: Check = Check.REPLAY) -> None:
        """Register, then raise."""
        self.register()
        self.put(DetailType.ALARM, encode(self.alarm(*findings, check=check)))

    def come_back(self) -> None:
        """The job starts again, from the checkpoint that the alarm named, on nodes that are free now."""
        for place in {p.pod_name: p for p in self.places}.values():
            self.cloud.kubernetes.delete_pod(str(place.pod_name), namespace=NAMESPACE)
        free = [n for n in self.cloud.kubernetes.free_nodes(GPUS) if instance_id_of(n)]
        keep = [n for n in self.nodes if n in free]
        fresh = [n for n in free if n not in self._used]
        self.nodes = (keep + fresh)[:NODES]
        self._used.update(self.nodes)
        attempt = self.job.attempt + 1
        self.places = [p for i, n in enumerate(self.nodes) for p in self._start_pod(n, i, attempt)]
        self.register(attempt, RESUME_STEP)

    def wait_for_replacement(self, rank: int = 2) -> str:
        """Wait until the new instance's node has joined; its id."""
        suspect = self.instance(rank)

        def joined() -> str | None:
            new = dict(self.cloud.hyperpod.replacements()).get(suspect)
            return new if new and f"hyperpod-{new}" in self.cloud.kubernetes.nodes else None

        return until(joined, f"the replacement of {suspect}")

    def job_returns_when_released(self) -> None:
        """Wait until resume looks for the job, then let it start again."""
        until(lambda: True if "resume" in self.walked() else None, "resume")
        until(
            lambda: True if self.nodes[1] in self.cloud.kubernetes.free_nodes(GPUS) else None, "the uncordon"
        )
        self.come_back()

    # -- findings --------------------------------------------------------------------------------------------

    def culprit(self, rank: int = 2) -> Finding:
        """C1: out-voted by a strict majority."""
        return self._finding(FindingKind.CULPRIT, rank, majority=True)

    def pair(self, verdict: Verdict, rank: int = 2, second: SecondConfirmation | None = None) -> Finding:
        """V1 to V4."""
        return self._finding(FindingKind.PAIR, rank, verdict=verdict, second_confirmation=second)

    def diverged(self, rank: int = 2) -> Finding:
        """W1: the replica differs from a strict majority."""
        return self._finding(FindingKind.WEIGHTS, rank, majority=True)

    def data_fault(self) -> Finding:
        """N0: non-finite, and the same on healthy peers."""
        return self._finding(FindingKind.NONFINITE, 2, reproduced=True)

    # -- what came of it -------------------------------------------------------------------------------------

    def instance(self, rank: int = 2) -> str:
        """Instance id under a rank at the first attempt."""
        return str(self.places[rank].instance_id)

    def events(self) -> list[dict[str, Any]]:
        """Details of this job's "SDC Incident State Changed" events, in order."""
        kind = DetailType.INCIDENT_STATE_CHANGED.value
        bus = self.stack.event_bus_name
        found = [e for e in self.cloud.bus_events if e.detail_type == kind and e.bus == bus]
        return [e.detail for e in found if e.detail.get("job") == self.job.name]

    def incident_id(self) -> str:
        """The incident that the alarm opened, not one of its metric."""

        def opened() -> str | None:
            found = (e for e in self.events() if e["state"] == "OPENING")
            return next((str(e["incident_id"]) for e in found), None)

        return until(opened, "an incident")

    def execution(self) -> str:
        """ARN of its execution."""
        incident = self.incident_id()

        def started() -> str | None:
            found = (e for e in self.stack.executions() if e["name"].startswith(incident))
            return next((str(e["executionArn"]) for e in found), None)

        return until(started, "the execution's start")

    def end(self, timeout: float = 60.0) -> str:
        """Wait for the execution's end; the incident's terminal state."""
        arn = self.execution()
        done = self.stack.wait_for_execution(arn, timeout)
        assert done["status"] == "SUCCEEDED", (done.get("error"), done.get("cause"), self.walked())
        return str(self.row()["state"])

    def walked(self) -> list[str]:
        """Task states that the execution entered, in order, repetitions left out."""
        tasks = [
            s for s in self.stack.states_entered(self.execution()) if not s.startswith(("after ", "wait "))
        ]
        return [s for i, s in enumerate(tasks) if i == 0 or tasks[i - 1] != s]

    def row(self) -> dict[str, Any]:
        """The incident's row, its values as plain text and numbers."""
        key = {"pk": {"S": f"incident#{self.incident_id()}"}, "sk": {"S": "state"}}
        table = self.stack.table_name("IncidentTable")
        item = self.cloud.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)["Item"]
        return {name: _plain(value) for name, value in item.items()}

    def let_polls_pass(self, polls: int) -> None:
        """Four hours of polling cost 20 s even in scaled time: count the deep check's polls up by hand."""
        table, dynamodb = self.stack.table_name("IncidentTable"), self.cloud.client("dynamodb")
        key = {"pk": {"S": f"incident#{self.incident_id()}"}, "sk": {"S": "state"}}

        def counted() -> bool | None:
            item = dynamodb.get_item(TableName=table, Key=key, ConsistentRead=True)["Item"]
            document = json.loads(item["document"]["S"])
            if not document["deep_check"]["seen_in_progress"]:
                return None
            document["deep_check"]["polls"] += polls
            read, written = item["version"], {"N": str(int(item["version"]["N"]) + 1)}
            item |= {"document": {"S": json.dumps(document)}, "version": written}
            try:
                dynamodb.put_item(
                    TableName=table,
                    Item=item,
                    ConditionExpression="version = :read",
                    ExpressionAttributeValues={":read": read},
                )
            except dynamodb.exceptions.ConditionalCheckFailedException:
                return None
            return True

        until(counted, "the deep check in progress")

    def replace_requests(self) -> list[list[str]]:
        """Node ids of every BatchReplaceClusterNodes call since this scenario began."""
        requests = self.cloud.hyperpod.requests[self._requests_before :]
        return [r.parameters["NodeIds"] for r in requests if r.operation == "BatchReplaceClusterNodes"]

    def deep_checks(self) -> int:
        """How many deep health checks were started since this scenario began."""
        requests = self.cloud.hyperpod.requests[self._requests_before :]
        return sum(r.operation == "StartClusterHealthCheck" for r in requests)

    def cordoned(self, node: str) -> bool:
        """Is the node unschedulable?"""
        return bool(self.cloud.kubernetes.nodes[node]["spec"].get("unschedulable"))

    # -- the approver ----------------------------------------------------------------------------------------

    def mails(self) -> Sequence[Mail]:
        """Mails about this job, oldest first."""
        return [m for m in self.cloud.mailbox[self._mails_before :] if self.job.name in m.subject + m.body]

    def mail(self, word: str, timeout: float = 60.0) -> Mail:
        """The first mail about this job with `word` in its subject."""
        return until(
            lambda: next((m for m in self.mails() if word in m.subject), None),
            f"a mail with {word!r} in its subject",
            timeout,
        )

    def link(self) -> str:
        """The link of the review mail."""
        found = re.search(rf"{re.escape(self.stack.review_url)}/review/\S+", self.mail("review").body)
        assert found, "the review mail has no link"
        return found[0]

    def answer(self, decision: str, rank: int = 2) -> Page:
        """Read the page behind the link, then send its form: approve, keep or release."""
        link = self.link()
        shown = fetch("GET", link)
        assert shown.status == 200, shown
        assert self.instance(rank) in shown.text
        typed = self.instance(rank)[-6:]
        return fetch("POST", link, {"decision": decision, "typed": typed, "reason": "told so by the test"})

    def _start_pod(self, node: str, node_rank: int, attempt: int = 1) -> list[Place]:
        name = f"{self.job.name}-worker-{node_rank}-{attempt}"
        labels = {"training.sdc/job-uid": self.job.uid, "training.sdc/job-name": self.job.name}
        pod = self.cloud.kubernetes.create_pod(
            name, namespace=NAMESPACE, node=node, labels=labels, gpus=GPUS, service_account="training"
        )
        gpus = self.cloud.kubernetes.nodes[node]["metadata"]["annotations"][GPU_UUIDS_ANNOTATION].split(",")
        uid = pod["metadata"]["uid"]
        return [
            Place(node_rank * GPUS + i, i, node, instance_id_of(node), gpu, name, uid)
            for i, gpu in enumerate(gpus)
        ]

    def _finding(self, kind: FindingKind, rank: int, **more: Any) -> Finding:
        return Finding(
            kind=kind, rank=rank, place=self.places[rank], evidence="recorded for the test", **more
        )

    def _registered(self, attempt: int) -> bool:
        answer = self.cloud.client("dynamodb").query(
            TableName=self.stack.table_name("RegistrationTable"),
            KeyConditionExpression="job_uid = :u AND begins_with(attempt_node, :a)",
            ExpressionAttributeValues={":u": {"S": self.job.uid}, ":a": {"S": f"{attempt:06d}#"}},
        )
        return bool(answer["Count"] == len(self.nodes))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def _plain(value: dict[str, Any]) -> Any:
    kind, inner = next(iter(value.items()))
    if kind == "N":
        return float(inner) if "." in inner else int(inner)
    if kind == "L":
        return [_plain(v) for v in inner]
    if kind == "M":
        return {k: _plain(v) for k, v in inner.items()}
    return None if kind == "NULL" else inner
