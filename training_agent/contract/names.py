"""Every name that crosses a border: events, metrics, exit codes, environment variables, shared files.

The agent writes them, the Lambdas, the CDK app and the emulator read them from here and nowhere else.
"""

from __future__ import annotations

from enum import Enum, IntEnum

SCHEMA_VERSION = "1.0"  # readers accept any "1.x" and ignore unknown fields; another major goes to a human
EVENT_SOURCE = "training.sdc"
MAX_DETAIL_BYTES = 64 * 1024  # of one event's detail; the bus would take more, StartExecution would not


class DetailType(str, Enum):
    """EventBridge detail-types; a new major schema version gets new ones."""

    ALARM = "SDC Alarm"
    NODE_REGISTERED = "SDC Node Registered"
    TARGETED_AUDIT_RESULT = "SDC Targeted Audit Result"
    INCIDENT_STATE_CHANGED = "SDC Incident State Changed"


METRIC_NAMESPACE = "TrainingSDC"


class Metric(str, Enum):
    """CloudWatch metrics; each is put with {Cluster} and with {Cluster, Job}, never with a rank."""

    NONFINITE_GRAD = "sdc_nonfinite_grad"
    REPLAY_MISMATCH = "sdc_replay_mismatch"
    DIVERGENT_TENSORS = "sdc_divergent_tensors"
    REDUCTION_MISMATCH = "sdc_reduction_mismatch"
    AUDITS_DONE = "sdc_audits_done"
    AUDITS_SKIPPED = "sdc_audits_skipped"
    LAYER_AUDITS_DONE = "sdc_layer_audits_done"  # where they are on, as the next one
    LAYER_AUDITS_SKIPPED = "sdc_layer_audits_skipped"
    AUDIT_EVERY_STEPS = "sdc_audit_every_steps"  # where it is chosen by outcome
    LAST_PASS_AGE_STEPS = "sdc_last_pass_age_steps"
    HEARTBEAT = "sdc_heartbeat"
    OVERHEAD_PERCENT = "sdc_overhead_percent"  # of the wall time, inside replays and weight checks
    DROPPED_MESSAGES = "sdc_agent_dropped"


class ExitCode(IntEnum):
    """What a worker process ends with; `python -m training_agent.run` passes it through torchrun."""

    ALARM = 3  # a check fired; the step was not applied
    CONFIGURATION = 4  # refused before the first update, the message says what to change
    REFUSED_NODE = 5  # hold_timeout ended while a rank still stood on a quarantined node or GPU
    REPRODUCIBLE = 6  # the same step fails on other nodes: not hardware
    PEER_LOST = 130  # and above: a peer vanished


class Env(str, Enum):
    """Environment variables that the agent reads (the job manifest sets them)."""

    NODE_NAME = "NODE_NAME"  # downward API spec.nodeName; on HyperPod "hyperpod-<instance id>"
    POD_NAME = "POD_NAME"
    POD_UID = "POD_UID"
    POD_NAMESPACE = "POD_NAMESPACE"
    GPU_UUIDS = "NVIDIA_VISIBLE_DEVICES"  # the device plugin lists UUIDs here, in local-rank order
    CLUSTER = "SDC_CLUSTER"  # HyperPod cluster name
    JOB_NAME = "SDC_JOB_NAME"
    JOB_UID = "SDC_JOB_UID"
    ATTEMPT = "SDC_ATTEMPT"  # how often the job's processes were started together, from 1
    JOB_RESTART_COUNT = "JOB_RESTART_COUNT"  # HyperPod's elastic agent: restarts of the job, from 0
    SHARED_DIR = "SDC_SHARED_DIR"  # folder on the job's shared file system
    ALLOW_NODE_LOCAL = "SDC_ALLOW_NODE_LOCAL"  # 1: a folder that nodes do not share is accepted
    EVENT_BUS = "SDC_EVENT_BUS"
    QUARANTINE_TABLE = "SDC_QUARANTINE_TABLE"
    HOLD_TIMEOUT = "SDC_HOLD_TIMEOUT_SECONDS"
    TERMINATION_LOG = "SDC_TERMINATION_LOG"
    IMAGE = "SDC_IMAGE"  # of the container; Kubernetes does not tell a pod, the manifest can
    OTLP_ENDPOINT = "SDC_OTLP_ENDPOINT"  # http://host:4318 of an OpenTelemetry collector
    POD_EVENTS = "SDC_POD_EVENTS"  # 1: an alarm becomes a Kubernetes Event on the named pods
    EXIT_CODES = "SDC_EXIT_CODES"  # other codes for a scheduler that uses ours: "3=13 5=15"
    EXIT_CODE_DIR = "SDC_EXIT_CODE_DIR"  # of `training_agent.run`: workers leave their codes there
    CAPSULE_MB = "SDC_CAPSULE_MB"  # largest repro capsule of an alarm, in MB; 0: none is written
    BISECT = "SDC_BISECT"  # set by `sdc bisect`: the file with what this launch computes again
    PREFLIGHT = "SDC_PREFLIGHT"  # set by `sdc preflight`: end before the first update
    CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"  # the user's choice among the GPUs above
    RANK = "RANK"  # this and the rest: set by torchrun
    LOCAL_RANK = "LOCAL_RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
    RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"


NODE_NAME_PREFIX = "hyperpod-"
INSTANCE_ID_PATTERN = r"^i-(?:[0-9a-f]{17}|[0-9a-f]{8})$"
