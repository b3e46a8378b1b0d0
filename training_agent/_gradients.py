"""Chooses how local gradients are seen: on DDP's parameters, or on what `fully_shard` gathers.

Comes in: the `Setup`. Goes out: `Leaves` and check 1's norms. Next: `_watch` and `_replayer` use them.
"""

from __future__ import annotations

from collections.abc import Callable

from ._leaves import GatheredLeaves, Leaves, ParameterLeaves
from ._startup import Setup
from .checks.nonfinite import WHOLE, GradientNorms, Share
from .checks.nonfinite_sharded import ShardedNorms


def local_gradients(setup: Setup, training: Callable[[], bool]) -> tuple[Leaves, GradientNorms]:
    """Hook the model; `training`: whether the backward in progress is the step's own."""
    parameters = list(setup.parameters.values())
    if setup.sharding is not None:
        gathered = GatheredLeaves(setup.module, setup.parameters)
        return gathered, ShardedNorms(parameters, training, gathered, naming=setup.naming)
    at_once = any(getattr(setup.outer, name) for name in ("gradient_as_bucket_view", "static_graph"))
    share = Share(setup.comm.ranks.index(setup.comm.rank), setup.comm.world)
    if setup.weights_off is not None or setup.schedule.by_outcome:
        share = WHOLE  # ranks may hold different ones; or the rate follows the norm of all of it
    norms = GradientNorms(parameters, training, naming=setup.naming, at_once=at_once, share=share)
    return ParameterLeaves(setup.parameters), norms
