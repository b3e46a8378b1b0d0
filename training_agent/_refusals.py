"""What cannot be guarded, or only in part, seen before the first update. Next: `_startup` tells all ranks.

Comes in: model, optimizers, settings of torch. Goes out: `ConfigurationError` with the remedy, or the name of
a check that is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer

from ._leaves import inside_backward
from ._masters import master_weights
from .errors import ConfigurationError
from .schedule import Schedule

# They call the closure several times in one update; known by name, since they come from anywhere.
_SEVERAL_CLOSURES = frozenset({"LBFGS", "SAM", "ASAM", "GSAM", "ESAM", "LookSAM"})
Hook = TypeVar("Hook", bound=Callable[..., Any])
_AFTER_BACKWARD = "Checks must see all gradients before the first update: call step() after loss.backward()."
_DIVERGING_HOOKS = frozenset({"post_localSGD_hook"})


def unwrapped(model: nn.Module) -> nn.Module:
    """The DDP module inside `torch.compile(ddp)`; anything else as it is."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, DistributedDataParallel) else model


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's and Lightning's wrappers, whose own step runs no hooks."""
    library = type(optimizer).__module__.partition(".")[0]
    inner = getattr(optimizer, "optimizer", None)
    wrapped = library in ("accelerate", "lightning", "pytorch_lightning")
    return inner if wrapped and isinstance(inner, Optimizer) else optimizer


def untraced(hook: Hook) -> Hook:
    """Keep `torch.compile` from compiling a hook of ours into the user's graph.

    Only where dynamo is loaded already: loading it takes about a second.
    """
    if "torch._dynamo" not in sys.modules:
        return hook
    disabled: Hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return disabled


def refuse_optimizers(optimizers: Sequence[Optimizer], parameters: dict[str, nn.Parameter]) -> None:
    """Refuse optimizers that update between checks, or parameters that nobody here updates.

    Raises:
        ConfigurationError: naming the optimizer or the parameters.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if isinstance(optimizer, LBFGS) or name in _SEVERAL_CLOSURES:
            raise ConfigurationError(
                f"{name} evaluates its closure several times in one update, so there is no single gradient "
                "to check. Use an optimizer that takes one gradient per step."
            )
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    strangers = [name for name, p in parameters.items() if id(p) not in held]
    if strangers and not master_weights(optimizers, parameters):
        raise ConfigurationError(
            f"{len(strangers)} trained parameters ({', '.join(strangers[:3])}) are in no optimizer given to "
            "attach(). With several optimizers pass all of them, in the order in which they step: "
            "attach(ddp, [first, second]). Parameters that are never trained need requires_grad=False. "
            "Master weights in an optimizer must hold the model's values, in its order, at attach()."
        )


def refuse_tensors(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Refuse parameters and gradients that checks do not read.

    Raises:
        ConfigurationError: naming parameters or modules.
    """
    complexes = [name for name, p in parameters.items() if p.is_complex()]
    if complexes:
        raise ConfigurationError(
            f"{', '.join(complexes[:3])}: complex parameters are not checked. Keep real and imaginary "
            "part as a real parameter and use torch.view_as_complex in the forward."
        )
    sparse = [
        f"{name} ({type(m).__name__})"
        for name, m in module.named_modules()
        if getattr(m, "sparse", False) is True
    ]
    if sparse:
        raise ConfigurationError(
            f"{', '.join(sparse[:3])}: sparse gradients are not checked. Build the layer with sparse=False."
        )
    fused = [name for name, p in parameters.items() if hasattr(p, "_in_backward_optimizers")]
    if fused:
        raise ConfigurationError(
            f"{', '.join(fused[:3])}: an optimizer is applied inside the backward. {_AFTER_BACKWARD}"
        )


def refuse_inside_backward() -> None:
    """Refuse an update that comes out of a running backward.

    Raises:
        ConfigurationError: on every rank alike, before the update.
    """
    if inside_backward():
        raise ConfigurationError(
            f"optimizer.step() was called inside the backward (optimizer-in-backward). {_AFTER_BACKWARD}"
        )


def anomaly_mode() -> str:
    """Why autograd's anomaly mode cannot be guarded, if it is on; "" otherwise.

    It raises inside the backward of the one rank that has a NaN, while the others wait in the all-reduce.
    """
    if not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        return ""
    return (
        "Autograd's anomaly mode (detect_anomaly) ends the backward of the rank with a NaN while the others "
        "wait for it: nobody could be named, and a NaN alarms without it. Switch it off, or use "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )


def diverging_hook(ddp: nn.Module) -> str | None:
    """Name of a communication hook under which replicas may hold different weights, or None."""
    for hook, _state in getattr(ddp, "_comm_hooks", []):
        if getattr(hook, "__name__", "") in _DIVERGING_HOOKS:
            return str(hook.__name__)
    return None


def unseen_save(step: int, last: int | None, schedule: Schedule) -> ConfigurationError:
    """What `before_save` raises where nobody looked; `last`: the step of the last passed weight check."""
    return ConfigurationError(
        f"The weights of step {step} were not compared (last passed: {last}). Save at steps that are due: "
        f"multiples of ckpt_every={schedule.ckpt_every} or check_every={schedule.check_every}."
    )


def wrap_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], check: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Put `check` between a closure's backward and the update; None without a closure.

    A second call within the step finds weights that the optimizer has moved, and is refused.
    """
    calls = 0

    def wrapped(closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise ConfigurationError(
                    "The optimizer called its closure twice in one step; checks need one gradient per "
                    "update. Use an optimizer that evaluates the closure once."
                )
            loss = closure()
            check()
            return loss

        return run

    def is_closure(value: Any) -> bool:
        return callable(value) and not isinstance(value, (Optimizer, torch.Tensor))

    if not any(is_closure(a) for a in (*args, *kwargs.values())):
        return None
    return (
        tuple(wrapped(a) if is_closure(a) else a for a in args),
        {k: wrapped(v) if is_closure(v) else v for k, v in kwargs.items()},
    )
