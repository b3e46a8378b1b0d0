"""The local cloud: one machine plays AWS and a HyperPod cluster. In: the synthesized template. Out:
`LocalCloud`.

    with LocalCloud(template, nodes=3, gpus_per_node=2) as cloud:
        subprocess.run(["torchrun", ...], env={**os.environ, **cloud.environment()})
        mail = cloud.mailbox.wait_for()

Real: the template's state machine, event patterns, tables, queues, functions, routes. Played: Lambda (a
process per function), HyperPod, Kubernetes, e-mail, time (delays and Wait states shrink by `time_scale`;
the functions' own clocks and callback timeouts do not). Functions are held
to their roles' statements, their calls of Kubernetes to its rules. Not played: policies of resources, alarms
on metrics, schedules.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3

from . import eventbridge, hyperpod_api, moto_hooks
from .eventbridge import BusEvent, BusRecord
from .hyperpod import DeepCheck, HyperPod
from .kubernetes_access import documents
from .kubernetes_server import LocalKubernetes
from .lambda_runtime import LambdaRuntime, Outcome, UnknownFunctionError
from .mailbox import Mailbox
from .moto_server import MotoServer
from .names import ACCESS_KEY, REGION, SECRET_KEY, function_name_of
from .plan import Overrides
from .stack import Stack
from .timers import Timers

MANIFESTS = Path(__file__).resolve().parent.parent / "infra" / "eks_access"  # applied, as operators do
OWN_GROUPS = ("training-sdc:readers", "training-sdc:cordoners")  # of the account's own key pair
DEFAULT_TIME_SCALE = 1 / 600  # a replacement of 25 minutes takes 2.5 s, a Wait of 60 s takes 0.1 s


class LocalCloud:
    """Everything above, up while the `with` block runs. One per process.

    Args:
        template: path of the synthesized template, or its parsed JSON.
        nodes: size of the HyperPod cluster.
        gpus_per_node: GPUs of each node.
        cluster: HyperPod's cluster name; must be the one that the template was synthesized for.
        time_scale: local seconds per real second of what HyperPod does.
        wait_scale: the same for the state machine's waits and retries; `time_scale` when left out. A larger
            one polls less often, where what is waited for takes real time (a training job that starts).
        deep_check: how deep health checks end: pass, fail or stuck.
        overrides: function's logical id, or "*" -> variable -> value. Only variables that the template gives.
        work_dir: for logs; a temporary folder by default, removed at the end.
        seed: of instance ids and GPU UUIDs.
    """

    def __init__(
        self,
        template: Path | Mapping[str, Any],
        *,
        nodes: int,
        gpus_per_node: int,
        instance_type: str = "ml.p5.48xlarge",
        cluster: str = "demo",
        time_scale: float = DEFAULT_TIME_SCALE,
        wait_scale: float | None = None,
        deep_check: str = "pass",
        overrides: Overrides | None = None,
        work_dir: Path | None = None,
        seed: int = 0,
    ) -> None:
        self._template, self._overrides = template, overrides or {}
        self._cluster: dict[str, Any] = {
            "name": cluster,
            "size": nodes,
            "gpus_per_node": gpus_per_node,
            "instance_type": instance_type,
            "deep_check": DeepCheck(deep_check),
            "seed": seed,
        }
        self._time_scale, self._work_dir = time_scale, work_dir
        self._wait_scale = time_scale if wait_scale is None else wait_scale
        self._clients: dict[str, Any] = {}
        self._clients_lock = threading.Lock()
        self._stacks: list[Stack] = []
        self._closers: list[Any] = []
        self._record = BusRecord()
        self.mailbox = Mailbox()

    def __enter__(self) -> LocalCloud:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._work_dir is None:
            self.folder = Path(tempfile.mkdtemp(prefix="local-cloud-"))
            self._closers.append(lambda: shutil.rmtree(self.folder, ignore_errors=True))
        else:
            self.folder = self._work_dir.resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
        self._server = MotoServer(wait_scale=self._wait_scale)
        self._closers += [self._server.close, self._close_clients]
        self.timers = Timers(self._time_scale)
        self._closers.append(self.timers.close)
        eks_name = f"{self._cluster['name']}-eks"
        self.kubernetes = LocalKubernetes(
            self.timers, cluster=eks_name, secret_key=SECRET_KEY, folder=self.folder
        )
        self._closers.append(self.kubernetes.close)
        self.kubernetes.access.apply(documents(MANIFESTS))
        self.kubernetes.let_in(ACCESS_KEY, OWN_GROUPS)
        self.hyperpod = HyperPod(self.timers, self.kubernetes, eks_name=eks_name, **self._cluster)
        hyperpod_api.install(self.hyperpod)
        self._closers.append(lambda: hyperpod_api.uninstall(self.hyperpod))
        eks = moto_hooks.EksCluster(eks_name, self.kubernetes.url, self.kubernetes.server.authority)
        moto_hooks.install(self.invoke, self.mailbox, eks)
        eventbridge.install(self._record, self.invoke)
        self.stack = self.add_stack(self._template, overrides=self._overrides, prefix="")

    def add_stack(
        self, template: Path | Mapping[str, Any], *, overrides: Overrides | None = None, prefix: str
    ) -> Stack:
        """Deploy a template into the same account, its names under `prefix`; closed with the cloud."""
        stack = Stack(
            template,
            environment=self.environment(),
            endpoint_url=self.endpoint_url,
            client=self.client,
            timers=self.timers,
            folder=self.folder / f"{prefix}functions",
            overrides=overrides or {},
            prefix=prefix,
        )
        self._stacks.append(stack)
        for function in stack.plan.functions.values():
            if function.role in stack.plan.kubernetes_groups:
                self.kubernetes.let_in(function.access_key, stack.plan.kubernetes_groups[function.role])
        return stack

    @contextmanager
    def another_stack(
        self, template: Path | Mapping[str, Any], *, overrides: Overrides | None = None, prefix: str
    ) -> Iterator[Stack]:
        """A second stack in the same account for the time of a `with` block."""
        stack = self.add_stack(template, overrides=overrides, prefix=prefix)
        try:
            yield stack
        finally:
            self._stacks.remove(stack)
            stack.close()

    def close(self) -> None:
        """Take everything down, in reverse order; leaves no process, thread or port behind."""
        for stack in reversed(self._stacks):
            stack.close()
        self._stacks.clear()
        while self._closers:
            self._closers.pop()()

    @property
    def endpoint_url(self) -> str:
        """The local AWS endpoint."""
        return self._server.endpoint_url

    def environment(self) -> dict[str, str]:
        """AWS_* variables for child processes."""
        return self._server.environment()

    def client(self, service: str) -> Any:
        """boto3 client of the local cloud (shared; clients are thread-safe)."""
        with self._clients_lock:
            if service not in self._clients:
                self._clients[service] = boto3.session.Session().client(
                    service,
                    endpoint_url=self.endpoint_url,
                    region_name=REGION,
                    aws_access_key_id=ACCESS_KEY,
                    aws_secret_access_key=SECRET_KEY,
                )
            return self._clients[service]

    @property
    def bus_events(self) -> list[BusEvent]:
        """Every event that was put on a bus, in order."""
        return list(self._record.events)

    @property
    def undelivered(self) -> list[eventbridge.Undelivered]:
        """Events that a rule's target did not take."""
        return list(self._record.undelivered)

    @property
    def event_bus_name(self) -> str:
        """Name of the dedicated bus."""
        return self.stack.event_bus_name

    @property
    def quarantine_table_name(self) -> str:
        """The table that agents poll."""
        return self.stack.table_name("QuarantineTable")

    @property
    def state_machine_arn(self) -> str:
        """ARN of the workflow."""
        return self.stack.state_machine_arn

    @property
    def review_url(self) -> str:
        """Base of the review page; a mailed link begins with it."""
        return self.stack.review_url

    @property
    def runtime(self) -> LambdaRuntime:
        """The functions of the cloud's own stack."""
        assert self.stack.runtime is not None
        return self.stack.runtime

    def executions(self) -> list[dict[str, Any]]:
        """DescribeExecution of every execution of the workflow, oldest first."""
        return self.stack.executions()

    def history(self, execution_arn: str) -> list[dict[str, Any]]:
        """GetExecutionHistory's events of one execution."""
        return self.stack.history(execution_arn)

    def invoke(self, name_or_arn: str, event: Any) -> Outcome:
        """Run a function of whichever stack has it.

        Raises:
            UnknownFunctionError: none has.
        """
        name = function_name_of(name_or_arn)
        for stack in self._stacks:
            if stack.runtime is not None and name in stack.runtime:
                return stack.invoke(name, event)
        raise UnknownFunctionError(name)

    def _close_clients(self) -> None:
        with self._clients_lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
