"""Drives the handlers as the queues, the state machine and a browser do."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from lambdas import approval_page, handlers, wiring
from lambdas.domain.incident import Incident
from lambdas.domain.times import moment
from lambdas.domain.world import ClusterNode, KubeNode, KubePod
from lambdas.steps.register import JOB_UID_LABEL
from tests.events import builder
from training_agent.contract import Alarm, Job, NodeRegistration

from .fakes import LAUNCHED, World

CONTEXT = SimpleNamespace(
    function_name="test",
    memory_limit_in_mb=256,
    invoked_function_arn="arn:aws:lambda:us-east-1:123456789012:function:test",
    aws_request_id="00000000-0000-0000-0000-000000000000",
    get_remaining_time_in_millis=lambda: 30000,
)
MAX_STEPS = 400


class Driver:
    """One world; `play` walks the state machine's flow, by outcomes alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.world = World()
        self.world.install(monkeypatch)
        self.path: list[str] = []
        self.waited_s = 0
        self.stories: list[str] = []
        for node, instance in enumerate(builder.INSTANCES):
            self.add_node(instance)
            self.add_pod(f"llama-tiny-{node}", f"pod-{node}", instance)

    # the world
    def add_node(self, instance: str) -> None:
        name = f"hyperpod-{instance}"
        self.world.cluster.members[instance] = ClusterNode(instance, "gpu", "Running", LAUNCHED)
        self.world.kubernetes.nodes[name] = KubeNode(name, name, "1", False, {}, {})

    def add_pod(self, name: str, uid: str, instance: str, job: Job = builder.JOB) -> None:
        labels = {JOB_UID_LABEL: job.uid}
        pod = KubePod(
            job.namespace,
            name,
            uid,
            f"hyperpod-{instance}",
            labels,
            leaving=False,
            service_account="training",
        )
        self.world.kubernetes.pods[job.namespace, name] = pod

    def setting(self, name: str, value: str) -> None:
        self.monkeypatch.setenv(name, value)
        wiring.needs.cache_clear()

    # queues
    def send(self, *bodies: str | dict[str, Any], to: Any = handlers.ingest) -> dict[str, Any]:
        records = [
            {"messageId": f"m{i}", "body": body if isinstance(body, str) else json.dumps(body)}
            for i, body in enumerate(bodies)
        ]
        answer: dict[str, Any] = to({"Records": records}, CONTEXT)
        return answer

    def register(self, *messages: NodeRegistration) -> None:
        messages = messages or tuple(builder.registration(n) for n in range(3))
        self.send(*map(builder.event, messages), to=handlers.register)

    def alarm(self, alarm: Alarm) -> list[Incident]:
        """Deliver it; the incidents that it opened, in the order of the executions."""
        before = set(self.world.incidents.rows)
        self.send(builder.event(alarm))
        return [i for i in self.world.incidents.rows.values() if i.id not in before]

    def job_returns(
        self, attempt: int = 2, resumed_from: int | None = 20, instance: str | None = None
    ) -> None:
        """All pods start again, on `instance` in place of the suspect's node when given."""
        instances = list(builder.INSTANCES)
        if instance is not None:
            instances[1] = instance
        job = replace(builder.JOB, attempt=attempt)
        seats = builder.places(tuple(instances))
        for node, name in enumerate(instances):
            if name not in self.world.cluster.members:
                continue
            self.add_pod(f"llama-tiny-{node}", f"pod-{node}", name)
            self.register(builder.registration(node, seats, job, resumed_from_step=resumed_from))

    # the state machine
    def step(self, name: str, incident: Incident, **payload: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(handlers, name)({"incident_id": incident.id, **payload}, CONTEXT)
        self.path.append(name)
        self.stories.append(str(answer["story"]))
        self.waited_s += answer["wait_seconds"] if answer["outcome"] in ("waiting", "busy") else 0
        assert set(answer) == {
            "incident_id",
            "outcome",
            "story",
            "wait_seconds",
            "approval_timeout_seconds",
            "patience_seconds",
        }
        return answer

    def killed(self, name: str, incident: Incident, port: object, call: str) -> None:
        """The step's function dies as it makes this call."""

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        with self.monkeypatch.context() as once:
            once.setattr(port, call, dies)
            with pytest.raises(KeyboardInterrupt):
                self.step(name, incident)

    def until_asked(self, incident: Incident) -> str:
        """locate ... decide, then the question; returns the link."""
        return self.until_asked_from(incident, "locate")

    def until_asked_from(self, incident: Incident, state: str) -> str:
        """The same from a later state; each question has a token of its own."""
        assert self.play(incident, state, stop="request_approval") == "request_approval"
        return self.ask(incident)

    def ask(self, incident: Incident, token: str = "") -> str:
        token = token or f"token-{incident.id}"
        self.world.callback.waiting.add(token)
        sent = len(self.world.mail.sent)
        self.step("request_approval", incident, task_token=token)
        return self.links()[-1] if len(self.world.mail.sent) > sent else ""

    def links(self) -> list[str]:
        """All that were mailed so far."""
        bodies = "\n".join(body for _, _, body in self.world.mail.sent)
        return re.findall(r"^(https://\S+/review/\S+)$", bodies, re.M)

    def play(self, incident: Incident, state: str, stop: str = "") -> str:
        """Follow the outcomes from `state` to the end or to `stop`; returns the last state's name."""
        seen: dict[str, Any] = {}
        for _ in range(MAX_STEPS):
            if state in (stop, "closed", "joined"):
                return state
            self.on_state(state)
            if state == "tell_human":
                answer = self.step("request_approval", incident, notice="human", seen=seen)
            elif state == "approval_timed_out":
                self.world.clock.at = max(self.world.clock.at, self.patience_ends(incident))
                answer = self.step("request_approval", incident, timed_out=True)
            elif state == "approval_answered":
                answer = self.step("request_approval", incident, answered=True)
            else:
                answer = self.step(state, incident)
            seen = answer
            state = FLOW[state].get(answer["outcome"], "tell_human")
        raise AssertionError(f"no end after {MAX_STEPS} steps: {self.path[-5:]}")

    def patience_ends(self, incident: Incident) -> datetime:
        """When the question of `incident` expires."""
        asked = self.world.incidents.get(incident.id).approval_id
        row = self.world.approvals.rows.get(asked or "")
        return moment(row.expires_at) if row is not None else self.world.clock.at

    def on_state(self, state: str) -> None:
        """Hook: the world moves while the machine walks."""

    # the browser
    def browse(
        self, link: str, method: str = "GET", form: dict[str, str] | None = None, **headers: str
    ) -> Any:
        secret = link.rsplit("/", 1)[-1]
        given = {"host": "review.example.com", "sec-fetch-site": "same-origin", **headers}
        event = {
            "version": "2.0",
            "rawPath": f"/review/{secret}",
            "pathParameters": {"secret": secret},
            "headers": {k: v for k, v in given.items() if v},
            "requestContext": {"http": {"method": method}, "domainName": "review.example.com"},
            "isBase64Encoded": form is not None,
        }
        if form is not None:
            event["body"] = base64.b64encode(urlencode(form).encode()).decode()
        page = approval_page.decide if method == "POST" else approval_page.show
        return page(event, CONTEXT)

    def answer(self, link: str, decision: str = "approve", **changes: str) -> Any:
        form = {
            "decision": decision,
            "typed": builder.INSTANCES[1][-6:],
            "reason": "seen the evidence",
            **changes,
        }
        return self.browse(link, "POST", form)


ANSWERS = {
    "approved": "replace", "check_approved": "confirm", "released": "resume", "expired": "resume",
    "rejected_keep": "resume", "rejected_release": "resume",
}  # fmt: skip
FLOW: dict[str, dict[str, str]] = {
    "locate": {"located": "contain", "joined": "joined", "waiting": "locate"},
    "contain": {"contained": "decide"},
    "decide": {"confirm": "confirm", "approve": "request_approval", "release": "resume"},
    "confirm": {"waiting": "confirm", "confirmed": "decide"},
    "approval_timed_out": {**ANSWERS, "reminded": "request_approval"},
    "approval_answered": ANSWERS,
    "replace": {"replaced": "verify", "busy": "replace", "drilled": "resume", "reopened": "contain"},
    "verify": {"waiting": "verify", "verified": "resume"},
    "resume": {"waiting": "resume", "closed": "closed", "reopened": "contain", "halted": "tell_human"},
    "tell_human": {"told": "resume"},
}  # fmt: skip
