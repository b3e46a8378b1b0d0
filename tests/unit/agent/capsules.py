"""Builds a capsule of a two-layer model in one process."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training_agent import _capture
from training_agent._alarm import versions
from training_agent._capture import Capture, Unit
from training_agent._evidence import Depth, Evidence
from training_agent.capsule.record import Exhibit, Scene, Sealed, seal, write_all
from training_agent.checks.replay import recompute
from training_agent.contract import Contest, Finding, FindingKind, Job, Place, Verdict, Vote
from training_agent.determinism import deterministic
from training_agent.settings import AgentSettings

CPU = torch.device("cpu")
PLACE = Place(3, 1, "hyperpod-i-0a1b2c3d4e5f60002", "i-0a1b2c3d4e5f60002", "GPU-2-1", None, None)


def build() -> tuple[nn.Module, Any]:
    """A model with dropout and its loss; what `--model` names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    return model, compute_loss


def build_wrong() -> tuple[nn.Module, Any]:
    """The same on a GPU that is wrong."""
    model, loss = build()
    model[2].register_forward_hook(lambda _module, _args, out: out * 1.001)
    return model, loss


def build_in_another_way() -> tuple[nn.Module, Any]:
    """On a healthy GPU, but as no rank of the job built it."""
    model, loss = build()
    in_another_way(model)
    return model, loss


def in_another_way(model: Any) -> None:
    """A layer rounds to bfloat16, as under an autocast that the job had not."""
    model[0].register_forward_hook(lambda _module, _args, out: out.bfloat16().float())


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Squares."""
    return (model(batch["x"]) - batch["y"]).square().mean()


def batch() -> dict[str, Tensor]:
    return {"x": torch.arange(12.0).view(3, 4), "y": torch.ones(3, 2)}


def exhibit(given: Any = None) -> tuple[nn.Module, Exhibit]:
    """A step as rank 3 would hold it."""
    model, _ = build()
    capture = _capture.take(Unit.LOSS, model, CPU, (batch() if given is None else given,), {})
    capture.seeds = [torch.tensor(1.0)]
    evidence = computed(model, capture) if given is None else Evidence(Depth.BITS, torch.zeros(6, 3), 0, 0)
    return model, Exhibit(capture, evidence, (True,) * 4, compiled=False)


def computed(model: nn.Module, capture: Capture) -> Evidence:
    from types import SimpleNamespace

    alone: Any = SimpleNamespace(module=model)
    with deterministic():
        return recompute(alone, compute_loss, capture, Depth.BITS, CPU)


def sealed(
    folder: Path, given: Any = None, *, compiled: bool = False, deterministic_job: bool = True, **changes: Any
) -> Sealed | None:
    """The capsule of an alarm that names rank 3, against the majority of two others."""
    model, shown = exhibit(given)
    right = shown.original.short()
    votes = (Vote(0, right, "arbiter"), Vote(1, right, "replayer"), Vote(3, wrong(shown.capture), "target"))
    contest = Contest(3, 1, votes, right, True)
    finding = Finding(FindingKind.PAIR, 3, PLACE, Verdict.PERSISTENT, majority=True)
    scene = Scene(30, "replay", (finding,), (contest,), PLACE, versions())
    settings = AgentSettings(
        cluster="demo", job=Job("llama", "uid"), node=PLACE.node, shared_dir=folder, **changes
    )
    weights = dict(model.named_parameters())
    return seal(
        scene,
        replace(shown, compiled=compiled, deterministic=deterministic_job),
        weights,
        weights,
        settings,
        CPU,
    )


def wrong(capture: Capture) -> str:
    """What the suspect computed."""
    if "x" not in (capture.args[0] if isinstance(capture.args[0], dict) else {}):
        return "f" * 16  # a batch that the model does not know
    return computed(build_wrong()[0], capture).short()


def write(capsule: Sealed) -> None:
    """Put it where its reference says."""
    write_all([(Path(capsule.ref.path), capsule.data)], timedelta(seconds=10))
