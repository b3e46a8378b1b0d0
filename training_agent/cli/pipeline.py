"""What the pipeline is asked: incidents and decisions by the signed API, the story and history by AWS itself.

In: `Aws`, `Deployment`. Out: plain dictionaries as the API answers, and `story.Chapter`s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from boto3.dynamodb.types import TypeDeserializer

from ..contract import (
    INSTANCE_ID_PATTERN,
    NODE_NAME_PREFIX,
    console_url,
    gpu_subject,
    instance_subject,
    job_subject,
)
from .aws import Answer, Aws, explained
from .deployment import Deployment
from .failures import CannotAskError, NotFoundError, RefusedError
from .incident_id import checked
from .story import Chapter, tell

_GPU = re.compile(r"^GPU-[0-9A-Za-z-]{8,60}$")
MAX_SEQUENCE = 20  # the same alarm after an incident's end opens the next one
MAX_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class Told:
    """An incident's execution."""

    chapters: tuple[Chapter, ...] = ()
    console: str = ""  # where the AWS console shows it

    @property
    def name(self) -> str:
        """The execution's, which is the incident's id and a number."""
        return self.console.rpartition(":")[2]


class Pipeline:
    """One deployment, asked as the caller."""

    def __init__(self, aws: Aws, find: Callable[[], Deployment], api: str | None) -> None:
        self._aws = aws
        self._find = cache(find)  # deciding by `--api` alone reads no stack
        self._api = (api or "").rstrip("/")

    @property
    def api(self) -> str:
        """Base of the approval API."""
        return self._api or self._find().need("ReviewUrl").rstrip("/")

    def incidents(self) -> list[dict[str, Any]]:
        """Open incidents, oldest first."""
        body = _expect(self._aws.signed("GET", f"{self.api}/incidents"))
        return sorted(body.get("incidents", []), key=lambda i: str(i.get("opened_at")))

    def incident(self, incident_id: str) -> dict[str, Any]:
        """`{"incident": ..., "approval": ... or None}`.

        Raises:
            NotFoundError: there is none of that id.
        """
        checked(incident_id)
        answer = self._aws.signed("GET", f"{self.api}/incidents/{incident_id}")
        if answer.status == 404:
            raise NotFoundError(
                f"There is no incident {incident_id}.", "`sdc incidents` lists the open ones; check --stack."
            )
        return dict(_expect(answer))

    def decide(
        self, incident_id: str, answer: str, reason: str, asked: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Answer this question of the incident, as the caller: `asked` is `approval` of what was shown.

        Raises:
            RefusedError: decided before, expired, or not what was asked; nothing was changed.
        """
        body = {
            "decision": answer,
            "reason": reason,
            "question": asked["question"],
            "action": asked["action"],
        }
        if asked.get("instance_id"):
            body["instance_id"] = asked["instance_id"]
        got = self._aws.signed("POST", f"{self.api}/incidents/{incident_id}/decision", body)
        if got.status in (400, 404, 409, 410):
            said = got.body.get("error") or {
                409: "it was decided before",
                410: "nobody waits for it any more",
            }.get(got.status, "not accepted")
            raise RefusedError(
                f"Not decided: {said}. Nothing was changed.",
                f"`sdc show {incident_id}` says where it stands.",
            )
        return _expect(got)

    def release(self, incident_id: str, reason: str) -> Mapping[str, Any]:
        """Let go what an ended incident left cordoned and held, as the caller.

        Raises:
            RefusedError: it has not ended, or the kill switch or the mode forbids it; nothing was changed.
        """
        got = self._aws.signed("POST", f"{self.api}/incidents/{incident_id}/release", {"reason": reason})
        if got.status in (400, 404, 409):
            raise RefusedError(
                f"Not released: {got.body.get('error', 'not accepted')}. Nothing was changed.",
                f"`sdc show {incident_id}` says where it stands.",
            )
        return _expect(got)

    def told(self, incident_id: str) -> Told:
        """The incident's execution, step by step.

        Raises:
            CannotAskError: its history may not be read, or AWS keeps it no longer.
        """
        machine = self._find().need("StateMachineArn")
        prefix = machine.replace(":stateMachine:", ":execution:", 1)
        states = self._aws.client("stepfunctions")
        for sequence in range(1, MAX_SEQUENCE + 1):
            execution = f"{prefix}:{incident_id}-{sequence}"
            with explained("read the execution's history", "states:GetExecutionHistory"):
                try:
                    return Told(tell(_events(states, execution)), console_url(execution))
                except states.exceptions.ExecutionDoesNotExist:
                    continue
        raise CannotAskError(
            "No execution of it is found.",
            "An incident of a metric alone (DETAILS_MISSING) never had one; of the others AWS keeps the "
            "history for 90 days. The incident table has the end.",
        )

    def history(self, subject: str) -> list[dict[str, Any]]:
        """Incidents that named a node or a GPU, oldest first; across replacements a GPU keeps its UUID."""
        rows = self._query(f"history#{subject}")
        return [{name: str(i.get(name, "")) for name in ("at", "incident_id", "what")} for i in rows]

    def rows(self, incident_id: str) -> list[dict[str, Any]]:
        """All that the pipeline wrote down of one incident; empty when there is none of that id.

        Raises:
            NotFoundError: it is no id.
        """
        return self._query(f"incident#{checked(incident_id)}")

    def incidents_of(self, job_uid: str, delivery_keys: Iterable[str]) -> tuple[str, ...]:
        """Ids of the incidents that a job's alarms opened, in the order in which they were."""
        rows = self._query(f"history#{job_subject(job_uid)}") if job_uid else []
        for key in delivery_keys:
            rows += self._query(f"delivery#{key}")
        return tuple(dict.fromkeys(str(i["incident_id"]) for i in rows if i.get("incident_id")))

    def _query(self, partition: str) -> list[dict[str, Any]]:
        table = self._find().need("IncidentTableName")
        with explained(f"read table {table}", "dynamodb:Query"):
            pages = (
                self._aws.client("dynamodb")
                .get_paginator("query")
                .paginate(
                    TableName=table,
                    KeyConditionExpression="pk = :pk",
                    ExpressionAttributeValues={":pk": {"S": partition}},
                )
            )
            items = [item for page in pages for item in page["Items"]]
        return [{name: _plain(value) for name, value in item.items()} for item in items]

    def drill(self) -> str:
        """Start a fire drill; the uid of its job."""
        function = self._find().need("DrillFunctionName")
        with explained(f"call {function}", "lambda:InvokeFunction"):
            answer = self._aws.client("lambda").invoke(FunctionName=function, Payload=b"{}")
        text = answer["Payload"].read().decode()
        if answer.get("FunctionError"):
            raise CannotAskError(f"{function} failed: {text[:200]}", "Read its log group in CloudWatch.")
        return str(json.loads(text)["job_uid"])


def subject_of(name: str) -> str:
    """The history's key for a node name, an instance id or a GPU UUID.

    Raises:
        NotFoundError: it is none of them.
    """
    instance = name.removeprefix(NODE_NAME_PREFIX)
    if re.match(INSTANCE_ID_PATTERN, instance):
        return instance_subject(instance)
    if _GPU.match(name):
        return gpu_subject(name)
    raise NotFoundError(
        f"{name!r} is neither a node nor a GPU.", "Give hyperpod-i-..., i-..., or the UUID GPU-..."
    )


def _events(states: Any, execution: str) -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while len(found) < MAX_EVENTS:
        page = states.get_execution_history(executionArn=execution, maxResults=1000, **token)
        found += page["events"]
        if not page.get("nextToken"):
            break
        token = {"nextToken": page["nextToken"]}
    return found


def _expect(answer: Answer) -> Mapping[str, Any]:
    if answer.status != 200:
        raise CannotAskError(
            f"The approval API answered {answer.status}: {answer.body.get('error', 'no reason given')}.",
            "Try again in a minute; the decision, if there was one, is kept and delivered.",
        )
    return answer.body


_plain = TypeDeserializer().deserialize
