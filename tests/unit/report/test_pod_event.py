"""An alarm as an Event on the pod, at the emulator's Kubernetes, with the manifest that operators apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator import certificates
from emulator.kubernetes_server import LocalKubernetes
from emulator.timers import Timers
from training_agent.contract import Alarm, Check, FindingKind, decode
from training_agent.report import job as job_module
from training_agent.report import job_reporter
from training_agent.report.beside import Beside
from training_agent.report.pod_event import ApiServer, PodEvents, events_of
from training_agent.settings import AgentSettings

from .builders import JOB, ROOT, FakeAws, a_finding, a_place, an_alarm, settings_of

pytestmark = pytest.mark.enable_socket
MANIFEST = ROOT / "examples" / "hyperpod" / "pod-events.yaml"
NAMESPACE, ACCOUNT = "training", "training"


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKubernetes]:
    timers = Timers(1 / 1000)
    folder = tmp_path_factory.mktemp("kubernetes")
    made = LocalKubernetes(timers, cluster="eks", secret_key="secret", folder=folder)
    made.access.apply(yaml.safe_load_all(MANIFEST.read_text()))
    yield made
    made.close()
    timers.close()


def of_pods(**changes: object) -> Alarm:
    """An alarm that names ranks 1 and 2, each in a pod."""
    places = [replace(a_place(r), pod_name=f"worker-{r}", pod_uid=f"uid-{r}") for r in (1, 2)]
    found = [a_finding(p.rank, place=p) for p in places]
    return an_alarm(*found, **{"job": replace(JOB, namespace=NAMESPACE), **changes})


def server(kubernetes: LocalKubernetes, tmp_path: Path, account: str = ACCOUNT) -> ApiServer:
    folder = kubernetes.server.service_account(NAMESPACE, account, tmp_path / "account")
    return ApiServer(kubernetes.url, folder)


def settings(tmp_path: Path) -> AgentSettings:
    return settings_of(tmp_path, pod_name="worker-0", pod_uid="uid-0", pod_events=True)


def test_an_alarm_is_one_event_on_each_named_pod_however_many_ranks_tell_it(
    kubernetes: LocalKubernetes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # two publishing ranks
        beside = Beside([PodEvents(settings(tmp_path), server(kubernetes, tmp_path))])
        beside.alarm(of_pods())
        beside.flush(10)
        beside.close(10)
    assert "cannot be told" not in capsys.readouterr().out
    events = kubernetes.events_in(NAMESPACE)
    assert {(e["involvedObject"]["name"], e["involvedObject"]["uid"]) for e in events} == {
        ("worker-1", "uid-1"), ("worker-2", "uid-2"),
    }  # fmt: skip
    assert len(events) == 2
    assert all(e["type"] == "Warning" and "step 30" in e["message"] for e in events)


def test_another_attempt_is_another_event(tmp_path: Path) -> None:
    one, two = of_pods(), of_pods(job=replace(JOB, namespace=NAMESPACE, attempt=3))
    names = {e["metadata"]["name"] for a in (one, two) for e in events_of(a, settings(tmp_path))}
    assert len(names) == 4


def test_an_alarm_without_a_name_is_told_on_the_own_pod(tmp_path: Path) -> None:
    alarm = an_alarm(a_finding(None, FindingKind.REDUCED), check=Check.NONFINITE, reduced_nonfinite=True)
    (event,) = events_of(alarm, settings(tmp_path))
    assert event["involvedObject"]["name"] == "worker-0" and "names no pod" in event["message"]


def test_the_event_says_which_kernels_were_audited(tmp_path: Path) -> None:
    (event, _) = events_of(of_pods(kernels="forced"), settings(tmp_path))
    assert event["message"].endswith("; kernels forced")
    (event, _) = events_of(of_pods(), settings(tmp_path))  # an older agent's
    assert "kernels" not in event["message"]


@pytest.mark.parametrize("trouble", ["no right", "no token", "unreachable", "another authority"])
def test_trouble_with_the_api_server_is_one_warning_and_costs_the_alarm_nothing(
    trouble: str, kubernetes: LocalKubernetes, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    where = server(kubernetes, tmp_path, "other" if trouble == "no right" else ACCOUNT)
    if trouble == "no token":
        (where.account / "token").unlink()
    if trouble == "unreachable":
        where = ApiServer("https://127.0.0.1:9", where.account)
    if trouble == "another authority":
        (where.account / "ca.crt").write_bytes(certificates.make().authority)
    monkeypatch.setattr(ApiServer, "of_this_pod", classmethod(lambda cls: where))
    monkeypatch.setattr(job_module, "FLUSH_S", 2.0)
    before, aws = len(kubernetes.events_in(NAMESPACE)), FakeAws()
    reporter = job_reporter(settings(tmp_path), 0, client=aws.factory)
    reporter.alarm(of_pods())
    reporter.close()
    assert [decode(Alarm, e["Detail"]) for e in aws.events] == [of_pods()]
    assert len(kubernetes.events_in(NAMESPACE)) == before
    assert capsys.readouterr().out.count("the pods' events cannot be told") == 1


def test_the_account_may_create_events_in_its_own_namespace_and_nothing_else(
    kubernetes: LocalKubernetes, tmp_path: Path
) -> None:
    where = server(kubernetes, tmp_path)
    (event, _) = events_of(of_pods(), settings(tmp_path))
    event["involvedObject"]["namespace"] = event["metadata"]["namespace"] = "kube-system"
    with pytest.raises(OSError, match="HTTP 403"):
        where.create("kube-system", event)
    verbs = [r["verbs"] for d in yaml.safe_load_all(MANIFEST.read_text()) for r in d.get("rules", ())]
    assert verbs == [["create"]]


def test_events_are_off_by_default_and_the_address_is_kubernetes_own() -> None:
    assert not AgentSettings.from_env({"NODE_NAME": "n"}).pod_events
    assert AgentSettings.from_env({"NODE_NAME": "n", "SDC_POD_EVENTS": "1"}).pod_events
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert ApiServer.of_this_pod(env).url == "https://10.0.0.1:443"
    assert ApiServer.of_this_pod({**env, "KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"


def test_a_pod_that_takes_no_event_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    told: list[str] = []

    class Picky(ApiServer):
        def create(self, namespace: str, event: Mapping[str, Any]) -> None:
            pod = event["involvedObject"]["name"]
            if pod == "worker-1" and not told.count("worker-2"):
                raise OSError("HTTP 422")
            told.append(pod)

    sink = PodEvents(settings(tmp_path), Picky("https://x"))
    sink.alarm(of_pods())
    with pytest.raises(OSError, match="422"):
        sink.send()
    assert told == ["worker-2"]
    sink.send()
    assert told == ["worker-2", "worker-1"]
