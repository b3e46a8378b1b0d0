"""What `attach` was given, before anything is done with it: kinds of arguments, sharded optimizers, guards.

Comes in: the arguments as they are. Goes out: `ConfigurationError` with a sentence, or nothing. Next:
`_startup` tells all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ._refusals import unwrapped_optimizer
from .errors import ConfigurationError
from .schedule import Schedule
from .settings import AgentSettings

if TYPE_CHECKING:
    from ._startup import Wishes

# Optimizers whose state is spread over the ranks, by library and class: known without importing one of them.
_SHARDED = frozenset(
    {
        ("torch", "ZeroRedundancyOptimizer"),
        ("fairscale", "OSS"),
        ("deepspeed", "DeepSpeedZeroOptimizer"),
        ("deepspeed", "DeepSpeedZeroOptimizer_Stage3"),
        ("megatron", "DistributedOptimizer"),
        ("apex", "DistributedFusedAdam"),
        ("apex", "DistributedFusedLAMB"),
        ("colossalai", "LowLevelZeroOptimizer"),
    }
)
_FUNCTION = "a function, or None"


def optimizers_in(given: Any) -> tuple[Any, ...]:
    """The optimizers among them inside of libraries' wrappers; whatever else was given, as it is."""
    several = isinstance(given, Iterable) and not isinstance(given, (Optimizer, str))
    return tuple(map(unwrapped_optimizer, given if several else (given,)))


def refuse_given(optimizers: Sequence[Any], wishes: Wishes, *, guarded: bool) -> None:
    """Refuse arguments of another kind than `attach` takes, and a second guard.

    Args:
        guarded: the model has a guard already, which nobody has closed.

    Raises:
        ConfigurationError: naming the argument and what to give.
    """
    for optimizer in optimizers:
        _refuse_sharded(optimizer)
        _kind("optimizer", optimizer, isinstance(optimizer, Optimizer), "an optimizer, or a list of them")
    _functions(wishes)
    _kind("schedule", wishes.schedule, isinstance(wishes.schedule, Schedule), "Schedule(...), or None")
    step = wishes.step
    _kind("step", step, _count(step), "the number of updates applied so far, from 0 on")
    own = wishes.settings
    _kind("settings", own, own is None or isinstance(own, AgentSettings), "AgentSettings(...), or None")
    reporter, store = wishes.reporter, wishes.checkpoints
    talks = _has(reporter, "started", "progress", "alarm", "close")
    _kind("reporter", reporter, talks, "a JobReporter, your own, or None")
    _kind("checkpoints", store, _has(store, "newest", "mark_doubtful"), "a CheckpointStore, or None")
    if guarded:
        raise ConfigurationError(
            "attach(): this model has a guard already, and two would end each other's steps. close() the "
            "first one, or abandon() it after an error, before you attach again."
        )


def refuse_trained(
    batch_of: Any,
    compute_loss: Any,
    steps: Any,
    clip_norm: Any,
    scheduler: Any,
    on_step: Any,
    checkpoints: Any,
) -> None:
    """The same for what `train` takes beside the arguments of `attach`.

    Raises:
        ConfigurationError: naming the argument and what to give.
    """
    stepped = _has(scheduler, "step", "state_dict", "load_state_dict")
    for name, value, good, wanted in (
        ("batch_of", batch_of, callable(batch_of), "a function of the step"),
        ("compute_loss", compute_loss, callable(compute_loss), "the loss function"),
        ("steps", steps, _count(steps), "the number of updates to train to"),
        ("clip_norm", clip_norm, clip_norm is None or hasattr(clip_norm, "__float__"), "a number, or None"),
        ("scheduler", scheduler, stepped, "a learning rate scheduler, or None"),
        ("on_step", on_step, on_step is None or callable(on_step), _FUNCTION),
        ("checkpoints", checkpoints, _has(checkpoints, "save", "load"), "a CheckpointStore, or None"),
    ):
        _kind(name, value, good, wanted, "train")


def _functions(wishes: Wishes) -> None:
    given: dict[str, Callable[..., Any] | None] = {
        "compute_loss": wishes.compute_loss,
        "finish": wishes.finish,
        "rebuild_batch": wishes.rebuild_batch,
    }
    for name, value in given.items():
        _kind(name, value, value is None or callable(value), _FUNCTION)


def _refuse_sharded(optimizer: Any) -> None:
    for ancestor in type(optimizer).__mro__:
        if (ancestor.__module__.partition(".")[0], ancestor.__name__) in _SHARDED:
            name = type(optimizer).__name__
            raise ConfigurationError(
                f"{name} shards its state over the ranks (ZeRO): each shard exists once, so there is no "
                "replica to compare it with, and a wrong moment would spread into all weights unseen. Use "
                "the optimizer that it shards on every rank, or shard model and optimizer together with "
                "fully_shard() over a mesh of replicas and shards (HSDP)."
            )


def _has(value: Any, *methods: str) -> bool:
    return value is None or all(callable(getattr(value, name, None)) for name in methods)


def _count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _kind(name: str, value: Any, good: bool, wanted: str, call: str = "attach") -> None:
    if not good:
        plain = value is None or isinstance(value, (str, int, float))
        shown = repr(value)[:60] if plain else f"<{type(value).__name__}>"
        raise ConfigurationError(f"{call}({name}={shown}): give {wanted}.")
