"""The published design as a guard with the agent's interface, so that the same scenarios run under both.

Order of a step: comm hook (local norms, division, all-reduce) -> local check -> on an audit step or a
non-finite one: ring replay through `rebuild_batch` -> reduced norm -> update -> every `check_every`:
fingerprints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.published.fingerprint import fingerprint
from tests.published.naming import name, third
from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    Independence,
    Job,
    Pair,
    Place,
    Verdict,
)
from training_agent.determinism import DeterministicMode
from training_agent.errors import SdcAlarm
from training_agent.faults import Phase
from training_agent.schedule import Schedule

RebuildBatch = Callable[[int, int], tuple[Any, ...]]  # (step, rank) -> arguments of compute_loss
_CURRENT: dict[int, PublishedGuard] = {}  # by id of the DDP model: a comm hook cannot be taken away


class PublishedGuard:
    """One guarded run."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        compute_loss: Callable[..., Tensor],
        rebuild_batch: RebuildBatch,
        schedule: Schedule,
        gpus_per_node: int,
        step: int = 0,
    ) -> None:
        self.ddp, self.optimizer, self.loss_of = ddp, optimizer, compute_loss
        self.rebuild_batch, self.schedule, self.step = rebuild_batch, schedule, step
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.offset = gpus_per_node
        self.gpus_per_node = gpus_per_node
        self.phase = Phase.TRAINING
        self.parameters = list(ddp.module.parameters())
        self.passes: list[int | None] = [None, None]
        self.audits_passed = 0
        self._determinism = DeterministicMode()
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before_update()),
            optimizer.register_step_post_hook(lambda *_: self._after_update()),
        ]
        if id(ddp) not in _CURRENT:
            ddp.register_comm_hook(None, _comm_hook_for(ddp))
        _CURRENT[id(ddp)] = self
        self.begin()

    def begin(self) -> None:
        """Forget the last step."""
        self.local_squares = torch.zeros(())
        self.prints: dict[int, Tensor] = {}
        self.loss: Tensor | None = None

    def compute_loss(self, model: nn.Module, *args: Any) -> Tensor:
        """The loop's loss; its bits are compared in the audit."""
        self.begin()
        if self.schedule.audit_due(self.step + 1):
            self._determinism.enter()
        loss = self.loss_of(model, *args)
        self.loss = loss.detach()
        return loss

    def after_load(self, manifest: dict[str, Any]) -> None:
        """Take over a checkpoint; replicas against each other."""
        self.step = manifest["step"]
        self.passes = [manifest["last_audit_pass"], manifest["last_weight_check_pass"]]
        self._check_weights()

    def before_save(self) -> None:
        """Nothing to look up: the check raised already."""

    def manifest(self) -> dict[str, Any]:
        """The checkpoint's tags."""
        return {
            "step": self.step,
            "last_audit_pass": self.passes[0],
            "last_weight_check_pass": self.passes[1],
            "audits_passed": self.audits_passed,
            "audits_skipped": 0,
            "tensors_compared": len(self.parameters),
            "bytes_compared": 1,
            "loss_audited": True,
        }

    def close(self) -> None:
        """Hooks off."""
        self._determinism.leave()
        for hook in self._hooks:
            hook.remove()

    def on_bucket(self, gradients: list[Tensor], owners: list[Tensor]) -> None:
        """Local norms and, on audit steps, fingerprints; before division and reduction."""
        for gradient, owner in zip(gradients, owners, strict=True):
            self.local_squares = self.local_squares + gradient.float().pow(2).sum()
            self.prints[id(owner)] = fingerprint([gradient])[0]

    def _before_update(self) -> None:
        step = self.step + 1
        nonfinite = [
            r for r, bad in enumerate(self._gather(not bool(torch.isfinite(self.local_squares)))) if bad
        ]
        if nonfinite or self.schedule.audit_due(step):
            pairs, names = self._audit(step)
            if nonfinite:
                verdict = next((n.verdict for n in names if n.rank == nonfinite[0]), None)
                self._alarm(Check.NONFINITE, step, [(r, verdict) for r in nonfinite], pairs, nonfinite)
            if pairs:
                self._alarm(Check.REPLAY, step, [(n.rank, n.verdict) for n in names], pairs)
            self.passes[0] = step
            self.audits_passed += 1
        self._determinism.leave()
        squares = sum(p.grad.float().pow(2).sum() for p in self.parameters if p.grad is not None)
        if not bool(torch.isfinite(torch.as_tensor(squares))):
            self._alarm(Check.NONFINITE, step, [], [], reduced=True)

    def _after_update(self) -> None:
        self.step += 1
        if self.schedule.weights_due(self.step):
            self._check_weights()

    def _check_weights(self) -> None:
        tables = self._gather(fingerprint(self.parameters).tolist())
        common = max(tables, key=tables.count)
        bad = [r for r, table in enumerate(tables) if table != common]
        if bad:
            self._alarm(Check.WEIGHTS, self.step, [(r, None) for r in bad], [])
        self.passes[1] = self.step

    def _audit(self, step: int) -> tuple[list[tuple[int, int]], list[Any]]:
        gradients = [self.prints.get(id(p)) for p in self.parameters]
        own = _short(self.loss, gradients)
        replayed = self._replay(step, (self.rank + self.offset) % self.world, Phase.REPLAY)
        originals, replays = self._gather(own), self._gather(replayed)
        ring = [(r, (r + self.offset) % self.world) for r in range(self.world)]
        pairs = [(r, t) for r, t in ring if originals[t] != replays[r]]
        answers: dict[tuple[int, int], str] = {}
        for _, target in pairs:
            for who in (third(target, self.offset, self.world), target):
                mine = self._replay(step, target, Phase.ARBITRATION) if who == self.rank else ""
                answers[who, target] = self._gather(mine)[who]
        names = name(
            pairs,
            lambda p: (originals[p[1]], replays[p[0]]),
            lambda w, t: answers[w, t],
            self.offset,
            self.world,
        )
        return pairs, names

    def _replay(self, step: int, target: int, phase: Phase) -> str:
        """Compute a peer's micro-batch on the wrapped module itself and put gradients and RNG back."""
        self.phase = phase
        kept, rng = [p.grad for p in self.parameters], torch.get_rng_state()
        for p in self.parameters:
            p.grad = None
        self._determinism.enter()
        with self.ddp.no_sync():
            loss = self.loss_of(self.ddp.module, *self.rebuild_batch(step, target))
            loss.backward()
        result = _short(
            loss.detach(),  # DDP's bucket holds zeros where a replay has no gradient at all
            [fingerprint([torch.zeros_like(p) if p.grad is None else p.grad])[0] for p in self.parameters],
        )
        for p, grad in zip(self.parameters, kept, strict=True):
            p.grad = grad
        torch.set_rng_state(rng)
        self.phase = Phase.TRAINING
        return result

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def _alarm(
        self,
        check: Check,
        step: int,
        named: list[tuple[int | None, str | None]],
        pairs: list[tuple[int, int]],
        nonfinite: list[int] | None = None,
        *,
        reduced: bool = False,
    ) -> NoReturn:
        last = self.passes[1] if check is Check.WEIGHTS else self.passes[0]
        alarm = Alarm(
            cluster="published",
            job=Job("published", "uid"),
            check=check,
            step=step,
            time="",
            findings=tuple(self._finding(check, rank, verdict) for rank, verdict in named),
            suspect_window=(step, step) if reduced else (min((last or 0) + 1, step), step),
            world_size=self.world,
            nodes=self.world // self.gpus_per_node,
            independence=Independence.NODE,
            nonfinite_ranks=tuple(nonfinite or ()),
            reduced_nonfinite=reduced,
            pairs=tuple(Pair(*p) for p in pairs),
            loss_audited=True,
        )
        raise SdcAlarm(alarm, "published design")

    def _finding(self, check: Check, rank: int | None, verdict: str | None) -> Finding:
        kind = FindingKind.CULPRIT if verdict == "culprit" else FindingKind.PAIR
        if check is Check.WEIGHTS:
            kind = FindingKind.WEIGHTS
        judged = Verdict(verdict) if verdict not in (None, "culprit") else None
        place = None if rank is None else Place(rank, rank % self.gpus_per_node, "", None, None)
        return Finding(kind, rank=rank, place=place, verdict=judged)


def _short(loss: Tensor | None, prints: list[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for tensor in (loss, *prints):
        digest.update(
            b"-" if tensor is None else tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def _comm_hook_for(ddp: DistributedDataParallel) -> Callable[..., Any]:
    key = id(ddp)

    def hook(_state, bucket):  # no annotations: DDP would compare them with its own objects
        _CURRENT[key].on_bucket(bucket.gradients(), bucket.parameters())
        divided = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(divided, async_op=True).get_future().then(lambda f: f.value()[0])

    return hook
