"""One JSON object per line on standard output, without prefix: what log shippers and people read.

The key "sdc" names the kind: alarm, holding, waiting, released, warning, peer_lost.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Any


def utc_now() -> str:
    """Now, UTC, ISO 8601 with Z and milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_line(kind: str, **fields: Any) -> None:
    """Write `{"sdc": kind, "time": ..., **fields}` as one line and flush it; a closed pipe is ignored."""
    text = json.dumps({"sdc": kind, "time": utc_now(), **fields}, separators=(",", ":"), default=str)
    try:
        sys.stdout.write(text + "\n")  # one write, so that lines of several ranks do not mix
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # nobody reads any more; the alarm stands in the spool
