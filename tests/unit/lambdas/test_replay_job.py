"""The Job that replays a capsule on the cordoned node, in mail, page and signed route."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

import pytest
import yaml

from lambdas.domain import commands, mails
from lambdas.domain.incident import State
from lambdas.domain.replay_job import replay_job
from lambdas.review import review
from tests.unit.lambdas.questions import NODE, approval_of, incident_of
from training_agent.contract import Alarm, CapsuleRef

URL = "https://abcde12345.execute-api.us-east-1.amazonaws.com"
OWN = CapsuleRef(3, "/shared/job/capsules/step-30-rank-3-attempt-1-9f86d081.sdc", "9f" * 32, 4096)
OTHER = CapsuleRef(0, "/shared/job/capsules/other.sdc", "1a" * 32, 4096)


def manifest(lines: tuple[str, ...]) -> Any:
    assert lines[0] == "kubectl apply -f - <<'MANIFEST'" and lines[-1] == "MANIFEST"
    return yaml.safe_load("\n".join(lines[1:-1]))


def question(*capsules: CapsuleRef, **changes: Any) -> Any:
    approval = approval_of(incident_of("V2"))
    assert approval.alarm is not None
    return replace(approval, alarm=replace(approval.alarm, capsules=capsules), **changes)


def test_it_is_pinned_to_the_cordoned_node_and_brings_its_receipt_back() -> None:
    job = manifest(commands.job_of(question(OTHER, OWN)))
    assert job["metadata"] == {"name": "sdc-replay-3f1c9a0b7d2e4685", "namespace": "training"}
    pod = job["spec"]["template"]["spec"]
    assert (pod["nodeName"], pod["restartPolicy"], job["spec"]["backoffLimit"]) == (NODE, "Never", 0)
    (container,) = pod["containers"]
    assert container["command"] == ["sdc", "replay"]
    assert container["args"] == [
        OWN.path, "--model", "MODULE:FUNCTION", "--repeat", "20",
        "--incident", "3f1c9a0b7d2e4685", "--publish",
    ]  # fmt: skip
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert (env["SDC_CLUSTER"], env["CUDA_VISIBLE_DEVICES"]) == ("demo", "GPU-e5f60002-1")


def test_mail_page_and_command_line_show_it() -> None:
    approval = question(OWN)
    lines = commands.job_of(approval)
    body = mails.approval_mail(incident_of("V2"), approval, ("", ""), URL)[1]
    assert "\n".join(lines) in body
    assert "\n".join(lines) in html.unescape(review(approval).body)
    closing = State.HANDED_TO_HUMAN
    told = mails.notice_mail(incident_of("V2"), (), "why", closing, issued=False, alarm=approval.alarm)[1]
    assert "\n".join(lines) in told


@pytest.mark.parametrize(
    "changes", [{"synthetic": True}, {"node": ""}, {"alarm": None}, {"incident_id": "../x"}], ids=str
)
def test_there_is_none_without_a_node_a_capsule_or_an_incident(changes: dict[str, Any]) -> None:
    assert commands.job_of(question(OWN)) and not commands.job_of(question())
    assert commands.job_of(replace(question(OWN), **changes)) == ()


def test_what_came_over_the_wire_stays_inside_its_string() -> None:
    evil = replace(OWN, path="/x\nMANIFEST\nrm -rf /\n: }] # \"'$(id)`\u2028")
    alarm: Alarm = question(evil).alarm
    alarm = replace(alarm, cluster="c\nMANIFEST", job=replace(alarm.job, namespace="n: {a"))
    lines = replay_job("3f1c9a0b7d2e4685", NODE, (3,), alarm)
    assert lines.count("MANIFEST") == 1
    job = manifest(lines)
    assert job["metadata"]["namespace"] == "n: {a"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][0].startswith("/x MANIFEST rm -rf /")


def test_a_hash_that_is_none_is_passed_over() -> None:
    assert commands.job_of(question(replace(OWN, sha256="short"))) == ()


def test_a_path_that_would_be_an_option_is_passed_over() -> None:
    option = replace(OWN, path="--model=somewhere:else")
    assert commands.job_of(question(option)) == ()
    assert OTHER.path in "\n".join(commands.job_of(question(option, OTHER)))
