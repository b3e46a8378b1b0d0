"""Guarded training under `fully_shard`: each scenario on all ranks, on a model of its own.

Comes in: a mesh of replicas and shards. Goes out: per scenario what this rank saw. Next: `test_hsdp` compares
the ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from tests.distributed.small_model import Model, batch_for, compute_loss, settings_for
from training_agent import Guard, Schedule, attach
from training_agent._phase import Phase
from training_agent.checks.sharded import local_part
from training_agent.contract import encode
from training_agent.errors import CheckpointError, SdcAlarm

STEPS = 4
STRIKES = 3  # the step from which on something is wrong; step 4 is audited and checked
COUNTED = (
    "audits_passed",
    "audits_skipped",
    "weight_checks_passed",
    "state_tensors_compared",
    "loss_audited",
)


@dataclass
class Job:
    """One loop over two sharded blocks inside a sharded model, with BatchNorm and dropout."""

    mesh: Any
    guarded: bool = True
    whole_loss: bool = True
    micro_batches: int = 1
    schedule: Schedule = field(default_factory=lambda: Schedule(2, 2, 2))
    policy: str = "stop"
    unsendable_on: int | None = None  # whose batch cannot be pickled
    nan_data_on: int | None = None
    nan_only_first: bool = False  # of the micro-batches
    step: int = 0
    fired: int = 0  # a user's post-accumulate hook
    guard: Guard | None = None

    def __post_init__(self) -> None:
        self.rank = dist.get_rank()
        torch.manual_seed(7)
        self.model = Model()
        for block in self.model.blocks:
            fully_shard(block, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.model.head.bias.register_post_accumulate_grad_hook(self._on_accumulated)
        if self.guarded:
            self.guard = attach(
                self.model,
                self.optimizer,
                compute_loss=compute_loss if self.whole_loss else None,
                schedule=self.schedule,
                policy=self.policy,
                settings=settings_for(self.rank),
            )
        torch.manual_seed(100 + self.rank)

    def _on_accumulated(self, _parameter: Tensor) -> None:
        self.fired += 1

    def training(self) -> bool:
        """Whether the step itself is computed, and no replay."""
        return self.guard is None or self.guard.phase is Phase.TRAINING

    def strikes(self, rank: int) -> bool:
        return self.rank == rank and self.step >= STRIKES

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        scale = 1.0 / self.micro_batches
        if self.guard is not None and self.whole_loss:
            return self.guard.compute_loss(self.model, batch, scale=scale)
        return compute_loss(self.model, batch, scale=scale)

    def train(self, after_update: Callable[[], None]) -> None:
        for self.step in range(1, STEPS + 1):
            self.optimizer.zero_grad()
            for micro in range(self.micro_batches):
                batch: dict[str, Any] = batch_for(self.rank, 10 * self.step + micro)
                nan = micro == 0 or not self.nan_only_first
                if nan and self.nan_data_on is not None and self.strikes(self.nan_data_on):
                    batch["x"][0, 0] = float("nan")
                if self.rank == self.unsendable_on:
                    batch["unsendable"] = lambda: None
                last: Any = micro == self.micro_batches - 1
                self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
                self.loss(batch).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            after_update()

    def state(self) -> list[str]:
        """What an update writes (shards and moments of this rank), and all else: buffers and RNG. As bits."""
        updated = [p.detach() for p in self.model.parameters()]
        updated += [v for s in self.optimizer.state.values() for v in s.values()]
        return [_bits(updated), _bits([*self.model.buffers(), torch.get_rng_state()])]

    def shard(self, name: str) -> Tensor:
        """The words of this rank's shard."""
        return local_part(self.model.get_parameter(name).detach()).view(torch.int32).view(-1)

    def run(self, after_update: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Train; what all ranks must agree on, and this rank's own state."""
        states = [["", ""]]

        def applied() -> None:
            after_update()
            states.append(self.state())

        alarm, text = None, ""
        try:
            self.train(applied)
        except SdcAlarm as e:
            alarm, text = json.loads(encode(e.alarm)), str(e)
        untouched = states[-1][0] == self.state()[0]  # since the last update that was applied
        found = {"alarm": alarm, "text": text, "state": self.state(), "fired": self.fired, "kept": untouched}
        if self.guard is not None:
            manifest = self.guard.manifest()
            others = ("loss_audited", "notes", "digests", "steps_retried", "assurance")
            found |= {name: manifest[name] for name in (*COUNTED, *others)}
            found["step"] = self.guard.step
            found["whole"] = sum(p.numel() * p.element_size() for p in self.model.parameters())
            self.guard.abandon()
        return found


def _bits(tensors: list[Tensor]) -> str:
    raw = (local_part(t).contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)
    return hashlib.sha256(b"".join(raw)).hexdigest()[:16]


def spoiled(job: Job, rank: int, when: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """One element of a layer's output is x1000 on `rank`, in everything that it computes."""

    def strike(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        if not job.strikes(rank) or not when():
            return None
        delta = torch.zeros_like(output)
        delta[0, 3] = output.detach()[0, 3] * 999 + 1
        return output + delta

    layer: Any = job.model.blocks[1]
    layer.up.register_forward_hook(strike)
    return job.run()


def flipped(job: Job, rank: int, *, nan: bool = False) -> dict[str, Any]:
    """One bit of a shard is flipped after an update, or a NaN written there."""

    def overwrite() -> None:
        if job.strikes(rank) and job.step == STRIKES:
            words = job.shard("blocks.1.up.weight")
            words[5] = 0x7FC00000 if nan else words[5] ^ 1 << 22

    return job.run(overwrite)


def misled(job: Job, replica: range) -> dict[str, Any]:
    """All ranks of one replica compute the step with one gathered weight that is wrong."""

    def mislead(module: nn.Module, _args: Any) -> None:
        if job.step >= STRIKES and job.rank in replica and job.training():
            with torch.no_grad():
                module.get_submodule("up").get_parameter("weight")[1, 1] += 1.0

    job.model.blocks[1].register_forward_pre_hook(mislead)
    return job.run()


def spoiled_moment(job: Job, rank: int) -> dict[str, Any]:
    """One moment is wrong after an update, too little to change the weights at once."""

    def overwrite() -> None:
        if job.strikes(rank) and job.step == STRIKES:
            state = job.optimizer.state[job.model.get_parameter("blocks.1.up.weight")]
            local_part(state["exp_avg"]).view(-1)[2] += 1.0

    return job.run(overwrite)


def flipped_table(job: Job, rank: int) -> dict[str, Any]:
    """One bit of a buffer that nobody writes, which every rank holds whole."""
    job.model.register_buffer("table", 1.1 ** -torch.arange(32.0))

    def overwrite() -> None:
        if job.strikes(rank) and job.step == STRIKES:
            job.model.get_buffer("table").data.view(torch.int32)[9] ^= 1 << 20

    return job.run(overwrite)


def resumed(mesh: Any, bad: int) -> dict[str, Any]:
    """A checkpoint's manifest, taken over by a healthy restart, and by one with a damaged shard."""
    first = Job(mesh)
    first.train(lambda: None)
    assert first.guard is not None
    first.guard.before_save()
    manifest = json.loads(json.dumps(first.guard.manifest()))
    saved = {key: local_part(value).clone() for key, value in first.model.state_dict().items()}
    found: dict[str, Any] = {"passed": manifest["passed_at_this_step"]}
    for name, damaged in (("one shard", (bad,)), ("everywhere", range(dist.get_world_size()))):
        job = Job(mesh)
        assert job.guard is not None
        for key, value in job.model.state_dict().items():
            local_part(value).copy_(saved[key])
        if name == "one shard":
            job.guard.after_load(manifest)
            found["whole"] = job.guard.step
        if job.rank in damaged:
            job.shard("blocks.0.up.weight")[1] ^= 1 << 3
        try:
            job.guard.after_load(manifest)
        except SdcAlarm as e:
            found[name] = ["alarm", list(e.alarm.named_ranks)]
        except CheckpointError as e:
            found[name] = ["refused", str(e)]
    return found


def both(mesh: Any, name: str, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A healthy loop with and without a guard."""
    yield f"healthy, {name}", Job(mesh, **options).run()
    yield f"unguarded, {name}", Job(mesh, guarded=False, **options).run()


def two_replicas(mesh: Any, bad: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What does not need three."""
    yield "persistent", spoiled(Job(mesh), bad)
    yield "flip", flipped(Job(mesh, schedule=Schedule(None, 4, None)), bad)


def short(mesh: Any, bad: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What every test run looks at."""
    yield from both(mesh, "accumulation", micro_batches=2)
    yield from two_replicas(mesh, bad)
    first = Job(mesh, micro_batches=2, nan_data_on=bad, nan_only_first=True)
    yield "NaN in the first micro-batch", first.run()
    layered = Schedule(2, 2, 2, layer_every=1)
    yield "a batch that cannot be sent", Job(mesh, unsendable_on=bad, schedule=layered).run()
    yield "NaN in a stored shard", flipped(Job(mesh), bad, nan=True)
    yield "gathered weights", misled(Job(mesh), range(bad - bad % 2, bad - bad % 2 + 2))
    yield "table", flipped_table(Job(mesh), bad)
    yield "resumed", resumed(mesh, bad)


def long(mesh: Any, bad: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rest of the kinds."""
    loose = Schedule(2, 2, 2, kernels="default")
    yield from both(mesh, "module", whole_loss=False)
    yield from both(mesh, "forward-only audits", schedule=loose)
    yield from both(mesh, "forced kernels", schedule=Schedule(2, 2, 2, kernels="forced"))
    once = Job(mesh, whole_loss=False)
    yield "once", spoiled(once, bad, lambda: once.step == STEPS and once.training())
    replayer = Job(mesh)
    yield "replayer", spoiled(replayer, bad, lambda: not replayer.training())
    forward = Job(mesh, schedule=loose)
    yield "forward-only", spoiled(forward, bad)
    yield "moment", spoiled_moment(Job(mesh), bad)
    unaudited = Job(mesh, schedule=Schedule(None, 2, None), nan_data_on=bad)
    yield "NaN in the data", Job(mesh, nan_data_on=bad).run()
    yield "NaN without audits", unaudited.run()
    again = Job(mesh, policy="retry")
    tries = iter((True, False))
    yield "retried", spoiled(again, bad, lambda: again.step == STEPS and again.training() and next(tries))
    yield "unguarded, retried", Job(mesh, guarded=False).run()
