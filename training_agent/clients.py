"""The only place where the agent imports boto3: on first use, with timeouts that suit a training process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

ClientFactory = Callable[[str], Any]  # service name -> client

CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 3


def own_region() -> str | None:
    """AWS_REGION, which manifests and most SDKs use and boto3 does not read; None: boto3 looks elsewhere."""
    return os.environ.get("AWS_REGION") or None


def boto3_client(service: str) -> Any:
    """Make a boto3 client that gives up within seconds; whoever calls it decides about a second try.

    Without an endpoint in reach, boto3's defaults wait 60 s and try five times (boto/boto3#4301).
    """
    import boto3
    from botocore.config import Config

    return boto3.session.Session(region_name=own_region()).client(
        service,
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=16,
        ),
    )
