"""Small picklable values of all ranks, in whatever memory a process group moves.

Comes in: a value a rank, the group, this rank's device. Goes out: all of them, on every rank. Next: `_comm`,
and whoever has a group and no `Comm`.

NCCL's object collectives go through the process's current GPU. A loop that names its GPU in every call need
never have set it, and all ranks of a node would then meet on the first one's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist


def gathered(value: Any, group: dist.ProcessGroup | None, device: torch.device) -> list[Any]:
    """Collect one value per rank, by rank of the group; a collective. `device`: this rank's own."""
    values: list[Any] = [None] * dist.get_world_size(group)
    with _current(device):
        dist.all_gather_object(values, value, group=group)
    return values


def handed_out(value: Any, source: int, group: dist.ProcessGroup, device: torch.device) -> Any:
    """The value of rank `source` (of the whole job) on every rank; a collective."""
    box = [value]
    with _current(device):
        dist.broadcast_object_list(box, source, group=group)
    return box[0]


def moves(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Where the checks' own numbers travel: on `device` where NCCL moves its memory, else on the host.

    Also in a group with a backend a kind of device, as `init_process_group()` without a name makes it.
    """
    backends = dict(pair.split(":") for pair in str(dist.get_backend_config(group)).split(",") if ":" in pair)
    return device if "nccl" in backends.get(device.type, "") else torch.device("cpu")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
