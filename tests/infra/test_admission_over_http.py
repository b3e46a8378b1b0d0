"""The same patches over HTTP, under the identities' own tokens: RBAC and policy judge, and what was denied
changes nothing. Then `kubectl` with a cordoner's token.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from emulator.kubernetes_server import LocalKubernetes
from emulator.names import SECRET_KEY
from emulator.timers import Timers
from infra.eks_access import CORDONERS, LABEL_REPLACERS, READERS
from lambdas.adapters import aws
from lambdas.adapters.eks import bearer_token
from tests.infra.patches import (
    BY,
    CORDON,
    FORBIDDEN,
    FORGED,
    FORGED_LABELS,
    HEALTH,
    RELEASE,
    REPLACE,
    Json,
    change,
    cordoned,
    documents,
    node,
)
from tests.patience import PATIENCE_S

CLUSTER, NODE, POD = "demo-eks", "hyperpod-i-0123456789abcdef0", "llama-0"
KEYS = {CORDONERS: "AKIACORDONER", LABEL_REPLACERS: "AKIALABELLER", READERS: "AKIAREADER"}
MERGE = "application/merge-patch+json"
WITHOUT_CEL = pytest.mark.skipif(sys.version_info < (3, 11), reason="no CEL evaluator for Python 3.10")


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKubernetes]:
    """An API server with infra/eks_access applied, and one access entry for each group."""
    timers = Timers(1 / 1000)
    made = LocalKubernetes(
        timers, cluster=CLUSTER, secret_key=SECRET_KEY, folder=tmp_path_factory.mktemp("k8s")
    )
    made.access.apply([*documents("rbac.yaml"), *documents("admission.yaml")])
    for group, key in KEYS.items():
        made.let_in(key, [group])
    yield made
    made.close()
    timers.close()


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A bearer token for each group, made as the functions make theirs."""
    found = {}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    for group, key in KEYS.items():
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        aws.client.cache_clear()
        found[group] = bearer_token(CLUSTER)
    aws.client.cache_clear()
    return found


@pytest.fixture
def http(kubernetes: LocalKubernetes, tmp_path: Path) -> Iterator[urllib3.PoolManager]:
    kubernetes.kubeconfig(tmp_path / "config")
    with urllib3.PoolManager(ca_certs=str(tmp_path / "config.ca.pem")) as pool:
        yield pool


class Client:
    """One node, patched under one group's token."""

    def __init__(
        self, kubernetes: LocalKubernetes, http: urllib3.PoolManager, tokens: dict[str, str]
    ) -> None:
        self.kubernetes, self._http, self._tokens = kubernetes, http, tokens

    def stands(self, before: Json) -> None:
        """The node is this one now."""
        name = before["metadata"]["name"]
        if name not in self.kubernetes.nodes:
            self.kubernetes.add_node(name, labels={}, annotations={}, gpus=2, provider_id="aws:///x")
        own = self.kubernetes.nodes[name]
        meta = {**own["metadata"], "labels": {}, "annotations": {}, **before["metadata"]}
        self.kubernetes.put_node({**own, "metadata": meta, "spec": json.loads(json.dumps(before["spec"]))})

    def node(self) -> Json:
        found: Json = json.loads(json.dumps(self.kubernetes.nodes[NODE]))
        return found

    def send(
        self, group: str, patch: Json, content_type: str = MERGE, path: str = NODE, **query: str
    ) -> tuple[int, str]:
        """Status and the API server's sentence."""
        answer = self._http.request(
            "PATCH",
            f"{self.kubernetes.url}/api/v1/nodes/{path}"
            + "?" * bool(query)
            + "&".join(map("=".join, query.items())),
            body=json.dumps(patch),
            headers={"Authorization": f"Bearer {self._tokens[group]}", "Content-Type": content_type},
        )
        return answer.status, str(answer.json().get("message", ""))


@pytest.fixture
def client(kubernetes: LocalKubernetes, http: urllib3.PoolManager, tokens: dict[str, str]) -> Client:
    return Client(kubernetes, http, tokens)


def patch_between(before: Any, after: Any) -> Any:
    """The RFC 7386 patch that makes `after` of `before`."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    gone = dict.fromkeys(set(before) - set(after))
    changed = {k: patch_between(before.get(k), v) for k, v in after.items() if before.get(k) != v}
    return {**gone, **changed}


def without_version(patch: Json) -> Json:
    """As recorded, but for the version of the recorder's node."""
    meta = {k: v for k, v in patch.get("metadata", {}).items() if k != "resourceVersion"}
    return {**patch, "metadata": meta}


