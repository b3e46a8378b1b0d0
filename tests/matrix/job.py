"""One rank of the matrix: a small decoder, its snapshots, and one guarded run per case.

Comes in: a `Case`. Goes out: a `Result`, raw. Nothing here knows what is expected.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.llama import Llama, ModelConfig, micro_batch
from tests.matrix.blind import blinded
from tests.matrix.rows import Case
from training_agent import AgentError, AgentSettings, Schedule, SdcAlarm, attach, faults
from training_agent.contract import Job, encode
from training_agent.faults import FaultSpec, Injection, Persistence, Phase, Where
from training_agent.schedule import ScheduleWarning

MODEL = ModelConfig(vocabulary=48, width=16, layers=2, heads=2, feed_forward=32, context=8)
SNAPSHOTS = (19, 21, 29, 30)
PHASES = {"everywhere": faults.EVERYWHERE, "step": faults.STEP_ONLY, "replays": faults.REPLAYS}
FEATURES = {
    "deferred": "mode" in inspect.signature(attach).parameters,
    "forward-only": "kernels" in inspect.signature(Schedule).parameters,
}


@dataclass
class Result:
    """What one case left behind on one rank."""

    alarm: str | None = None  # JSON, as published
    error: str = ""  # anything else that was raised
    applied: int = 0
    saved: list[int] = field(default_factory=list)
    passes: dict[str, list[int | None]] = field(default_factory=dict)  # saved step: last audit, weight check
    before: list[str] = field(default_factory=list)  # weights, moments, RNG before the last update was tried
    after: list[str] = field(default_factory=list)  # the same at the end
    strikes: int = 0
    manifest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one step of the healthy run."""

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    rng: Tensor
    sdc: dict[str, Any]


class Decoder(Llama):
    """Takes an extra gain for each token, the continuous input that a data NaN needs."""

    def forward(self, tokens: Tensor, gain: Tensor) -> Tensor:
        x = self.embedding(tokens) * gain
        for block in self.blocks:
            x = block(x, self.rotation[: tokens.shape[1]])
        out: Tensor = self.head(self.norm(x))
        return out


