"""Puts a fault into effect through hooks on the user's own objects.

Comes in: a `FaultSpec`, the layer, the optimizer, the DDP model. Goes out: wrong numbers at that place, and
nothing else. Next step: whatever the training loop does with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._phase import Phase
from .errors import ConfigurationError
from .fault_shapes import corrupted
from .fault_spec import FaultSpec, Persistence, Where

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel

Gate = Callable[[], bool]


class Injection:
    """One rank's share of one fault.

    Args:
        spec: the fault; on a rank that it does not name nothing is installed.
        rank: this rank.
        step: the step being computed, such as ``lambda: guard.step + 1``.
        phase: what is being computed, such as ``lambda: guard.phase``.
        module: the layer that is struck; its `weight` where a parameter is meant.
        optimizer: for weights and optimizer state.
        ddp: for the reduced gradient; its one comm-hook slot is taken.
        index: tells several bad GPUs of one seed apart.
        gate: decides instead of `spec` whether a computation is hit (the injector that keeps its marks on
            disk).

    Raises:
        ConfigurationError: the objects cannot carry the fault.
    """

    def __init__(
        self,
        spec: FaultSpec,
        *,
        rank: int,
        step: Callable[[], int],
        phase: Callable[[], Phase] = lambda: Phase.TRAINING,
        module: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        ddp: DistributedDataParallel | None = None,
        index: int = 0,
        gate: Gate | None = None,
    ) -> None:
        self.spec = spec
        self.strikes = 0  # how often numbers were really changed
        self._due_count = 0
        self._spot = spec.spot(index)
        self._step, self._phase = step, phase
        self._gate = gate or self._due
        self._module, self._optimizer = module, optimizer
        self._handles: list[Any] = []
        self.active = spec.rank is None or spec.rank == rank
        if self.active:
            self._install(ddp)

    def loss(self, compute_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """For place LOSS: the loss function to use instead of the original."""

        def wrong_loss(*args: Any, **kwargs: Any) -> Tensor:
            loss = compute_loss(*args, **kwargs)
            if not self.active or self.spec.where is not Where.LOSS or not self._gate():
                return loss
            wrong = corrupted(loss, self.spec.shape, self._spot, self.spec.above)
            if wrong is None:
                return loss
            self.strikes += 1
            # The gradient's scale goes wrong with the value: the fault is in the function itself.
            healthy = loss.detach()
            return loss * (wrong / healthy) if bool(healthy != 0) else loss + (wrong - healthy)

        return wrong_loss

    def after_load(self) -> None:
        """Strike the weights that were just loaded; for place LOADED_CHECKPOINT, before the first step."""
        if self.active and self.spec.where is Where.LOADED_CHECKPOINT:
            self._overwrite(self._weight())

    def close(self) -> None:
        """Take all hooks off."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for faults in _REDUCTIONS.values():
            if self in faults:
                faults.remove(self)

    def _install(self, ddp: DistributedDataParallel | None) -> None:
        where = self.spec.where
        if where is Where.FORWARD_OUTPUT:
            self._handles.append(self._needs_module().register_forward_hook(self._on_output))
        elif where is Where.INPUT_GRADIENT:
            self._handles.append(self._needs_module().register_forward_pre_hook(self._on_input))
        elif where is Where.WEIGHT_GRADIENT:
            self._handles.append(self._weight().register_hook(self._spoiled))  # type: ignore[no-untyped-call]
        elif where in (Where.WEIGHTS, Where.OPTIMIZER_STATE):
            self._weight()
            if self._optimizer is None:
                raise ConfigurationError(f"a fault in {where.value} follows an update: give optimizer=")
            handle = self._optimizer.register_step_post_hook(self._after_update)
            # first of all post-hooks: a weight check of this very step must see it
            self._optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
            self._handles.append(handle)
        elif where is Where.REDUCED_GRADIENT:
            self._weight()
            if ddp is None:
                raise ConfigurationError("a fault inside the all-reduce needs the wrapped model: give ddp=")
            reductions_of(ddp).append(self)

    def _needs_module(self) -> torch.nn.Module:
        if self._module is None:
            raise ConfigurationError(f"a fault in {self.spec.where.value} needs a layer: give module=")
        return self._module

    def _weight(self) -> torch.nn.Parameter:
        import torch

        module = self._needs_module()
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.nn.Parameter):
            raise ConfigurationError(f"{type(module).__name__} holds no weight; give one layer that has one")
        return weight

    def _due(self) -> bool:
        spec = self.spec
        if not spec.due(self._step(), self._phase()):
            return False
        self._due_count += 1
        if spec.persistence is Persistence.ONCE:
            return self._due_count == 1
        return spec.persistence is not Persistence.EACH_NTH or self._due_count % spec.nth == 0

    def _spoiled(self, tensor: Tensor) -> Tensor | None:
        """The tensor with wrong numbers in it and its gradient path as it was; None when it is not hit."""
        if not self.active or not self._gate():
            return None
        wrong = corrupted(tensor, self.spec.shape, self._spot, self.spec.above)
        if wrong is None:
            return None
        self.strikes += 1
        out = tensor.clone()
        out.data.copy_(wrong)  # exactly these bits; the copy's backward is the identity
        return out

    def _on_output(self, _module: Any, _args: Any, output: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, tree = tree_flatten(output)
        at = next(i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.is_floating_point())
        wrong = self._spoiled(leaves[at])
        if wrong is None:
            return None
        leaves[at] = wrong
        return tree_unflatten(leaves, tree)

    def _on_input(self, module: Any, args: tuple[Any, ...]) -> Any:
        import torch

        if not torch.is_grad_enabled():
            return None
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                alias = value.view_as(value)  # its gradient is this layer's alone, not a residual's
                alias.register_hook(self._spoiled)  # type: ignore[no-untyped-call]
                return (*args[:i], alias, *args[i + 1 :])
        raise ConfigurationError(
            f"no input of this {type(module).__name__} needs a gradient: choose a layer further up"
        )

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self.active or not self._gate():
            return
        weight = self._weight()
        if self.spec.where is Where.WEIGHTS:
            self._overwrite(weight)
            return
        assert self._optimizer is not None
        state = self._optimizer.state[weight]
        moment = next((v for v in state.values() if getattr(v, "shape", None) == weight.shape), None)
        if moment is None:
            raise ConfigurationError(f"{type(self._optimizer).__name__} keeps no moment for this weight")
        self._overwrite(moment)

    def _overwrite(self, stored: Tensor) -> None:
        wrong = corrupted(stored, self.spec.shape, self._spot, self.spec.above)
        if wrong is not None:
            self.strikes += 1
            stored.data.copy_(wrong)

    def spoil_bucket(self, bucket: Any, reduced: Tensor) -> None:
        """Strike the weight's part of a reduced bucket in place."""
        if not self.active:
            return
        weight = self._weight()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter is weight and self._gate():
                first = gradient.storage_offset() - bucket.buffer().storage_offset()
                part = reduced[first : first + gradient.numel()]
                wrong = corrupted(part, self.spec.shape, self._spot, self.spec.above)
                if wrong is not None:
                    self.strikes += 1
                    part.copy_(wrong)


_REDUCTIONS: weakref.WeakKeyDictionary[Any, list[Injection]] = weakref.WeakKeyDictionary()


def reductions_of(ddp: DistributedDataParallel) -> list[Injection]:
    """The faults inside this model's all-reduce; the first call takes the comm-hook slot, for good."""
    if ddp not in _REDUCTIONS:
        import torch.distributed as dist

        faults: list[Injection] = []
        group, world = ddp.process_group, dist.get_world_size(ddp.process_group)

        # no annotations: DDP compares them with its own classes
        def hook(_state, bucket):  # type: ignore[no-untyped-def]
            work = dist.all_reduce(bucket.buffer().div_(world), group=group, async_op=True)
            assert work is not None

            def spoil(future: Any) -> Any:
                reduced = future.value()[0]
                for fault in faults:
                    fault.spoil_bucket(bucket, reduced)
                return reduced

            return work.get_future().then(spoil)

        ddp.register_comm_hook(None, hook)
        _REDUCTIONS[ddp] = faults
    return _REDUCTIONS[ddp]
