"""One of six ranks in two independent DDP groups of three; a GPU of the second goes bad. Usage: OUT_DIR."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.models import Net, batch_for, loss_of
from tests.distributed.small_model import settings_for
from tests.unit.report.builders import FakeAws
from training_agent import Schedule, attach
from training_agent._bisecting import Plan
from training_agent._phase import Phase
from training_agent.contract import Env, encode
from training_agent.errors import ConfigurationError, SdcAlarm
from training_agent.report import job_reporter
from training_agent.settings import AgentSettings

GROUP = 3
BAD = 4  # in the whole job; position 1 of its group
STEPS = 6


def refusal(ddp: nn.Module, optimizer: torch.optim.Optimizer, settings: AgentSettings, path: Path) -> str:
    """What a launch of `sdc bisect` is told."""
    Plan("", 0, GROUP, (), "").save(path)
    os.environ[Env.BISECT] = str(path)
    try:
        attach(ddp, optimizer, settings=settings)
    except ConfigurationError as e:
        return str(e)
    finally:
        del os.environ[Env.BISECT]
    return "accepted"


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank = dist.get_rank()
    groups = [dist.new_group(list(range(first, first + GROUP))) for first in (0, GROUP)]
    torch.manual_seed(5)
    model = Net()
    ddp = DistributedDataParallel(model, process_group=groups[rank // GROUP])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings = replace(settings_for(rank), shared_dir=out / "shared", event_bus="bus")
    aws = FakeAws()
    refused = refusal(ddp, optimizer, settings, out / f"plan-{rank}.json")
    guard = attach(
        ddp,
        optimizer,
        compute_loss=loss_of,
        schedule=Schedule(2, 2, None),
        settings=settings,
        reporter=job_reporter(settings, rank, client=aws.factory),
    )
    step = 0

    def strike(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        if step < 3 or guard.phase is Phase.WARM_UP:
            return None
        return output + torch.zeros_like(output).index_fill_(0, torch.tensor([0]), 5.0)

    if rank == BAD:
        model.down.register_forward_hook(strike)
    found: dict[str, Any] = {"alarm": None, "refused": refused}
    try:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            guard.compute_loss(ddp, batch_for(rank, step)).backward()
            optimizer.step()
    except SdcAlarm as e:
        found["alarm"] = encode(e.alarm)
    found |= {"step": guard.step, "audits": guard.manifest()["audits_passed"]}
    guard.abandon()
    found["sent"] = sorted({e["DetailType"] for e in aws.events})
    found["measured"] = bool(aws.metrics)
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