@pytest.mark.parametrize("content_type", [MERGE, "application/strategic-merge-patch+json"])
def test_what_the_pipeline_sends_passes_and_is_stored(client: Client, content_type: str) -> None:
    client.stands(node())
    assert client.send(CORDONERS, without_version(CORDON), content_type)[0] == 200
    assert client.node()["spec"]["unschedulable"] is True
    assert client.node()["metadata"]["annotations"][BY] == "inc-1"
    client.stands(cordoned())
    assert client.send(LABEL_REPLACERS, without_version(REPLACE), content_type)[0] == 200
    assert client.node()["metadata"]["labels"][HEALTH] == "UnschedulablePendingReplacement"
    client.stands(cordoned())
    assert client.send(CORDONERS, without_version(RELEASE), content_type)[0] == 200
    assert "unschedulable" not in client.node()["spec"]


@pytest.mark.parametrize("dry", [{"dryRun": "All"}, {}])
def test_the_label_that_is_asked_for_to_be_denied_is_denied(client: Client, dry: dict[str, str]) -> None:
    client.stands(cordoned())
    before = client.node()
    status, message = client.send(CORDONERS, FORBIDDEN, **dry)
    assert status == 422 and "training-sdc-cordoners" in message and "labels" in message
    assert client.node() == before


@WITHOUT_CEL
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_patch_is_refused_and_changes_nothing(client: Client, name: str) -> None:
    wanted, edit, reason = FORGED[name]
    client.stands(wanted)
    before = client.node()
    patch = without_version(patch_between(before, change(before, edit)))
    status, message = client.send(CORDONERS, patch)
    assert (status, reason in message) == (422, True), message
    assert client.node() == before


@WITHOUT_CEL
@pytest.mark.parametrize(("before", "labels", "reason"), FORGED_LABELS)
def test_a_forged_label_is_refused_and_changes_nothing(
    client: Client, before: Json, labels: dict[str, str], reason: str
) -> None:
    client.stands(before)
    stood = client.node()
    status, message = client.send(LABEL_REPLACERS, {"metadata": {"labels": labels}})
    assert (status, reason in message) == (422, True), message
    assert client.node() == stood


def test_a_reader_patches_nothing_and_a_cordoner_no_status(client: Client) -> None:
    client.stands(node())
    assert client.send(READERS, without_version(CORDON))[0] == 403
    assert client.send(CORDONERS, {"status": {"phase": "x"}}, path=f"{NODE}/status")[0] in (
        403,
        404,
        405,
        422,
    )
    assert client.node()["spec"].get("unschedulable") is None


# kubectl, as a cordoner


class Kubectl:
    """The real kubectl with a cordoner's kubeconfig."""

    def __init__(self, kubernetes: LocalKubernetes, token: str, folder: Path) -> None:
        path = kubernetes.kubeconfig(folder / "cordoner")
        config = json.loads(path.read_text())
        config["users"][0]["user"] = {"token": token}
        path.write_text(json.dumps(config))
        self._config = str(path)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", self._config, *arguments],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def kubectl(kubernetes: LocalKubernetes, tokens: dict[str, str], tmp_path: Path) -> Kubectl:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here; the tests above send the same patches without it")
    return Kubectl(kubernetes, tokens[CORDONERS], tmp_path)


@WITHOUT_CEL
def test_kubectl_cordons_for_an_incident_only_and_never_labels(client: Client, kubectl: Kubectl) -> None:
    client.stands(node())
    assert "a cordon of the pipeline carries its incident" in kubectl("cordon", NODE)[1]  # exits with 0
    assert "unschedulable" not in client.node()["spec"]
    code, text = kubectl("label", "node", NODE, "--overwrite", f"{HEALTH}=UnschedulablePendingReplacement")
    assert code and "may not change a node's labels" in text
    assert kubectl("annotate", "node", NODE, f"{BY}=inc-1")[0] == 0
    assert kubectl("cordon", NODE) == (0, f"node/{NODE} cordoned\n")
    assert client.node()["spec"]["unschedulable"] is True
    assert kubectl("uncordon", NODE) == (0, f"node/{NODE} uncordoned\n")
    assert kubectl("delete", "node", NODE)[0] != 0 and NODE in client.kubernetes.nodes


def test_kubectl_evicts_a_pod_and_deletes_none(client: Client, kubectl: Kubectl, tmp_path: Path) -> None:
    client.stands(node())
    client.kubernetes.create_pod(POD, namespace="training", node=NODE)
    code, text = kubectl("delete", "pod", "-n", "training", POD, "--wait=false")
    assert code and "forbidden" in text.lower()
    eviction = tmp_path / "eviction.json"
    meta = {"name": POD, "namespace": "training"}
    eviction.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}))
    raw = f"/api/v1/namespaces/training/pods/{POD}/eviction"
    code, text = kubectl("create", "--raw", raw, "-f", str(eviction))
    assert code == 0, text
    assert ("training", POD) not in client.kubernetes.pods or "deletionTimestamp" in client.kubernetes.pods[
        "training", POD
    ]["metadata"]
