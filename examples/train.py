"""The training script of the demo: a plain DDP loop with the agent in it.

Comes in: torchrun's variables, the agent's variables (`training_agent.contract.Env`) and the arguments below.
Goes out: checkpoints in the job's shared folder and the final weights. The loop is in `examples.training`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.config import TrainConfig
from training_agent import exit_codes, hold_while_quarantined
from training_agent.errors import AgentError
from training_agent.settings import AgentSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Train until the last step; the exit codes are those of `training_agent.contract.ExitCode`."""
    exit_codes.install()  # a refusal anywhere below ends the process with its documented code
    config = _parse(argv)
    try:
        settings = AgentSettings.from_env()
        hold_while_quarantined(settings)  # before torch is imported: a rank on hold costs next to nothing
    except AgentError as e:
        sys.stderr.write(f"{e}\n")
        exit_codes.leave(e.exit_code)

    from examples.training import train

    train(config, settings)
    return 0


def _parse(argv: Sequence[str] | None) -> TrainConfig:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audit-every", type=int, default=10)
    parser.add_argument("--check-every", type=int, default=10)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the weights: faulty/ at an alarm, resumed/ at the end",
    )
    return TrainConfig(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main())
