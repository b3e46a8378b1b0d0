"""What cannot be guarded, or only in part, seen before the first update. Next: `_startup` tells all ranks.

Comes in: model, optimizers, settings of torch. Goes out: `ConfigurationError` with the remedy, or the name of
a check that is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer

from ._leaves import inside_backward
from ._masters import master_weights
from ._readable import readable
from .checks.sharded import is_sharded
from .errors import ConfigurationError

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


class OurHook:
    """A hook of ours on a user's module; in a copy or a file of that module it does nothing."""

    __slots__ = ("_hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        return self._hook(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return no_hook, ()


def no_hook() -> Callable[..., Any]:
    """What `OurHook` is once it was pickled or copied."""
    return OurHook(_nothing)


def _nothing(*_args: Any) -> None:
    pass


def kept_out(hook: Callable[..., Any]) -> OurHook:
    """Neither compiled into the user's graph nor written into a file with the user's module."""
    call: Any = OurHook.__call__
    if not getattr(call, "_torchdynamo_disable", False):
        OurHook.__call__ = untraced(call)  # type: ignore[method-assign]
    return OurHook(hook)


def group_of(ddp: nn.Module) -> dist.ProcessGroup:
    """The replicas of `ddp`.

    Raises:
        ConfigurationError: not wrapped in DDP, or alone. The same on every rank.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise ConfigurationError(
            f"attach() got a {type(ddp).__name__}. Checks compare replicas: wrap the model in "
            "torch.nn.parallel.DistributedDataParallel first and pass the wrapper, or shard it with "
            "fully_shard() over a mesh of replicas and shards (HSDP)."
        )
    group: dist.ProcessGroup = ddp.process_group
    world = dist.get_world_size(group)
    if world < 2:
        raise ConfigurationError(
            f"The job has {world} rank. Checks compare replicas with each other: start two ranks or more "
            "(three nodes to name a faulty one on independent evidence)."
        )
    return group


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
        if not getattr(type(optimizer).step, "hooked", False):
            raise ConfigurationError(
                f"{name}.step() runs no optimizer hooks, so no update would be seen: its __init__ does not "
                "call that of torch.optim.Optimizer. Pass the optimizer that it holds to attach()."
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
    """Refuse a model that takes no hooks, and parameters and gradients that checks do not read.

    Raises:
        ConfigurationError: naming parameters or modules.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigurationError(
            "The model as a whole is scripted (torch.jit.script), and takes no hooks. Put it into an "
            "nn.Module whose forward calls it, and that into DDP; scripted parts of a model are checked."
        )
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
    every = module.named_parameters()
    empty = [
        f"{name} ({type(p.data).__name__})" for name, p in every if not is_sharded(p) and not readable(p)
    ]
    if empty:
        raise ConfigurationError(
            f"{', '.join(empty[:3])}: parameters without bytes of their own (on the meta device, or a "
            "subclass that wraps other tensors, such as NF4Tensor) are not checked. Use plain ones."
        )
    fused = [name for name, p in parameters.items() if hasattr(p, "_in_backward_optimizers")]
    if fused:
        raise ConfigurationError(
            f"{', '.join(fused[:3])}: an optimizer is applied inside the backward. {_AFTER_BACKWARD}"
        )


def refuse_update() -> None:
    """Refuse an update that comes out of a running backward, or that a CUDA graph records.

    Raises:
        ConfigurationError: on every rank alike, before the update.
    """
    _refuse_recording()
    if inside_backward():
        raise ConfigurationError(
            f"optimizer.step() was called inside the backward (optimizer-in-backward). {_AFTER_BACKWARD}"
        )


def refuse_forward(ddp: nn.Module) -> None:
    """Refuse DDP's way to let ranks run out of batches, at each forward inside of it, and CUDA graphs.

    Raises:
        ConfigurationError: on every rank alike.
    """
    _refuse_recording()
    if getattr(getattr(ddp, "_join_config", None), "enable", False):
        raise ConfigurationError(
            "Inside ddp.join() a rank without batches answers DDP's collectives alone, and every check would "
            "wait for it. Give all ranks the same number of batches (DistributedSampler, drop_last=True)."
        )


def _refuse_recording() -> None:
    # Without a driver the second question is an error.
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "The loop records a CUDA graph of its step or its update. Played back, it runs without the hooks "
            "that the checks hang on: nothing would be checked. Record parts of the model at most, as "
            "torch.compile(mode='reduce-overhead') does."
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


def left_to_ranks(ddp: nn.Module, module: nn.Module) -> frozenset[str]:
    """Parameters that DDP was told to ignore: nobody keeps the ranks' copies equal."""
    ignored = frozenset(getattr(ddp, "parameters_to_ignore", ()))
    if not ignored:
        return ignored
    return frozenset(name for name, _ in module.named_parameters() if name in ignored)


def own_by_rank(outer: nn.Module, module: nn.Module) -> str | None:
    """Why nothing can be replayed where ranks have weights of their own; None where they have none."""
    names = sorted(left_to_ranks(outer, module))
    if not names:
        return None
    return (
        f"DDP was told to leave {', '.join(names[:3])} alone, so each rank computes with weights of its own"
    )


def diverging_hook(ddp: nn.Module) -> str | None:
    """Name of a communication hook under which replicas may hold different weights, or None."""
    for hook, _state in getattr(ddp, "_comm_hooks", []):
        if getattr(hook, "__name__", "") in _DIVERGING_HOOKS:
            return str(hook.__name__)
    return None


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
