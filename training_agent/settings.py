"""What the job manifest tells the agent: cluster, job, node, GPUs, where to write and whom to tell.

Comes from environment variables (names: `contract.names.Env`), goes to guard, reporter and hold.
Importing this needs neither torch nor boto3: the hold runs before either is loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from . import exit_codes
from .contract import Env, Job, Place, instance_id_of
from .errors import ConfigurationError

DEFAULT_HOLD_TIMEOUT = timedelta(hours=24)  # a person must approve; a night and a morning fit
KUBERNETES_TERMINATION_LOG = Path("/dev/termination-log")
DEFAULT_CAPSULE_MB = 256
_NVIDIA_SMI_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Worker:
    """This process in the job, as torchrun numbers it."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Worker:
        """Read RANK, LOCAL_RANK and WORLD_SIZE; without torchrun it is rank 0 of 1.

        Raises:
            ConfigurationError: one of them is no number.
        """
        env = os.environ if environ is None else environ
        return cls(
            rank=_whole(env, Env.RANK, default=0, least=0),
            local_rank=_whole(env, Env.LOCAL_RANK, default=0, least=0),
            world_size=_whole(env, Env.WORLD_SIZE, default=1, least=1),
        )


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything the agent knows about its surroundings; equal on all ranks except node, pod and GPUs."""

    cluster: str
    job: Job
    node: str  # Kubernetes node name
    pod_name: str | None = None
    pod_uid: str | None = None
    gpu_uuids: tuple[str, ...] = ()  # of the processes on this node, in local-rank order; empty when unknown
    shared_dir: Path | None = None  # on the job's shared file system
    event_bus: str | None = None
    quarantine_table: str | None = None
    hold_timeout: timedelta = field(default=DEFAULT_HOLD_TIMEOUT)
    termination_log: Path | None = None
    allow_node_local: bool = False  # folders that nodes do not share are accepted
    capsule_bytes: int = DEFAULT_CAPSULE_MB * 1_000_000  # the most that one repro capsule may have; 0: none
    image: str | None = None  # of the container
    otlp_endpoint: str | None = None  # base address of a collector's OTLP/HTTP receiver
    pod_events: bool = False  # an alarm becomes a Kubernetes Event on the named pods

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, node: str | None = None) -> AgentSettings:
        """Read the settings of this process.

        Parameters
        ----------
        environ: instead of `os.environ`.
        node: node name for places without Kubernetes; wins over NODE_NAME.

        Raises
        ------
        ConfigurationError: the node is unknown, a number is none, or a bus has no cluster and job uid.
        """
        if environ is None:
            exit_codes.install()  # a refusal below ends the process with its documented code
        env = os.environ if environ is None else environ
        exit_codes.chosen(0, env)  # refuses what it cannot read
        node_name = node or env.get(Env.NODE_NAME)
        if not node_name:
            raise ConfigurationError(
                "The node of this process is unknown, so a faulty GPU could not be located. Set NODE_NAME in "
                'the pod spec (fieldRef: spec.nodeName), or pass node="..." to AgentSettings.from_env().'
            )
        event_bus = env.get(Env.EVENT_BUS) or None
        if event_bus:
            _require_identity(env)
        shared = env.get(Env.SHARED_DIR)
        return cls(
            cluster=env.get(Env.CLUSTER) or "local",
            job=Job(
                name=env.get(Env.JOB_NAME) or env.get(Env.JOB_UID) or "training",
                uid=env.get(Env.JOB_UID) or "local",
                attempt=_attempt(env),
                namespace=env.get(Env.POD_NAMESPACE) or "default",
            ),
            node=node_name,
            pod_name=env.get(Env.POD_NAME) or None,
            pod_uid=env.get(Env.POD_UID) or None,
            gpu_uuids=gpu_uuids(env),
            shared_dir=Path(shared) if shared else None,
            event_bus=event_bus,
            quarantine_table=env.get(Env.QUARANTINE_TABLE) or None,
            hold_timeout=_hold_timeout(env),
            termination_log=_termination_log(env),
            capsule_bytes=_whole(env, Env.CAPSULE_MB, default=DEFAULT_CAPSULE_MB, least=0) * 1_000_000,
            allow_node_local=_switch(env, Env.ALLOW_NODE_LOCAL),
            image=env.get(Env.IMAGE) or None,
            otlp_endpoint=_otlp_endpoint(env),
            pod_events=_switch(env, Env.POD_EVENTS),
        )

    def place(self, rank: int, local_rank: int) -> Place:
        """Return the seat of a rank of this node; the GPU is None when there is no UUID for `local_rank`."""
        gpu = self.gpu_uuids[local_rank] if local_rank < len(self.gpu_uuids) else None
        return Place(
            rank=rank,
            local_rank=local_rank,
            node=self.node,
            instance_id=instance_id_of(self.node),
            gpu_uuid=gpu,
            pod_name=self.pod_name,
            pod_uid=self.pod_uid,
        )


def gpu_uuids(environ: Mapping[str, str]) -> tuple[str, ...]:
    """UUIDs of this node's GPUs in local-rank order, without torch; empty when nothing tells.

    The Kubernetes device plugin lists UUIDs in NVIDIA_VISIBLE_DEVICES; otherwise `nvidia-smi` is asked (PCI
    order, as CUDA numbers equal GPUs). CUDA_VISIBLE_DEVICES, when set, picks from that list, by number or
    UUID.
    """
    listed = tuple(v for v in _items(environ.get(Env.GPU_UUIDS, "")) if v.startswith("GPU-"))
    known = listed or _ask_nvidia_smi()
    chosen = _items(environ.get(Env.CUDA_DEVICES, ""))
    if not chosen:
        return known
    if all(v.startswith("GPU-") for v in chosen):
        # CUDA accepts abbreviated UUIDs; an abbreviation that fits nothing or several stays unknown.
        matches = [[u for u in known if u.startswith(v)] or [v] for v in chosen]
        return tuple(m[0] for m in matches if len(m) == 1) if all(len(m) == 1 for m in matches) else ()
    if all(v.isdecimal() and int(v) < len(known) for v in chosen):
        return tuple(known[int(v)] for v in chosen)
    return ()  # numbers that fit no list (MIG slices, -1): naming a wrong GPU is worse than naming none


def _ask_nvidia_smi() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        answer = subprocess.run(
            [program, "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip().startswith("GPU-"))


def _items(text: str) -> tuple[str, ...]:
    return tuple(v.strip() for v in text.split(",") if v.strip())


def _require_identity(env: Mapping[str, str]) -> None:
    missing = [v.value for v in (Env.CLUSTER, Env.JOB_UID) if not env.get(v)]
    if missing:
        raise ConfigurationError(
            f"{Env.EVENT_BUS.value} is set, but {' and '.join(missing)} not: the pipeline could not tell "
            f"whose alarm it gets. Set {' and '.join(missing)} in the job manifest, or unset the bus."
        )


def _hold_timeout(env: Mapping[str, str]) -> timedelta:
    if not env.get(Env.HOLD_TIMEOUT):
        return DEFAULT_HOLD_TIMEOUT
    return timedelta(seconds=_whole(env, Env.HOLD_TIMEOUT, default=0, least=1))


def _termination_log(env: Mapping[str, str]) -> Path | None:
    chosen = env.get(Env.TERMINATION_LOG)
    if chosen:
        return Path(chosen)
    return KUBERNETES_TERMINATION_LOG if KUBERNETES_TERMINATION_LOG.exists() else None


def _attempt(env: Mapping[str, str]) -> int:
    """Number of this common start, from 1: SDC_ATTEMPT, or HyperPod's count of restarts plus one.

    The training operator restarts processes inside the same pods, whose own variables stay as they are; it
    tells every pod's elastic agent the job's fault count at each rendezvous, and the workers get it (source:
    hyperpod-elastic-agent 1.x). torchrun's TORCHELASTIC_RESTART_COUNT is no such number: nodes count alone.
    """
    restarts = _whole(env, Env.JOB_RESTART_COUNT, default=0, least=0)
    return _whole(env, Env.ATTEMPT, default=restarts + 1, least=1)


def _switch(env: Mapping[str, str], name: Env) -> bool:
    return env.get(name, "").strip().lower() in ("1", "true")


def _otlp_endpoint(env: Mapping[str, str]) -> str | None:
    address = env.get(Env.OTLP_ENDPOINT, "").strip()
    if address and not address.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"{Env.OTLP_ENDPOINT.value}={address!r} must be the address of an OTLP/HTTP receiver, such as "
            "http://hyperpod-otel-collector.hyperpod-observability:4318."
        )
    return address or None


def _whole(env: Mapping[str, str], name: Env, *, default: int, least: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ConfigurationError(f"{name.value}={text!r} must be a whole number of at least {least}.")
    return int(text)
