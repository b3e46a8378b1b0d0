"""Healthy loops that the published design breaks, and faults that it answers wrongly: one job, either guard.

Comes in: which design. Goes out: one short result per trial, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.published.design import PublishedGuard
from training_agent import AgentSettings, Schedule, SdcAlarm, attach
from training_agent.contract import Job
from training_agent.faults import EVERYWHERE, Element, FaultSpec, Flip, Injection, Persistence, Where

STEPS, EVERY, GPUS = 8, 3, 2
Trial = Callable[["Loop"], str]


class Net(nn.Module):
    """Two layers and a branch that only some ranks take."""

    def __init__(self, *, branch: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.branch = nn.Linear(12, 24), nn.Linear(24, 6), nn.Linear(24, 6)
        self.taken = branch
        if not branch:
            self.branch = nn.Identity()

    def forward(self, x: Tensor, take: bool = False) -> Tensor:
        hidden = F.gelu(F.layer_norm(self.up(x), (24,)))
        return self.down(hidden) + (self.branch(hidden) if take and self.taken else 0)


class Loop:
    """A few guarded steps; `design` is "published" or "ours"."""

    def __init__(self, design: str) -> None:
        self.design, self.rank = design, dist.get_rank()

    def batch(self, step: int, rank: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(100 * step + rank)
        y = torch.randint(0, 6, (8,), generator=generator)
        return torch.randn(8, 12, generator=generator), y, step % 2 == rank % 2

    def model(self, **options: Any) -> nn.Module:
        torch.manual_seed(2)
        return Net(**options)

    def run(
        self,
        model: nn.Module,
        *,
        loss_of: Callable[..., Tensor] | None = None,
        wrap: Callable[[nn.Module], nn.Module] = lambda ddp: ddp,
        prepare: Callable[[DistributedDataParallel, torch.optim.Optimizer, Any], Any] = lambda *_: None,
        batch: Callable[[int, int], tuple[Any, ...]] | None = None,
        outside: Callable[[], Any] | None = None,
        **ddp_options: Any,
    ) -> tuple[str, Any]:
        """Train; "no alarm", or what the alarm says, or the error that ended it, and the guard."""
        ddp = DistributedDataParallel(model, **ddp_options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        called, batch_of = wrap(ddp), batch or self.batch
        loss_of = loss_of or _loss
        schedule = Schedule(EVERY, EVERY, None)
        if self.design == "published":
            guard: Any = PublishedGuard(ddp, optimizer, loss_of, batch_of, schedule, GPUS)
        else:
            node = self.rank // GPUS
            settings = AgentSettings(
                cluster="c",
                job=Job("j", "u"),
                node=f"hyperpod-i-{node:017x}",
                gpu_uuids=tuple(f"GPU-{node}-{i}" for i in range(GPUS)),
            )
            guard = attach(called, optimizer, compute_loss=loss_of, schedule=schedule, settings=settings)
        self.guard = guard
        kept, step = prepare(ddp, optimizer, guard), 0
        try:
            for step in range(1, STEPS + 1):
                optimizer.zero_grad()
                arguments = batch_of(step, self.rank)
                if outside is None:
                    loss = guard.compute_loss(called, *arguments)
                else:
                    with outside():
                        loss = guard.compute_loss(called, *arguments)
                loss.backward()
                optimizer.step()
            return "no alarm", kept
        except SdcAlarm as e:
            names = sorted({f.rank for f in e.alarm.findings if f.rank is not None})
            kinds = "/".join(sorted({f.kind.value for f in e.alarm.findings}))
            return f"alarm {e.alarm.check.value} ({kinds}) at {e.alarm.step}, names {names}", kept
        except RuntimeError as e:
            return f"{type(e).__name__} at {step}: {str(e).splitlines()[0].split('. ')[0][:90]}", kept
        finally:
            guard.close()


def _loss(model: nn.Module, x: Tensor, y: Tensor, take: bool) -> Tensor:
    return F.cross_entropy(model(x, take), y)


def unused_parameters(loop: Loop) -> str:
    """A branch that half of the ranks take in turn."""
    return loop.run(loop.model(branch=True), find_unused_parameters=True)[0]


def hooks(loop: Loop) -> str:
    """How often a user's post-accumulate hook fires in one audited step."""
    model, fired, audited = loop.model(), [0], []

    def prepare(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, guard: Any) -> None:
        model.up.weight.register_post_accumulate_grad_hook(lambda _p: fired.__setitem__(0, fired[0] + 1))
        optimizer.register_step_post_hook(lambda *_: (audited.append(fired[0]), fired.__setitem__(0, 0)))

    loop.run(model, prepare=prepare)
    return f"fires {audited[EVERY - 1]} times a step"


def compiled(loop: Loop) -> str:
    """`torch.compile` around DDP, no fault. The decompositions alone change bits; no compiler is needed."""
    torch._dynamo.reset()
    return loop.run(loop.model(), wrap=lambda ddp: torch.compile(ddp, backend="aot_eager_decomp_partition"))[
        0
    ]


def autocast_outside(loop: Loop) -> str:
    """The loop, not the loss function, opens bf16 autocast; no fault."""
    return loop.run(loop.model(), outside=lambda: torch.autocast("cpu", dtype=torch.bfloat16))[0]


def data_nan(loop: Loop) -> str:
    """A NaN in one rank's data; the GPU is healthy."""

    def batch(step: int, rank: int) -> tuple[Any, ...]:
        x, y, take = loop.batch(step, rank)
        if (step, rank) == (4, 3):
            x[0, 0] = float("nan")
        return x, y, take

    return loop.run(loop.model(), batch=batch)[0]


def optimizer_state(loop: Loop) -> str:
    """A bit of `exp_avg` flipped on rank 3 in the update of step 6, which is saved."""
    model = loop.model()

    def prepare(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, guard: Any) -> Injection:
        spec = FaultSpec(Where.OPTIMIZER_STATE, Flip((22,)), 3, 6, Persistence.ONCE, seed=1)
        return Injection(
            spec, rank=loop.rank, step=lambda: guard.step + 1, module=model.down, optimizer=optimizer
        )

    ended, fault = loop.run(model, prepare=prepare)
    struck = [0] * dist.get_world_size()
    dist.all_gather_object(struck, fault.strikes)
    assert sum(struck) == 1
    return ended if ended != "no alarm" else "saved, tagged as passed"


def two_identical(loop: Loop) -> str:
    """Ranks 1 and 3 give the same wrong bits: as far apart as the ring is wide."""
    model = loop.model()

    def prepare(
        ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, guard: Any
    ) -> list[Injection]:
        return [
            Injection(
                FaultSpec(Where.FORWARD_OUTPUT, Element(1000.0), rank, phases=EVERYWHERE),
                rank=loop.rank,
                step=lambda: guard.step + 1,
                phase=lambda: guard.phase,
                module=model.down,
            )
            for rank in (1, 3)
        ]

    return loop.run(model, prepare=prepare)[0]


# Ends its process group under the published design, so it has a launch of its own.
CRASHES = "unused parameters that differ by rank"

TRIALS: dict[str, Trial] = {
    CRASHES: unused_parameters,
    "a user's post-accumulate hook": hooks,
    "autocast opened by the loop, no fault": autocast_outside,
    "NaN in the data of rank 3": data_nan,
    "a moment of rank 3 flipped before the save": optimizer_state,
    "ranks 1 and 3 wrong with identical bits": two_identical,
    "torch.compile around DDP, no fault": compiled,
}

SHORT = (
    "NaN in the data of rank 3",
    "a user's post-accumulate hook",
    "ranks 1 and 3 wrong with identical bits",
)
