"""People around a plant: approvers behind mailed links and signed requests, scanners, hands on kubectl.

In: a world with its wires and its judge. Out: what each of them does; `plant.py` adds the machinery.
"""

from __future__ import annotations

import contextlib
import json
import re

from lambdas import approval_api, handlers
from lambdas.domain.approval import Answer, Approval, hash_of
from lambdas.domain.errors import PipelineError
from lambdas.domain.incident import Incident
from lambdas.domain.times import stamp
from tests.events import builder
from tests.unit.lambdas.drive import CONTEXT, Driver
from training_agent.contract import TargetedAuditResult

from .machine import Killed
from .watch import Watch
from .wires import Wires


class People(Driver):
    """Everybody who is no program."""

    watch: Watch
    wires: Wires

    def link(self, incident_id: str) -> str | None:
        """The newest link that was mailed for the incident."""
        for _, _, body in reversed(self.world.mail.sent):
            if f"Incident: {incident_id}" in body:
                found = re.search(r"^(https?://\S+/review/\S+)$", body, re.M)
                if found:
                    return found[1]
        return None

    def human(self, incident_id: str, decision: str, **form: str) -> int:
        """A person opens the newest link and answers; the HTTP status."""
        link = self.link(incident_id)
        if link is None:
            return 0
        row = self.row(link)
        typed = {"typed": row.typed_value if row else "", "reason": "seen the evidence"}
        if row is not None and row.state.value == "PENDING":
            self.watch.consent[row.approval_id] = Answer(decision)
        self.wires.enter("approval_decide", incident_id)
        try:
            answer = self.browse(link, "POST", {"decision": decision, **typed, **form})
        except Killed:
            return 502
        return int(answer["statusCode"])

    def commands(self, incident_id: str) -> list[tuple[str, str]]:
        """(question, action) as the incident's mails print them in their command lines, oldest first."""
        found: dict[tuple[str, str], None] = {}
        for _, _, body in self.world.mail.sent:
            named = re.search(
                rf"^sdc approve {incident_id} \\\n(?:  --.*\\\n)*?  --question (\S+)", body, re.M
            )
            if named:
                action = re.search(r"--action (\w+)", body)
                found[named[1], action[1] if action else ""] = None
        return list(found)

    def signed(self, incident_id: str, decision: str, mail: int = -1) -> int:
        """A caller whom IAM knows sends the command of one mail; the HTTP status, 0 without a mail.

        He consents to the question of the mail that he has read, and to no other one.
        """
        commands = self.commands(incident_id)
        if not commands:
            return 0
        question, action = commands[mail % len(commands) if mail >= 0 else mail]
        row = self.world.approvals.rows.get(question)
        if row is not None and row.state.value == "PENDING":
            self.watch.consent[question] = Answer(decision)
        body = {"decision": decision, "reason": "seen it", "question": question, "action": action}
        return self.request("POST /incidents/{incident_id}/decision", incident_id, body)

    def signed_without_a_question(self, incident_id: str, decision: str) -> int:
        """A body that names no question is a consent to none; the HTTP status."""
        body = {"decision": decision, "reason": "seen it"}
        return self.request("POST /incidents/{incident_id}/decision", incident_id, body)

    def request(self, route: str, incident_id: str, body: dict[str, str]) -> int:
        """One signed request; the HTTP status."""
        event = {
            "routeKey": route,
            "pathParameters": {"incident_id": incident_id},
            "requestContext": {"authorizer": {"iam": {"userArn": "arn:aws:iam::123456789012:user/alex"}}},
            "body": json.dumps(body),
        }
        self.wires.enter("approval_api", incident_id)
        try:
            return int(approval_api.handle(event, CONTEXT)["statusCode"])
        except Killed:
            return 502

    def row(self, link: str) -> Approval | None:
        """The approval that a link leads to."""
        found = self.world.approvals.links.get(hash_of(link.rsplit("/", 1)[-1]))
        return self.world.approvals.rows.get(found.approval_id) if found else None

    def scan(self, incident_id: str) -> None:
        """A mail scanner opens everything."""
        link = self.link(incident_id)
        for method in ("GET", "HEAD", "OPTIONS") if link else ():
            self.wires.enter("approval_show", incident_id)
            with contextlib.suppress(Killed):
                self.browse(link or "", method)

    def cordon_by_hand(self, instance_id: str, *, on: bool) -> None:
        name = f"hyperpod-{instance_id}"
        node = self.world.kubernetes.nodes.get(name)
        if node is not None and node.unschedulable is not on:
            self.world.kubernetes.change(name, unschedulable=on)
            self.watch.cordoner[name] = "human" if on else ""

    def redrive(self, incident_id: str) -> None:
        """An operator lets an ended incident's states run once more, each of them."""
        for function in ("locate", "contain", "decide", "confirm", "replace", "verify", "resume"):
            self.wires.enter(function, incident_id)
            with contextlib.suppress(Killed, PipelineError):
                getattr(handlers, function)({"incident_id": incident_id}, CONTEXT)

    def audit_result(self, incident: Incident, *, passed: bool) -> None:
        """Somebody replays a capsule on the incident's node; its receipt comes over the bus."""
        result = TargetedAuditResult(
            cluster=builder.CLUSTER,
            incident_id=incident.id,
            instance_id=incident.instance_id or "",
            gpu_uuid=None,
            capsule_hash="9" * 64,
            passed=passed,
            time=stamp(self.world.clock.at),
        )
        self.wires.enter("ingest")
        with contextlib.suppress(Killed):
            self.send(builder.event(result))
