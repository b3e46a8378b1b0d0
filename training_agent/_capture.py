"""What one rank's forward and backward started from: enough to compute it again, bit for bit, elsewhere.

Comes in: the arguments of `compute_loss` (or of the wrapped module) and torch's state at that moment. Goes
out: a `Capture`, packed and shipped by `_ring`, re-entered by `checks.replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from . import _attention, _precision
from ._attention import Attention
from ._kept import KeptValues, same_bits
from ._precision import Precision
from ._walk import modules, named_buffers


class Unit(str, Enum):
    """What is audited: the whole loss function, only the wrapped module's own forward, or one block of it."""

    LOSS = "loss"
    MODULE = "module"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Global switches that change bits; re-entered around a replay."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # device type, enabled, dtype
    autocast_cache: bool
    default_dtype: torch.dtype
    matmul_precision: Precision
    attention: Attention


@dataclass(slots=True)
class Capture:
    """The start of one audited unit; `seeds` and `record` are filled as its backward runs."""

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    contexts: Contexts
    cpu_rng: Tensor  # uint8, [5056]
    device_rng: Tensor | None  # of the model's accelerator
    training: tuple[bool, ...]  # flag per submodule, in the order of `modules()`
    trained: frozenset[str]  # parameters that required a gradient
    buffers: dict[str, Tensor] = field(default_factory=dict)  # after DDP's broadcast
    seeds: list[Tensor | None] = field(default_factory=list)  # gradient that enters each output
    block: str = ""  # whose start this is, by path inside the wrapped module
    inputs: tuple[bool, ...] = ()  # of a block: per tensor in its arguments, whether its gradient is compared
    backward: Contexts | None = None  # as they were when its backward began; loops end autocast before it
    kept: KeptValues | None = None  # what the rank's program keeps, where ranks keep other things
    whole: Capture | None = None  # of a block: the micro-batch around it, where it is computed inside of that


def take(
    unit: Unit,
    module: nn.Module,
    device: torch.device,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Mapping[str, nn.Parameter] | None = None,
) -> Capture:
    """Record the state right now. `args` are kept by reference; `parameters` are those to look at, or all."""
    parameters = dict(module.named_parameters()) if parameters is None else parameters
    return Capture(
        unit,
        args,
        kwargs,
        current_contexts(device),
        *rng_of(device),
        tuple([m.training for m in modules(module)]),
        frozenset([name for name, p in parameters.items() if p.requires_grad]),
    )


def current_contexts(device: torch.device) -> Contexts:
    """Read the switches."""
    kinds = ("cpu",) if device.type == "cpu" else ("cpu", device.type)
    return Contexts(
        tuple((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        _precision.allowed(),
        _attention.allowed(),
    )


@contextmanager
def reentered(capture: Capture, module: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a block in the state of `capture` and put everything back exactly: RNG, switches, train/eval flags.

    Parameters and buffers are not touched here: the replay works on aliases and copies.
    """
    with (
        kept_rng(device),
        _flags(module, capture.training),
        ExitStack() as stack,
    ):
        _enter_contexts(stack, capture.contexts, device)
        set_rng(capture.cpu_rng, capture.device_rng, device)
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def switched(contexts: Contexts | None, device: torch.device) -> Iterator[None]:
    """Run a block under these switches; None: as they are."""
    with ExitStack() as stack:
        if contexts is not None:
            _enter_contexts(stack, contexts, device)
        yield


@dataclass(frozen=True, slots=True)
class DeviceState:
    """RNG and buffers at one moment, to be put back."""

    cpu_rng: Tensor
    device_rng: Tensor | None
    buffers: dict[str, Tensor]  # copies, by name

    @classmethod
    def now(cls, device: torch.device, buffers: dict[str, Tensor]) -> DeviceState:
        """The generators as they are, and copies of buffers."""
        return cls(*rng_of(device), buffers)

    def put_back(self, device: torch.device, module: nn.Module) -> None:
        """Make both what they were."""
        set_rng(self.cpu_rng, self.device_rng, device)
        self.write_buffers(module, self.buffers)

    @staticmethod
    def write_buffers(module: nn.Module, values: dict[str, Tensor]) -> None:
        """Write values into buffers of the same names."""
        with torch.no_grad():
            for name, buffer in named_buffers(module).items():
                value = values.get(name)
                # Equal ones stay untouched: a write would count as the program's, see `_steady_buffers`.
                if value is not None and value.shape == buffer.shape and not same_bits(value, buffer):
                    buffer.copy_(value)


@contextmanager
def kept_rng(device: torch.device) -> Iterator[None]:
    """Restore the CPU generator and the accelerator's at the end of the block."""
    before = rng_of(device)
    try:
        yield
    finally:
        set_rng(*before, device)


def rng_of(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """State of the CPU's generator (uint8), and of the accelerator's where `device` is one."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_rng(cpu: Tensor, accelerator: Tensor | None, device: torch.device) -> None:
    """Set both generators, as `rng_of` gave them."""
    torch.set_rng_state(cpu)
    if accelerator is not None:
        torch.cuda.set_rng_state(accelerator, device)


def _enter_contexts(stack: ExitStack, wanted: Contexts, device: torch.device) -> None:
    for kind, enabled, dtype in wanted.autocast:
        stack.enter_context(
            torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=wanted.autocast_cache)
        )
    now = current_contexts(device)
    if now.default_dtype != wanted.default_dtype:
        stack.callback(torch.set_default_dtype, now.default_dtype)
        torch.set_default_dtype(wanted.default_dtype)
    if now.matmul_precision != wanted.matmul_precision:
        stack.callback(_precision.allow, now.matmul_precision)
        _precision.allow(wanted.matmul_precision)
    if now.attention != wanted.attention:
        stack.callback(_attention.allow, now.attention)
        _attention.allow(wanted.attention)


@contextmanager
def _flags(module: nn.Module, training: tuple[bool, ...]) -> Iterator[None]:
    every = modules(module)
    own = [m.training for m in every]
    try:
        for child, flag in zip(every, training, strict=True):
            child.training = flag
        yield
    finally:
        for child, flag in zip(every, own, strict=True):
            child.training = flag
