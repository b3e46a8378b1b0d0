"""Three ranks; one dies in a chosen way at a chosen phase. Arguments: phase, way, folder.

Checkpoints are saved at steps 4 and 8; audits and weight checks are made at every second step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from training_agent import CheckpointStore, Phase, Schedule, attach, checkpoint, job_reporter
from training_agent._comm import Comm
from training_agent._update import Update
from training_agent.contract import Job
from training_agent.settings import AgentSettings

PHASES = (
    "forward",
    "backward",
    "hook",
    "all_gather",
    "replay",
    "confirm",
    "weight check",
    "save",
    "publish",
    "exit",
)
WAYS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exception": lambda: (_ for _ in ()).throw(RuntimeError("out of luck")),
}
STEP, STEPS, SAVES = 6, 10, (4, 8)
STRUCK = "struck"  # a file: a test in which nobody died proves nothing
GROUP_TIMEOUT = timedelta(seconds=10)


class Death:
    """Strikes once, on rank 1, when `at(phase)` is reached at the step."""

    def __init__(self, phase: str, way: str, folder: Path) -> None:
        self.folder = folder
        self.phase, self.way, self.step, self.rank = phase, way, 0, dist.get_rank()
        # saves are rank 0's, and come at other steps
        self.victim = 0 if phase == "save" else 1

    def at(self, phase: str) -> None:
        due = {"save": SAVES[1], "exit": STEPS}.get(phase, STEP)
        if (phase, self.step, self.rank) == (self.phase, due, self.victim):
            (self.folder / STRUCK).touch()
            WAYS[self.way]()


def main() -> None:
    phase, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))  # a busy machine takes its time to start
    rank = dist.get_rank()
    death = Death(phase, way, folder)
    torch.manual_seed(3)
    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    settings = AgentSettings(
        "demo", Job("job", "uid"), f"hyperpod-i-{rank:017x}", gpu_uuids=("GPU-0",), shared_dir=folder
    )
    store = CheckpointStore(folder / "checkpoints", 3)
    reporter = job_reporter(settings, rank)

    def compute_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - batch).square().mean()

    if phase == "hook":

        def comm_hook(state: Any, bucket: Any) -> Any:
            death.at("hook")
            return allreduce_hook(None, bucket)  # type: ignore[arg-type]

        comm_hook.__annotations__.clear()  # DDP refuses any annotation that is not its own class
        model.register_comm_hook(None, comm_hook)
    guard = attach(
        model, optimizer, compute_loss=compute_loss, schedule=Schedule(2, 2, 4), settings=settings,
        reporter=reporter, checkpoints=store,
    )  # fmt: skip
    put_in(death, guard, inner, reporter)
    dist.distributed_c10d._set_pg_timeout(GROUP_TIMEOUT)
    for step in range(1, STEPS + 1):
        death.step = step
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        guard.compute_loss(model, batch).backward()
        optimizer.step()
        if step in SAVES:
            guard.before_save()
            if rank == 0:
                store.save(step, {"model": inner.state_dict()}, guard.manifest())
    guard.close()
    death.at("exit")
    sys.stdout.write("finished\n")


def put_in(death: Death, guard: Any, inner: torch.nn.Module, reporter: Any) -> None:
    """Places of the phases that are not the loop's own."""

    def on_forward(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        where = {Phase.TRAINING: "forward", Phase.REPLAY: "replay", Phase.ARBITRATION: "confirm"}
        death.at(where.get(guard.phase, ""))
        wrong = death.phase in ("confirm", "publish") and death.step == STEP and death.rank == 2
        return output + 1000.0 * torch.eye(*output.shape) if wrong else None  # rank 2's GPU is faulty

    inner[1].register_forward_hook(on_forward)  # type: ignore[index]
    first = next(inner.parameters())
    first.register_hook(lambda gradient: death.at("backward") if guard.phase is Phase.TRAINING else None)
    for collective in ("gather", "total_tensor", "sum_tensor", "total"):
        before(Comm, collective, lambda: death.at("all_gather"))
    before(Update, "check_weights", lambda: death.at("weight check"))
    before(checkpoint, "_require_readable", lambda: death.at("save"))
    before(type(reporter), "alarm", lambda: death.at("publish"))


def before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Call `act` before every call of `owner.name`."""
    original = getattr(owner, name)

    def called(*args: Any, **more: Any) -> Any:
        act()
        return original(*args, **more)

    setattr(owner, name, called)


if __name__ == "__main__":
    main()
