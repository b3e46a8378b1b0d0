"""`make deploy-local`: the CDK command line deploys the stack into a local AWS; an alarm reaches the
approval.

In: `npm ci`'s cdk, a Python with ministack. Out: exit code 0 when CloudFormation made every resource and the
execution waits for a human, 1 otherwise, with what was seen. It proves resources and the path, not Retry and
Catch. HyperPod, EKS and Kubernetes are the emulator's fakes, which the deployed functions reach by their
endpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3

from emulator.cloud import OWN_GROUPS, LocalCloud
from infra.bundling import ROOT
from infra.synth import synthesize
from tests.deploy.ministack import ACCOUNT, Ministack
from tests.workflow.scenario import APPROVER, Scenario
from training_agent.contract import EVENT_SOURCE, DetailType, encode

REGION = "us-east-1"
CDK = ROOT / "node_modules" / ".bin" / "cdk"
CONTEXT = {
    "cluster_arn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:cluster/demo00000000",
    "approvers": APPROVER,
    "mode": "replace",
    "architecture": {"arm64": "arm64", "aarch64": "arm64"}.get(platform.machine(), "x86_64"),
    "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
}
PLAYED = {"mode": "replace", "approvers": APPROVER}  # the emulator's own stack lies idle
UNKNOWN_THERE = {"AWS::Events::Archive", "AWS::Events::EventBusPolicy"}  # to ministack 1.5.33
WAIT_S = 240.0  # functions start cold, on a machine that may be busy


class Deployed:
    """The stack as CloudFormation made it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        found = self.client("cloudformation").describe_stack_resources(StackName="TrainingSdc-demo")
        self.ids = {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in found["StackResources"]}
        self.statuses = {r["LogicalResourceId"]: r["ResourceStatus"] for r in found["StackResources"]}

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self._environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=self._environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self._environment["AWS_SECRET_ACCESS_KEY"],
        )


class DeployedScenario(Scenario):
    """A job whose events go to the deployed bus."""

    def __init__(self, cloud: LocalCloud, deployed: Deployed) -> None:
        super().__init__(cloud)
        self._deployed = deployed

    def put(self, kind: DetailType, detail: str) -> None:
        entry = {
            "Source": EVENT_SOURCE,
            "DetailType": kind.value,
            "Detail": detail,
            "EventBusName": self._deployed.ids["SdcBus"],
        }
        answer = self._deployed.client("events").put_events(Entries=[entry])
        assert answer["FailedEntryCount"] == 0, answer

    @property
    def registered(self) -> bool:
        """All nodes are verified and stored."""
        rows = self._deployed.client("dynamodb").scan(TableName=self._deployed.ids["RegistrationTable"])
        return bool(rows["Count"] >= len(self.nodes))


def cdk(environment: dict[str, str], *arguments: str) -> None:
    """Run the CDK command line; its output is ours."""
    command = [str(CDK), *arguments, "--ci", "--no-color", "--progress", "events"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=570)


def until(probe: Callable[[], Any], what: str) -> Any:
    """First true answer of `probe`."""
    end = time.monotonic() + WAIT_S
    while not (found := probe()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {WAIT_S:g} s")
        time.sleep(0.5)
    return found


def waiting_execution(deployed: Deployed) -> dict[str, Any] | None:
    """The execution that stands in request_approval with a pending row in the approval table."""
    states = deployed.client("stepfunctions")
    for execution in states.list_executions(stateMachineArn=deployed.ids["IncidentWorkflow"])["executions"]:
        history = states.get_execution_history(executionArn=execution["executionArn"])["events"]
        entered = [e["stateEnteredEventDetails"]["name"] for e in history if "stateEnteredEventDetails" in e]
        if execution["status"] != "RUNNING":
            raise AssertionError(f"the execution ended as {execution['status']} after {entered}")
        rows = deployed.client("dynamodb").scan(TableName=deployed.ids["ApprovalTable"])["Items"]
        pending = [r for r in rows if r.get("state", {}).get("S") == "PENDING"]
        if entered and entered[-1] == "request_approval" and pending:
            return {"states": entered, "approvals": len(pending)}
    return None


def inherited() -> dict[str, str]:
    """What the CDK command line needs of this process's environment."""
    return {k: v for k, v in os.environ.items() if k in ("PATH", "HOME")} | {"CI": "true"}


def assembly(folder: Path) -> tuple[Path, list[str]]:
    """The synthesized assembly with its bundle, without what ministack cannot make; and the names of that."""
    template = synthesize(folder, {**CONTEXT, "bundle": True})
    content = json.loads(template.read_text())
    unknown = sorted(name for name, item in content["Resources"].items() if item["Type"] in UNKNOWN_THERE)
    for name in unknown:
        del content["Resources"][name]
    template.write_text(json.dumps(content))
    return folder, unknown


def prove(cloud: LocalCloud, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Bootstrap, deploy, send, wait."""
    app, left_out = assembly(folder / "deploy")
    cdk(environment, "bootstrap", f"aws://{ACCOUNT}/{REGION}", "--app", str(app))
    cdk(environment, "deploy", "--require-approval", "never", "--app", str(app))
    deployed = Deployed(environment)
    scenario = DeployedScenario(cloud, deployed)
    scenario.register(wait=False)
    until(lambda: scenario.registered, "the registration of the job's nodes")
    scenario.put(DetailType.ALARM, encode(scenario.alarm(scenario.culprit())))
    seen: dict[str, Any] = until(lambda: waiting_execution(deployed), "a waiting approval")
    return {"resources": len(deployed.ids), "left_out": left_out, **seen}


def main() -> int:
    """0 when the approval waits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ministack-python", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="keep the work folder, with ministack.log, here")
    arguments = parser.parse_args()
    python = arguments.ministack_python
    started = time.monotonic()
    with TemporaryDirectory(prefix="deploy-local-") as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with LocalCloud(synthesize(folder / "local", PLAYED), nodes=4, gpus_per_node=2) as cloud:
            theirs = {k: v for k, v in cloud.environment().items() if k.startswith("AWS_") and "URL" not in k}
            cloud.kubernetes.let_in(ACCOUNT, OWN_GROUPS)  # the key id of all functions there
            played = {f"AWS_ENDPOINT_URL_{service}": cloud.endpoint_url for service in ("SAGEMAKER", "EKS")}
            with Ministack(python, folder, {**theirs, **played}) as aws:
                seen = prove(cloud, folder, {**inherited(), **theirs, **aws.endpoints()})
    sys.stdout.write(json.dumps({**seen, "seconds": round(time.monotonic() - started)}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
