"""Each kind of model, loop and optimizer as one `Case` for four ranks.

Goes out: how to build the model and how one step runs. Next: `models_worker` trains each one guarded,
unguarded and with a fault.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.distributed import keeping, loops, models
from tests.distributed.loops import Loop
from training_agent import Schedule, observer
from training_agent.schedule import ScheduleWarning


def adamw(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def fused(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)]


def split(model: nn.Module) -> list[Optimizer]:
    parameters = list(model.parameters())
    return [torch.optim.SGD(parameters[:3], lr=1e-2), torch.optim.AdamW(parameters[3:], lr=1e-2)]


@dataclass(frozen=True)
class Case:
    """One model with its loop."""

    build: Callable[[], nn.Module] = models.Net
    step: Callable[[Loop, int], None] = loops.plain_step
    optimizers: Callable[[nn.Module], list[Optimizer]] = adamw
    ddp: dict[str, Any] = field(default_factory=dict)
    loss: Callable[..., Tensor] | None = models.loss_of  # None: the loop goes past guard.compute_loss
    prepare: Callable[[Loop], None] | None = None  # before attach
    schedule: Schedule = field(default_factory=lambda: Schedule(2, 2, None))
    options: dict[str, Any] = field(default_factory=dict)  # of attach
    compiled: str = ""  # "inside" or "around" DDP
    backend: Any = "aot_eager"  # of torch.compile
    past_loss: bool = False  # attach() gets the loss function, the loop calls the original
    hidden: bool = False  # attach() gets DDP, the loop calls what was compiled around it
    compiling: tuple[int, ...] = (0, 1, 2, 3)  # ranks that go through torch.compile
    steps: int = 7
    scaler: float = 0  # initial scale of a GradScaler; 0: none


def _count_calls(loop: Loop) -> None:
    """Two hooks: the second one is marked."""
    loop.notes["calls"] = loop.notes["watched"] = 0

    def hook(_module: nn.Module, _args: Any, _output: Tensor) -> None:
        loop.notes["calls"] += 1

    @observer
    def watching(_module: nn.Module, _args: Any, _output: Tensor) -> None:
        loop.notes["watched"] += 1

    loop.plain.drop.register_forward_hook(hook)
    loop.plain.drop.register_forward_hook(watching)


def _changing_hooks(loop: Loop) -> None:
    """One hook is part of the model by what it returns, one by what it keeps for the loss."""
    loop.plain.up.register_forward_hook(lambda _module, _args, output: output * 1.5)
    loop.plain.down.register_forward_hook(lambda module, _args, output: module.__dict__.update(kept=output))


def loss_with_kept(model: nn.Module, batch: models.Batch) -> Tensor:
    """Cross entropy and a penalty on what a hook kept."""
    return models.loss_of(model, batch) + model.module.down.__dict__["kept"].square().mean()  # type: ignore[union-attr]


def loss_with_ballast(model: nn.Module, batch: models.Batch) -> Tensor:
    """Every byte of the batch counts."""
    loss = models.loss_of(model, batch)
    return loss * batch["ballast"].cos().mean() if "ballast" in batch else loss


def _user_hooks(loop: Loop) -> None:
    """A tensor hook that changes the gradient, and a post-loops.accumulate hook that counts."""
    loop.notes["accumulated"] = 0

    def counts(_parameter: Tensor) -> None:
        loop.notes["accumulated"] += 1

    loop.plain.down.weight.register_hook(lambda gradient: gradient * 0.5)
    loop.plain.up.weight.register_post_accumulate_grad_hook(counts)


def _hook_in_front(loop: Loop) -> None:
    """Changes some batches before the guard sees them."""
    loop.plain.register_forward_pre_hook(
        lambda _module, args: (args[0] * 2,) if bool(args[0][0, 0] > 0) else None
    )


def _hooks_on_ddp(loop: Loop) -> None:
    """As those that watch weights and gradients put there, these with an effect."""
    loop.model.register_forward_hook(loops.doubling)
    loop.model.register_forward_pre_hook(
        lambda _module, args, kwargs: ((args[0] + 1,), kwargs) if bool(args[0][0, 1] > 0) else None,
        with_kwargs=True,
    )
    loop.model.register_forward_pre_hook(lambda _module, args: args[0] * 2)


def _backward_hook(loop: Loop) -> None:
    loop.plain.register_full_backward_pre_hook(
        lambda _module, left: (left[0] * 2,) if bool(left[0][0, 0] > 0) else None
    )


def _teacher(loop: Loop) -> None:
    """For the warm-up of unguarded runs; each loop makes its own copy later."""
    loop.plain.__dict__["teacher"] = [copy.deepcopy(loop.plain)]


def loss_with_teacher(model: nn.Module, batch: models.Batch) -> Tensor:
    """Cross entropy, and for some batches how far a copy of the model is."""
    loss = models.loss_of(model, batch)
    (teacher,) = model.module.__dict__["teacher"]  # type: ignore[union-attr]
    return loss + teacher(batch["x"]).detach().mean() if bool(batch["x"][0, 0] > 0) else loss


def _local_sgd(loop: Loop) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd

    state = local_sgd.PostLocalSGDState(None, None, start_localSGD_iter=100)
    loop.model.register_comm_hook(state, local_sgd.post_localSGD_hook)


def _note_returned(loop: Loop) -> None:
    loop.notes["returned"] = True  # for the warm-up of unguarded runs


def _schedule(**options: Any) -> Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return Schedule(2, 2, None, **options)


def _by_outcome() -> Schedule:
    """Audits at 2, 4 and 6, like all others."""
    return Schedule(audit_every=100, check_every=2, ckpt_every=None, max_poisoned_steps=1)


_DEFERRED = {"mode": "deferred"}

CASES: dict[str, Case] = {
    "plain": Case(),
    "deferred": Case(optimizers=fused, options=_DEFERRED),
    "deferred, not fused": Case(options=_DEFERRED),
    "deferred, fused SGD": Case(
        optimizers=lambda m: [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, fused=True)],
        options=_DEFERRED,
    ),
    "accumulation": Case(step=loops.accumulate),
    "accumulation without compute_loss": Case(step=loops.accumulate, loss=None),
    "large batches": Case(step=loops.ballasted, loss=loss_with_ballast),
    "static graph": Case(ddp={"static_graph": True}),
    "unused parameters": Case(models.Branching, ddp={"find_unused_parameters": True}),
    "frozen and thawed": Case(step=loops.freeze_and_thaw, ddp={"find_unused_parameters": True}),
    "tied weights": Case(models.Tied),
    "one layer under two names": Case(models.Repeated),
    "partly scripted": Case(models.PartlyScripted),
    "data replaced": Case(step=loops.replace_data),
    "buffers": Case(models.Stateful, ddp={"gradient_as_bucket_view": True}),
    "buffers, deferred": Case(models.Stateful, optimizers=fused, options=_DEFERRED),
    "forward hook": Case(prepare=_count_calls),
    "hooks that change": Case(prepare=_changing_hooks, loss=loss_with_kept),
    "users' hooks": Case(prepare=_user_hooks),
    "a hook after the guard's": Case(step=loops.late_hook),
    "a hook after the guard's, without compute_loss": Case(step=loops.late_hook, loss=None),
    "a hook before the guard's, without compute_loss": Case(prepare=_hook_in_front, loss=None),
    "hooks on DDP": Case(prepare=_hooks_on_ddp),
    "settings by rank": Case(step=loops.settings_by_rank),
    "a class's setting by rank": Case(models.Scaled, step=loops.class_setting_by_rank),
    "a copy of the model": Case(step=loops.with_copy, prepare=_teacher, loss=loss_with_teacher),
    "a buffer made by the first forward": Case(models.Positions),
    "checkpointing": Case(models.Checkpointed),
    "compiled inside": Case(compiled="inside"),
    "closure": Case(step=loops.closure),
    "closure, deferred": Case(step=loops.closure, optimizers=fused, options=_DEFERRED),
    "evaluation between": Case(step=loops.evaluate_between),
    "two optimizers": Case(step=loops.two_optimizers, optimizers=split),
    "odd tensors": Case(models.Odd, loss=models.loss_of_odd),
    "returned loss": Case(models.ReturnsLoss, step=loops.returned_loss, loss=None, prepare=_note_returned),
    "unreadable outputs": Case(
        models.ReturnsMore, step=loops.returned_loss, loss=None, prepare=_note_returned
    ),
    "returned loss and cache": Case(
        models.ReturnsCache, step=loops.returned_loss, loss=None, prepare=_note_returned
    ),
    "scaler": Case(step=loops.scaled, scaler=2.0**12),
    "scaler, fused": Case(step=loops.scaled, scaler=2.0**12, optimizers=fused),
    "scaler, fused, deferred": Case(step=loops.scaled, scaler=2.0**12, optimizers=fused, options=_DEFERRED),
    "fp16 autocast, scaler": Case(step=loops.half, scaler=2.0**4),
    "fp16 autocast, scaler, fused": Case(step=loops.half, scaler=2.0**4, optimizers=fused),
    "float32 inside autocast": Case(models.Routed, step=loops.half_forward),
    "float32 inside autocast, without compute_loss": Case(models.Routed, step=loops.half_forward, loss=None),
    "forward-only audits": Case(schedule=_schedule(kernels="default")),
    "forced kernels, deferred": Case(
        optimizers=fused, options=_DEFERRED, schedule=_schedule(kernels="forced")
    ),
    "by outcome": Case(schedule=_by_outcome()),
    "by outcome, deferred": Case(schedule=_by_outcome(), optimizers=fused, options=_DEFERRED),
    "fixed partners": Case(schedule=_schedule(partner="fixed")),
    **{
        name: Case(build, step, loss=loss, prepare=keeping.in_rank_order)
        for name, (build, step, loss) in keeping.KEEPING.items()
    },
}


# Trained without an alarm, not audited: skipped on all ranks and counted, or off by name.
UNAUDITED: dict[str, Case] = {
    "several forwards": Case(step=loops.several_forwards),
    "reentrant checkpointing": Case(models.Reentrant),
    "forgotten no_grad": Case(step=loops.forgotten_no_grad),
    "local SGD": Case(prepare=_local_sgd),
    "backward hooks, without compute_loss": Case(prepare=_backward_hook, loss=None),
    "noisy forward": Case(models.NoisyForward),
    "parameters that DDP leaves alone": Case(
        keeping.OwnRows, keeping.unclipped, prepare=keeping.in_rank_order
    ),
    "averages weights": Case(keeping.Averages, prepare=keeping.in_rank_order),
    "writes weights now and then": Case(keeping.Fades, prepare=keeping.in_rank_order),
    "a large memory": Case(models.Remembering, prepare=keeping.in_rank_order),
    "writes into its input": Case(keeping.ScalesItsInput, prepare=keeping.in_rank_order),
}
SCALED = tuple(name for name, case in CASES.items() if case.scaler)
NOISY = Case(models.NoisyBackward, schedule=Schedule(1, 10, None), steps=20)

_DECOMPOSED = "aot_eager_decomp_partition"  # other bits than eager, without a compiler
COMPILED: dict[str, Case] = {
    "decomposed inside": Case(compiled="inside", backend=_DECOMPOSED),
    "decomposed around": Case(compiled="around", backend=_DECOMPOSED),
    "decomposed around, buffers": Case(models.Stateful, compiled="around", backend=_DECOMPOSED),
    "decomposed around, accumulation": Case(
        compiled="around", backend=_DECOMPOSED, step=loops.accumulate, loss=None
    ),
    "decomposed around, users' hooks": Case(compiled="around", backend=_DECOMPOSED, prepare=_user_hooks),
}


def by_shape(graph: Any, inputs: Any) -> Any:
    """A compiler whose dynamic graphs have other bits than its static ones, as inductor's may."""
    dynamic = any(isinstance(value, torch.SymInt) for value in inputs)
    compile_with = torch._dynamo.lookup_backend(_DECOMPOSED if dynamic else "aot_eager")
    return compile_with(graph, inputs)  # type: ignore[arg-type]


# Graphs that some ranks have and others have not: replays differ, and every GPU is healthy.
RAGGED = Case(compiled="around", backend=by_shape, step=loops.ragged)
# Nobody can know that the loop calls something compiled: no replay gives the bits of its step.
HIDDEN = Case(compiled="around", backend=_DECOMPOSED, hidden=True, loss=None)
HIDDEN_ON_ONE = replace(HIDDEN, compiling=(2,))
INDUCTOR: dict[str, Case] = {  # needs a C++ compiler
    "inductor inside": Case(compiled="inside", backend="inductor"),
    "inductor around": Case(compiled="around", backend="inductor"),
}
