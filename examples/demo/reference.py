"""The two runs that prove the point, in one launch: never hit, and hit without the agent.

Comes in: torchrun's variables, SDC_DEMO_PLACES (node and GPU UUID of each rank, as in the real job) and
the injector's variables. Goes out: weights and hashes in `reference/` and `poisoned/`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from examples.config import TrainConfig
from examples.injection import injector_from_environment, schedule_of
from examples.llama import compute_loss
from examples.training import build, keep, log, middle_layer, one_step, start_process_group
from training_agent import attach
from training_agent.faults import Phase
from training_agent.settings import AgentSettings

PLACES_VARIABLE = "SDC_DEMO_PLACES"


def main() -> None:
    """Train `steps` steps under the agent, restore the start, train them again under the fault alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = TrainConfig(out=arguments.out, seed=arguments.seed, steps=arguments.steps)

    start_process_group()
    places = json.loads(os.environ[PLACES_VARIABLE])
    # all ranks run in one launch on this machine, so each takes the seat that the real job gives it
    settings = replace(
        AgentSettings.from_env(node=places[dist.get_rank()]["node"]),
        gpu_uuids=tuple(p["gpu_uuid"] for p in places),  # here the local rank is the rank
    )
    model, optimizer = build(config)
    start = copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))

    guard = attach(
        model, optimizer, compute_loss=compute_loss, schedule=schedule_of(config), settings=settings
    )
    for step in range(1, config.steps + 1):
        one_step(config, model, optimizer, guard.compute_loss, step)
        _progress("reference", step, config.steps)
    keep(config.out / "reference" / "final.pt", model, optimizer, config.steps)
    guard.close()

    model.module.load_state_dict(start[0])
    optimizer.load_state_dict(start[1])
    gpu = places[dist.get_rank()]["gpu_uuid"]
    injector = injector_from_environment(config, middle_layer(model), optimizer, lambda: Phase.TRAINING, gpu)
    for step in range(1, config.steps + 1):
        injector.begin_step(step)
        one_step(config, model, optimizer, compute_loss, step)
        _progress("poisoned", step, config.steps)
    keep(config.out / "poisoned" / "final.pt", model, optimizer, config.steps)
    dist.destroy_process_group()


def _progress(run: str, step: int, steps: int) -> None:
    if dist.get_rank() == 0:
        log(f"{run} step {step}/{steps}")


if __name__ == "__main__":
    main()
