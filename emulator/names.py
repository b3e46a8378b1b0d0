"""The account that the local cloud plays, and the ARNs in it. Used by every module here; knows nothing
else."""

from __future__ import annotations

ACCOUNT = "123456789012"  # moto's default account
REGION = "us-east-1"
LOOPBACK = "127.0.0.1"
ACCESS_KEY = "AKIALOCALCLOUDEXAMPL"  # the one key pair of the local cloud, and whose it is
SECRET_KEY = "local-cloud-secret-of-no-use-anywhere"
USER_ARN = f"arn:aws:iam::{ACCOUNT}:user/local"

GPU_UUIDS_ANNOTATION = "training.sdc.emulator/gpu-uuids"  # on a fake node: its GPUs, in local-rank order


def arn(service: str, resource: str, *, region: str = REGION, account: str = ACCOUNT) -> str:
    """``arn:aws:<service>:<region>:<account>:<resource>``; global services pass region=""."""
    return f"arn:aws:{service}:{region}:{account}:{resource}"


def cluster_id_of(name: str) -> str:
    """The id in a HyperPod cluster's ARN: twelve characters that are not its name."""
    return f"{name:0<12}"[:12]


def function_name_of(name_or_arn: str) -> str:
    """Function name out of a name, an ARN, or an ARN with a qualifier."""
    parts = name_or_arn.split(":")
    return parts[6] if len(parts) >= 7 and parts[0] == "arn" else parts[0]
