"""One local cloud for all workflow tests, made from the synthesized template; scenarios take nodes of their
own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.cloud import LocalCloud
from infra.synth import synthesize
from tests.deploy import recording
from tests.workflow.scenario import APPROVER, Scenario

CONTEXT = {
    "mode": "replace",
    "approvers": [APPROVER],
    "eks_access_entries": True,
    "deep_check_enabled": True,
    "replacements_per_day": 25,
    "replacements_per_hour": 25,
    "replacement_budget_percent": 100,
}
NODES = 160  # a scenario takes three or four and gives none back; more than one page of ListClusterNodes
TIME_SCALE = 1 / 2000  # a replacement takes 0.75 s, a deep check 2.7 s, a Wait of 60 s 0.03 s


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The synthesized template, parsed; tests that take something out work on a copy."""
    path: Path = synthesize(tmp_path_factory.mktemp("assembly"), CONTEXT)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture(scope="package")  # not longer: other tests of the same process use moto for themselves
def cloud(template: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """The running local cloud."""
    work_dir = tmp_path_factory.mktemp("cloud")
    with LocalCloud(
        template, nodes=NODES, gpus_per_node=2, time_scale=TIME_SCALE, work_dir=work_dir
    ) as running:
        warm_up = threading.Thread(target=running.runtime.warm_up)
        warm_up.start()  # while the first scenario walks its first steps
        yield running
        warm_up.join()
    recording.compare(work_dir)


@pytest.fixture
def control(cloud: LocalCloud) -> Iterator[Callable[[str, Any], None]]:
    """Set a row of the control table; the default is back after the test."""
    table, dynamodb = cloud.stack.table_name("ControlTable"), cloud.client("dynamodb")
    written: list[str] = []

    def write(key: str, value: Any) -> None:
        written.append(key)
        wire = {"BOOL": value} if isinstance(value, bool) else {"S": value}
        dynamodb.put_item(TableName=table, Item={"key": {"S": key}, "value": wire})

    yield write
    for key in written:
        dynamodb.delete_item(TableName=table, Key={"key": {"S": key}})


@pytest.fixture
def scenario(cloud: LocalCloud) -> Scenario:
    """A job on three nodes that no other test uses."""
    return Scenario(cloud)
