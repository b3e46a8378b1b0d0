"""What one rank alone cannot do is refused on all, one refusal after the other in one process group.

Prints a JSON line for each: mode, exit code, text. The last one is not caught: it ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.small_model import Model, compute_loss, settings_for
from training_agent import AgentError, Guard, Schedule, _manifest, attach

ONE = 1  # the rank with the trouble
UNCAUGHT = "no node"
MODES = (
    "no ddp",
    "other step",
    "no audits",
    "no function",
    "two guards",
    "bad local rank",
    "foreign manifest",
    "another manifest",
    "no memory to digest",
    UNCAUGHT,
)


def begin(mode: str) -> None:
    """Attach, and where the trouble is a checkpoint, take it over."""
    rank = dist.get_rank()
    troubled = rank == ONE
    os.environ["LOCAL_RANK"] = "first" if mode == "bad local rank" and troubled else str(rank)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guarded: nn.Module = model if mode == "no ddp" else DistributedDataParallel(model)
    guard = attach(
        guarded,
        optimizer,
        compute_loss="loss" if mode == "no function" and troubled else compute_loss,  # type: ignore[arg-type]
        schedule=Schedule(None if mode == "no audits" and troubled else 2, check_every=2, ckpt_every=None),
        step=5 if mode == "other step" and troubled else 0,
        settings=None if mode == "no node" and troubled else settings_for(rank),
    )
    if mode == "two guards":
        try:
            attach(guarded, optimizer, settings=settings_for(rank))
        finally:
            guard.abandon()
        return
    take_over(guard, mode if troubled else "")


def take_over(guard: Guard, trouble: str) -> None:
    """`after_load`, with this rank's own trouble."""
    manifest, digests = guard.manifest(), _manifest.state_digests
    if trouble == "no memory to digest":
        _manifest.state_digests = _no_memory
    try:
        own = {"last_audit_pass": 2} if trouble == "another manifest" else {}
        guard.after_load({"step": 3} if trouble == "foreign manifest" else {**manifest, **own})
    finally:
        _manifest.state_digests = digests
        guard.abandon()


def _no_memory(*_: Any) -> Any:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for mode in MODES:
        try:
            begin(mode)
            said: dict[str, Any] = {"mode": mode, "code": 0, "says": ""}
        except AgentError as e:
            said = {"mode": mode, "code": int(e.exit_code), "says": str(e)}
            if mode == UNCAUGHT:
                raise
        sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
