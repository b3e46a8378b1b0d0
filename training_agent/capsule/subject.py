"""The user's model and loss function outside of the job, with the weights of a checkpoint.

In: `module:function` of the user's own code, a checkpoint or the weights of a capsule. Out: a `Subject`.
Next: `recompute`. Only code that the caller names is run; checkpoints are read as plain tensors.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import CheckpointStore
from ..checks.replay import LossFunction
from ..errors import AgentError, CheckpointError, ConfigurationError


@dataclass(frozen=True, slots=True)
class Subject:
    """The user's model with its weights, on the device, and the loss function."""

    model: nn.Module
    compute_loss: LossFunction | None
    device: torch.device


def build(spec: str, device: torch.device) -> Subject:
    """Call `module:function`, which returns the model, or `(model, compute_loss)`.

    Raises:
        ConfigurationError: there is no such function, it failed, or it returned something else.
    """
    try:
        made = call(spec)
    except AgentError:
        raise
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise ConfigurationError(f"{spec} failed: {type(e).__name__}: {e} ({where}).") from e
    model, compute_loss = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"{spec} returned a {type(model).__name__}; return (model, compute_loss).")
    return Subject(model.to(device), compute_loss, device)


def call(spec: str, *args: Any) -> Any:
    """Call `module:function`, looked up from the current folder as well.

    Raises:
        ConfigurationError: there is no such function.
    """
    name, _, function = spec.partition(":")
    if not name or not function:
        raise ConfigurationError(f"{spec!r} is no module:function, such as train:build.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(name), function)
    except (ImportError, AttributeError) as e:
        raise ConfigurationError(f"{spec} cannot be found: {e}.") from e
    return found(*args)


def load_weights(subject: Subject, path: Path) -> None:
    """Put a checkpoint's weights into the model.

    Args:
        path: a folder `step-<n>` of `CheckpointStore` (doubtful ones too), or a file of `torch.save` that
            holds a state dict, or a dict with one under "model".

    Raises:
        CheckpointError: damaged, unreadable, or of another model.
    """
    state = read_state(path)
    weights = state.get("model", state)
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{path} holds no state dict of a model.")
    put_weights(subject, {str(n).removeprefix("module."): v for n, v in weights.items()}, str(path))


def put_weights(subject: Subject, weights: Mapping[str, Any], source: str) -> None:
    """Copy weights by name; each parameter must have its own.

    Raises:
        CheckpointError: one is missing or has another shape.
    """
    with torch.no_grad():
        for name, parameter in subject.model.named_parameters():
            value = weights.get(name)
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                what = "no tensor" if not isinstance(value, Tensor) else f"shape {tuple(value.shape)}"
                raise CheckpointError(
                    f"{source} has {what} for parameter {name} of shape {tuple(parameter.shape)}."
                )
            parameter.copy_(value)


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint holds, on the CPU; no code in it is run.

    Raises:
        CheckpointError: damaged or unreadable.
    """
    if path.is_dir():
        store = CheckpointStore(path.parent, 1)
        info = next((c for c in store.list() if c.path.name == path.name), None)
        if info is None:
            raise CheckpointError(f"{path} is no checkpoint folder of the agent (step-<n>).")
        return store.load(info)[0]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {path}.") from None
    except Exception as e:  # torch raises many kinds; all mean the same to the reader
        raise CheckpointError(f"Checkpoint {path} cannot be read as plain tensors: {e}") from e
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not a dict.")
    return state