class MatrixJob:
    """One process's model, and its snapshots per dtype."""

    def __init__(self, rank: int, layout: dict[str, Any]) -> None:
        self.rank, self.layout = rank, layout
        self._ddps: dict[bool, DistributedDataParallel] = {}
        self._snapshots: dict[tuple[str, bool], dict[int, Snapshot]] = {}
        self._fused = False
        self._poison: dict[str, Any] | None = None

    def run(self, case: Case, schedule: dict[str, Any], shift: int) -> Result:
        """Restore the snapshot, inject, train to the end or to the alarm."""
        dtype = case.config.dtype
        self._fused = case.config.mode == "deferred"  # the gate on the device needs a fused optimizer
        kind = dtype, self._fused
        if kind not in self._snapshots:
            self._snapshots[kind] = self._healthy(dtype)
        self._poison = case.row.get("data_nan")
        with blinded(case.row["off"] if case.blinded else ()):
            return self._guarded(case, schedule, shift, self._snapshots[kind][case.start])

    def _ddp(self, *, hooked: bool) -> DistributedDataParallel:
        """Wrapped once; a second one for faults inside the all-reduce, which take the comm-hook slot."""
        if hooked not in self._ddps:
            torch.manual_seed(3)
            self._ddps[hooked] = DistributedDataParallel(Decoder(MODEL))
        return self._ddps[hooked]

    def _healthy(self, dtype: str) -> dict[int, Snapshot]:
        ddp = self._ddp(hooked=False)
        torch.manual_seed(3)
        ddp.module.load_state_dict(Decoder(MODEL).state_dict())
        torch.manual_seed(self.rank)
        optimizer = _optimizer(ddp, fused=self._fused)
        loss_of = loss_function(dtype)
        guard = self._attach(ddp, optimizer, loss_of, Schedule(10, 10, None), {})
        kept = {}
        for step in range(1, max(SNAPSHOTS) + 1):
            optimizer.zero_grad()
            guard.compute_loss(ddp, *self.batch(step, self.rank)).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            if step in SNAPSHOTS:
                state = {k: v.clone() for k, v in ddp.module.state_dict().items()}
                kept[step] = Snapshot(
                    state, _copied(optimizer.state_dict()), torch.get_rng_state(), guard.manifest()
                )
        guard.close()
        return kept

    def _attach(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        loss_of: Callable[..., Tensor] | None,
        schedule: Schedule,
        more: dict[str, Any],
    ) -> Any:
        """The guard; the published design puts its own here."""
        per_node = self.layout["ranks"] // self.layout["nodes"]
        node = self.rank // per_node
        settings = AgentSettings(
            cluster="matrix",
            job=Job("matrix", "uid"),
            node=f"hyperpod-i-{node:017x}",
            gpu_uuids=tuple(f"GPU-{node}-{i}" for i in range(per_node)),
        )
        return attach(ddp, optimizer, compute_loss=loss_of, schedule=schedule, settings=settings, **more)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Tokens and gains of one rank at one step, with the row's NaN in them."""
        tokens = micro_batch(MODEL, 1, step, rank)
        gain = torch.ones(tokens.shape[0], tokens.shape[1] - 1, 1)
        poison = self._poison
        if poison and (self.layout[poison["role"]], poison["step"]) == (rank, step):
            gain[0, 2] = float("nan")
        return tokens, gain

    def _guarded(self, case: Case, schedule: dict[str, Any], shift: int, at: Snapshot) -> Result:
        row, out = case.row, Result()
        ddp = self._ddp(hooked=any(f["where"] == Where.REDUCED_GRADIENT.value for f in row["faults"]))
        ddp.module.load_state_dict(at.model)
        torch.set_rng_state(at.rng)
        optimizer = _optimizer(ddp, fused=self._fused)
        optimizer.load_state_dict(_copied(at.optimizer))
        guard: Any = None
        step = [case.start]
        injections = [
            self._inject(
                spec,
                case,
                shift,
                ddp,
                optimizer,
                lambda: step[0],
                lambda: guard.phase if guard else Phase.TRAINING,
            )
            for spec in row["faults"]
        ]
        loss_of = loss_function(case.config.dtype)
        for injection in injections:
            loss_of = injection.loss(loss_of)
        given = row.get("compute_loss", True)
        guarded_by = self._schedule(schedule, case.config.partner)
        try:
            guard = self._attach(
                ddp,
                optimizer,
                loss_of if given else None,
                guarded_by,
                {"mode": case.config.mode} if FEATURES["deferred"] else {},
            )
            for injection in injections:
                injection.after_load()
            guard.after_load(at.sdc)
            for step[0] in range(case.start + 1, row["steps"] + 1):
                call = guard.compute_loss if given else loss_of
                self._step(guard, guarded_by, ddp, optimizer, call, step[0], out)
        except SdcAlarm as e:
            out.alarm = encode(e.alarm)
        except AgentError as e:
            out.error = f"{type(e).__name__}: {e}"
        out.after = _state(ddp, optimizer)
        out.strikes = sum(i.strikes for i in injections)
        for injection in injections:
            injection.close()
        if guard is not None:
            out.applied, out.manifest = guard.step, {**guard.manifest(), "digests": None}
            guard.close()
        optimizer.zero_grad(set_to_none=True)
        return out

    def _step(
        self,
        guard: Any,
        schedule: Schedule,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        loss_of: Callable[..., Tensor],
        step: int,
        out: Result,
    ) -> None:
        optimizer.zero_grad()
        loss_of(ddp, *self.batch(step, self.rank)).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        out.before = _state(ddp, optimizer)
        optimizer.step()
        if schedule.checkpoint_due(step):
            guard.before_save()
            out.saved.append(step)
            manifest = guard.manifest()
            out.passes[str(step)] = [manifest["last_audit_pass"], manifest["last_weight_check_pass"]]

    def _schedule(self, values: dict[str, Any], partner: str) -> Schedule:
        known = {k: v for k, v in values.items() if k != "deterministic"}
        if FEATURES["forward-only"]:
            known["kernels"] = "switched" if values.get("deterministic", True) else "default"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScheduleWarning)
            return Schedule(**known, partner=partner)  # type: ignore[arg-type]

    def _inject(
        self,
        fault: dict[str, Any],
        case: Case,
        shift: int,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        step: Callable[[], int],
        phase: Callable[[], Any],
    ) -> Injection:
        role = fault["role"]
        rank = role if role is None or isinstance(role, int) else self.layout.get(role)
        if role == "replayer":
            rank = (self.layout["victim"] - shift) % self.layout["ranks"]
        block = ddp.module.blocks[1]
        spec = FaultSpec(
            Where(fault["where"]),
            shape_of(fault["shape"], case.config.dtype),
            rank,
            fault["step"],
            Persistence(fault.get("persistence", "always")),
            phases=PHASES[fault.get("phases", "everywhere")],
            seed=5,
        )
        return Injection(
            spec,
            rank=self.rank,
            step=step,
            phase=phase,
            module=block.attention.out if fault.get("layer") == "attention" else block.feed_forward.down,
            optimizer=optimizer,
            ddp=ddp if spec.where is Where.REDUCED_GRADIENT else None,
            index=fault.get("index", 0),
        )


def shape_of(written: list[Any], dtype: str) -> faults.Shape:
    """A shape from its JSON form; `Bf16Bit` is the same binary digit in either type."""
    name, *arguments = written
    if name == "Bf16Bit":
        return faults.Flip((arguments[0] + (16 if dtype == "fp32" else 0),))
    if name == "Flip":
        return faults.Flip(tuple(arguments[0]))
    shape: faults.Shape = getattr(faults, name)(*(float(a) if isinstance(a, str) else a for a in arguments))
    return shape


def loss_function(dtype: str) -> Callable[..., Tensor]:
    """Cross entropy of the next token, under bf16 autocast where the dtype says so."""

    def compute_loss(model: nn.Module, tokens: Tensor, gain: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(tokens[:, :-1], gain)
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    return compute_loss


def _optimizer(ddp: DistributedDataParallel, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(ddp.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)


def _state(ddp: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    moments = [v for state in optimizer.state.values() for _, v in sorted(state.items())]
    groups = [list(ddp.state_dict().values()), moments, [torch.get_rng_state()]]
    return [_hash([t for t in group if isinstance(t, Tensor)]) for group in groups]


def _hash(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value
