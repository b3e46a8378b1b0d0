"""The job manifest: what the agent reads is set, and the operator's rules do not work against it."""

from __future__ import annotations

import json
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from infra.bundling import ROOT
from infra.config import read_settings
from infra.synth import read_context
from training_agent.contract.names import Env

FOLDER = ROOT / "examples" / "hyperpod"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "job.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["replicaSpecs"][0]["template"]
    return found


def environment(pod: dict[str, Any]) -> dict[str, str]:
    variables = pod["spec"]["containers"][0]["env"]
    return {v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"] for v in variables}


def test_the_pod_is_one_that_kubernetes_takes(pod: dict[str, Any]) -> None:
    whole = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", **pod["metadata"]},
        "spec": pod["spec"],
    }
    kubernetes_validate.validate(whole, "1.31", strict=True)


def test_the_agent_is_told_where_it_stands(pod: dict[str, Any]) -> None:
    told = environment(pod)
    assert told["NODE_NAME"] == "spec.nodeName"
    assert told["POD_UID"] == "metadata.uid"
    assert told["SDC_JOB_UID"] == "metadata.labels['training.sdc/job-uid']"
    ours = {name for name in told if name.startswith("SDC_")}
    assert ours <= {variable.value for variable in Env}
    assert {"SDC_CLUSTER", "SDC_EVENT_BUS", "SDC_QUARANTINE_TABLE", "SDC_SHARED_DIR"} <= ours


def test_the_pods_carry_the_label_by_which_they_are_evicted(pod: dict[str, Any]) -> None:
    assert {"training.sdc/job-uid", "training.sdc/job-name"} <= pod["metadata"]["labels"].keys()


def test_the_pods_run_as_the_account_that_may_register(job: dict[str, Any], pod: dict[str, Any]) -> None:
    account = f"{job['metadata']['namespace']}/{pod['spec']['serviceAccountName']}"
    assert account in read_settings(read_context()).training_service_accounts


def test_the_shared_folder_is_mounted_from_a_claim(pod: dict[str, Any]) -> None:
    mounts = {m["mountPath"]: m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    (folder,) = [path for path in mounts if environment(pod)["SDC_SHARED_DIR"].startswith(path + "/")]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounts[folder]]


def test_no_rule_faults_on_a_line_and_a_holding_rank_is_no_hang(job: dict[str, Any]) -> None:
    rules = job["spec"]["runPolicy"]["logMonitoringConfiguration"]
    assert not [rule for rule in rules if rule.get("faultOnMatch")]
    held = "[default3]:" + json.dumps({"sdc": "holding", "rank": 3})
    assert [rule for rule in rules if re.fullmatch(rule["logPattern"], held)] == rules


def test_the_restart_budget_outlives_an_afternoon(job: dict[str, Any]) -> None:
    policy = job["spec"]["runPolicy"]
    assert policy["restartPolicy"]["numRestartBeforeFullJobRestart"] > 3
    assert policy["jobMaxRetryCount"] >= policy["restartPolicy"]["numRestartBeforeFullJobRestart"]


def test_the_image_keeps_its_torch() -> None:
    text = (FOLDER / "Dockerfile.snippet").read_text()
    assert "--no-deps /tmp/training_agent" in text
    assert "torch" not in "".join(line for line in text.splitlines() if "pip install" in line)


def test_pods_may_assume_their_role_by_pod_identity() -> None:
    (statement,) = json.loads((FOLDER / "trust-pod-identity.json").read_text())["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
