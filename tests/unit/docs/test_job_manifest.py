"""The manifests that users copy name the agent's variables as the agent reads them."""

from __future__ import annotations

import yaml

from docs.render import README, ROOT
from training_agent.contract import Env

JOB = ROOT / "examples" / "hyperpod" / "job.yaml"
NOT_SET_BY_PEOPLE = {Env.EXIT_CODE_DIR, Env.PREFLIGHT, Env.BISECT}  # by commands
OF_AWS = {"AWS_REGION"}


def test_every_variable_of_the_example_job_is_one_that_the_agent_reads() -> None:
    job = yaml.safe_load(JOB.read_text())
    (replicas,) = job["spec"]["replicaSpecs"]
    (container,) = replicas["template"]["spec"]["containers"]
    named = {e["name"] for e in container["env"]}
    assert named - OF_AWS <= {e.value for e in Env}
    assert {Env.NODE_NAME, Env.CLUSTER, Env.JOB_UID, Env.EVENT_BUS, Env.SHARED_DIR} <= named


def test_every_variable_that_people_may_set_stands_in_the_readme() -> None:
    text = README.read_text()
    ours = [e for e in Env if e.value.startswith("SDC_") and e not in NOT_SET_BY_PEOPLE]
    assert [e.value for e in ours if f"`{e.value}`" not in text] == []
