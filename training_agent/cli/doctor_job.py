"""`sdc doctor`, in the pod: does this process know where it stands, and does its folder outlive its node?

In: the environment. Out: `Check`s. Next: `doctor` joins them with the pipeline's.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from ..contract import INSTANCE_ID_PATTERN, NODE_NAME_PREFIX, Env
from ..settings import gpu_uuids
from ..shared_files import write_atomic
from .checks import Check, Status

SHARED_TYPES = frozenset({"lustre", "nfs", "nfs4", "efs", "ceph", "gpfs", "wekafs"})
MOUNTS = Path("/proc/mounts")


def node_name(env: Mapping[str, str]) -> Check:
    """NODE_NAME, and the instance in it."""
    node = env.get(Env.NODE_NAME, "")
    if not node:
        remedy = "Set NODE_NAME in the pod spec (fieldRef: spec.nodeName): a faulty GPU could not be located."
        return Check("node-name", Status.FAILED, "NODE_NAME is not set", remedy)
    if not re.match(INSTANCE_ID_PATTERN, node.removeprefix(NODE_NAME_PREFIX)):
        remedy = "On HyperPod a node is called hyperpod-<instance id>; nothing else can be replaced."
        return Check("node-name", Status.FAILED, f"{node} names no HyperPod instance", remedy)
    return Check("node-name", Status.OK, node)


def identity(env: Mapping[str, str]) -> Check:
    """Cluster, job, pod: what an alarm is located by."""
    needed = (Env.CLUSTER, Env.JOB_UID, Env.POD_NAME, Env.POD_UID, Env.POD_NAMESPACE)
    missing = [v.value for v in needed if not env.get(v)]
    if missing:
        remedy = "Set them as examples/hyperpod does; without them an alarm goes to a human unproven."
        return Check("job-identity", Status.FAILED, f"not set: {', '.join(missing)}", remedy)
    return Check("job-identity", Status.OK, f"job {env[Env.JOB_UID]} on {env[Env.CLUSTER]}")


def gpus(env: Mapping[str, str]) -> Check:
    """UUIDs, which outlive the instance."""
    found = gpu_uuids(env)
    if found:
        return Check("gpu-uuids", Status.OK, f"{len(found)}, first {found[0]}")
    remedy = "Run it where nvidia-smi answers: without UUIDs history follows instances only."
    return Check("gpu-uuids", Status.NOTE, "no GPU tells its UUID here", remedy)


def shared_folder(env: Mapping[str, str], mounts: Path = MOUNTS) -> Check:
    """SDC_SHARED_DIR: there, writable, and on a file system that survives the node."""
    name, folder = "shared-folder", env.get(Env.SHARED_DIR, "")
    if not folder:
        remedy = "Mount FSx for Lustre in all pods and name it in SDC_SHARED_DIR."
        return Check(name, Status.FAILED, "SDC_SHARED_DIR is not set", remedy)
    probe = Path(folder) / f".sdc-doctor-{secrets.token_hex(4)}"
    try:
        write_atomic(probe, b"sdc")
        probe.unlink()
    except OSError as e:
        return Check(name, Status.FAILED, f"{folder}: {e}", "Mount it writable for the pod's user.")
    kind = filesystem_of(Path(folder), mounts)
    if kind is None:
        return Check(
            name, Status.NOTE, f"{folder}: the file system's type is unknown", "The start proves it."
        )
    if kind not in SHARED_TYPES:
        remedy = (
            "A replacement destroys every volume of its node. Use FSx for Lustre; a start with several "
            "nodes refuses a folder that they do not share."
        )
        return Check(name, Status.FAILED, f"{folder} is {kind}, which is local to this node", remedy)
    return Check(name, Status.OK, f"{folder} on {kind}")


def filesystem_of(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Type of the mount that `folder` lies on; None where nothing tells."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    real = os.path.realpath(folder)
    fitting = [
        (len(f[1]), f[2])
        for f in lines
        if len(f) > 2 and (real == f[1] or real.startswith(f[1].rstrip("/") + "/"))
    ]
    return max(fitting)[1] if fitting else None
