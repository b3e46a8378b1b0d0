"""What of a library cannot be guarded, by name and before anything is computed. Needs no library.

In: a Trainer. Out: nothing, or `ConfigurationError`, on every rank alike since all have the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigurationError

_HUGGINGFACE = {
    "DeepSpeed": "each shard of its state exists once, so there is no replica to compare with. Train with "
    "DDP: leave deepspeed= out of TrainingArguments.",
    "FSDP": "each shard exists once, so there is no replica to compare with. Train with DDP: leave fsdp= out "
    "of TrainingArguments; for HSDP write the loop with training_agent.attach(...).",
    "tensor parallelism": "its shards exist once. Train with DDP over all ranks.",
    "DataParallel in one process": "checks compare processes. Start it with torchrun, one process a GPU.",
    "a single process": "checks compare replicas. Start it with torchrun and two processes or more.",
    "auto_find_batch_size": "it starts over inside this process after an error. Set the batch size.",
    "an optimizer that steps inside the backward": "checks must see all gradients before the update. Choose "
    "another optim=.",
    "a Trainer without _save_checkpoint": "this version saves in a way that is not known here. Use "
    "transformers 5.24.",
}

_SHARDED = "each shard exists once, so there is no replica to compare with. Use strategy='ddp'."
_LIGHTNING = {
    "FSDPStrategy": _SHARDED + " For HSDP write the loop with attach(...).",
    "DeepSpeedStrategy": _SHARDED,
    "ModelParallelStrategy": _SHARDED,
    "start_method": "a forked process cannot end the job with the alarm's exit code. Use strategy='ddp' and "
    "start the script with torchrun.",
    "manual optimization": "its backward and its update run inside training_step. Use automatic "
    "optimization, or a loop of your own with training_agent.attach(...).",
    "AsyncCheckpointIO": "a file that is written later cannot be sealed when the save returns. Leave the "
    "plugin out.",
    "StochasticWeightAveraging": "it puts other weights into the model than the optimizer left.",
    "WeightAveraging": "its checkpoints hold other weights than those that were checked.",
    "EMAWeightAveraging": "its checkpoints hold other weights than those that were checked.",
    "BatchSizeFinder": "it trains and rolls back inside this run. Run it in a job of its own.",
    "TerminateOnNaN": "it ends the rank with the NaN while the others wait, before anybody is named. A NaN "
    "alarms without it: leave the callback out.",
    "LearningRateFinder": "it trains and rolls back inside this run. Run it in a job of its own.",
}


def refuse_huggingface(trainer: Any) -> None:
    """Refuse what transformers' Trainer was told to use.

    Raises:
        ConfigurationError: naming it, with what to change.
    """
    args = trainer.args
    mode = str(getattr(args.parallel_mode, "value", args.parallel_mode))
    optim = str(getattr(args.optim, "value", args.optim))
    present = {
        "DeepSpeed": bool(getattr(trainer, "is_deepspeed_enabled", False)),
        "FSDP": bool(getattr(trainer, "is_fsdp_enabled", False)),
        "tensor parallelism": bool(getattr(trainer, "is_tp_enabled", False)),
        "DataParallel in one process": mode == "not_distributed",
        "a single process": mode == "not_parallel",
        "auto_find_batch_size": bool(args.auto_find_batch_size),
        "an optimizer that steps inside the backward": "lomo" in optim or "layerwise" in optim,
        "a Trainer without _save_checkpoint": not callable(getattr(trainer, "_save_checkpoint", None)),
    }
    _refuse(present, _HUGGINGFACE)


def refuse_lightning(trainer: Any, pl_module: Any) -> None:
    """Refuse strategies, plugins, callbacks and models of Lightning.

    Raises:
        ConfigurationError: naming it, with what to change.
    """
    strategy = type(trainer.strategy).__name__
    if strategy != "DDPStrategy" and strategy not in _LIGHTNING:
        raise ConfigurationError(
            f"This Trainer uses {strategy}, which is not known to be guarded: checks compare replicas under "
            "DDP. Use strategy='ddp' and start the script with torchrun."
        )
    present = {
        strategy: strategy != "DDPStrategy",
        "start_method": getattr(trainer.strategy, "_start_method", None) in ("spawn", "fork", "forkserver"),
        "manual optimization": not pl_module.automatic_optimization,
        "AsyncCheckpointIO": type(trainer.strategy.checkpoint_io).__name__ == "AsyncCheckpointIO",
    }
    present |= {type(c).__name__: type(c).__name__ in _LIGHTNING for c in trainer.callbacks}
    _refuse(present, _LIGHTNING)


def _refuse(present: Mapping[str, bool], remedies: Mapping[str, str]) -> None:
    for name, used in present.items():
        if used:
            raise ConfigurationError(f"This Trainer uses {name}, which cannot be guarded: {remedies[name]}")
