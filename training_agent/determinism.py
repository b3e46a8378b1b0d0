"""Deterministic kernels for the steps that ask for them, see `kernels.Kernels`, and only for those.

Comes in: nothing but torch's global switches. Goes out: the switches as they were. Next: `_update` turns them
on before the forward of a step and off again before its update.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from . import _attention, _precision
from ._attention import Attention
from .errors import ConfigurationError

CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_VALUES = (":4096:8", ":16:8")
_FILLING: Any = torch.utils.deterministic  # a module whose attributes are properties
_DEBUG_MODES = ("default", "warn", "error")


def require_cublas_workspace(device: torch.device) -> None:
    """Refuse CUDA without a fixed cuBLAS workspace: audits could then never match.

    cuBLAS reads the variable once, when its first handle is made, so setting it here would be too late.

    Raises:
        ConfigurationError: with the exact variable and value, on a CUDA device.
    """
    if os.environ.get(CUBLAS_VARIABLE) in CUBLAS_VALUES:
        return
    if device.type == "cuda":
        raise ConfigurationError(
            f"Deterministic audits need {CUBLAS_VARIABLE}={CUBLAS_VALUES[0]} (or {CUBLAS_VALUES[1]}), "
            f"it is {os.environ.get(CUBLAS_VARIABLE)!r}. Set it in the job manifest, before the process "
            "starts: CUDA reads it once. Or turn audits off with Schedule(audit_every=None)."
        )


def environment(device: torch.device) -> dict[str, object]:
    """What changes the bits of a computation, by name; must be equal on all ranks for replays to match."""
    backends: Any = torch.backends
    facts: dict[str, object] = {
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "MKL-DNN": bool(backends.mkldnn.is_available() and backends.mkldnn.enabled),
        "CPU capability": backends.cpu.get_cpu_capability() if device.type == "cpu" else None,
        "float32 precision": _precision.of_each(),
        "default dtype": str(torch.get_default_dtype()),
        CUBLAS_VARIABLE: os.environ.get(CUBLAS_VARIABLE),
    }
    if device.type == "cuda":
        matmul = backends.cuda.matmul
        facts |= {
            "GPU model": torch.cuda.get_device_name(device),
            "compute capability": torch.cuda.get_device_capability(device),
            "cuDNN": backends.cudnn.version(),
            "cuDNN benchmark": backends.cudnn.benchmark,
            "reduced precision": (
                matmul.allow_fp16_reduced_precision_reduction,
                matmul.allow_bf16_reduced_precision_reduction,
            ),
            "NCCL": torch.cuda.nccl.version(),  # type: ignore[no-untyped-call]
        }
    return facts


@dataclass(frozen=True, slots=True)
class _Switches:
    """What the user had set."""

    mode: str
    fill: bool
    benchmark: bool
    attention: Attention


class DeterministicMode:
    """Strict deterministic algorithms, entered at one hook and left at another. Both are idempotent.

    Warnings instead of errors would not do: torch then keeps a memory-efficient attention that is not
    deterministic. With `attention` cuDNN's is off by its own switch, which travels with a micro-batch.
    """

    def __init__(self, *, attention: bool = False) -> None:
        self._attention = attention
        self._before: _Switches | None = None
        self._set: Attention = _attention.allowed()  # by `enter`

    @property
    def on(self) -> bool:
        """Whether this object has switched the kernels."""
        return self._before is not None

    def explained(self) -> AbstractContextManager[None]:
        """A block in which torch's refusals say what to change, see `explained`."""
        return explained(self.on, forced=self._attention)

    def switch(self, on: bool) -> None:
        """Enter or leave."""
        if on:
            self.enter()
        else:
            self.leave()

    def enter(self) -> None:
        """Switch on, remembering what the user had set."""
        if self._before is not None:
            return
        own = _attention.allowed()
        self._set = _attention.reproducible(own) if self._attention else own
        self._before = _Switches(
            _DEBUG_MODES[torch.get_deterministic_debug_mode()],
            _FILLING.fill_uninitialized_memory,
            torch.backends.cudnn.benchmark,
            own,
        )
        # set_deterministic_debug_mode flips the same switch as use_deterministic_algorithms, which also
        # imports torch._inductor (about a second).
        torch.set_deterministic_debug_mode("error")
        _FILLING.fill_uninitialized_memory = False  # one extra write of every new tensor
        torch.backends.cudnn.benchmark = False  # autotuning may pick another kernel on another GPU
        if self._attention:
            _attention.allow(self._set)

    def leave(self) -> None:
        """Put the user's settings back.

        What is no longer as it was set here the user has set meanwhile: a context manager around the forward
        (`sdpa_kernel`) ends before the update and has put its own back. That stays.
        """
        if self._before is None:
            return
        before, self._before = self._before, None
        if _DEBUG_MODES[torch.get_deterministic_debug_mode()] == "error":
            torch.set_deterministic_debug_mode(before.mode)
        if not _FILLING.fill_uninitialized_memory:
            _FILLING.fill_uninitialized_memory = before.fill
        if not torch.backends.cudnn.benchmark:
            torch.backends.cudnn.benchmark = before.benchmark
        if self._attention and _attention.allowed() == self._set:
            _attention.allow(before.attention)


@contextmanager
def explained(on: bool, *, forced: bool) -> Iterator[None]:
    """Where torch refuses an operator because we (`on`) have asked for determinism, say what to change.

    Raises:
        ConfigurationError: instead of torch's error.
    """
    try:
        yield
    except RuntimeError as e:
        if not on or "deterministic" not in str(e):
            raise
        what = "cannot train with kernels='forced'" if forced else "cannot be audited"
        remedy = "kernels='default'" if forced else "audit_every=None"
        raise ConfigurationError(f"The model {what}: {e} Use another operator, or Schedule({remedy}).") from e


@contextmanager
def deterministic(on: bool = True, *, attention: bool = False) -> Iterator[None]:
    """Run a block with strict deterministic algorithms, or `on=False` as it would run anyway."""
    mode = DeterministicMode(attention=attention)
    mode.switch(on)
    try:
        yield
    finally:
        mode.leave()
