"""What all integration examples are told: how far to train. Goes out: `TrainConfig`, small intervals."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from examples.config import TrainConfig

EVERY = 4  # audits, weight checks, checkpoints


def arguments() -> TrainConfig:
    """Read the command line; the folder is the job's shared one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    folder = Path(os.environ["SDC_SHARED_DIR"])
    return TrainConfig(folder, parser.parse_args().steps, 0, EVERY, EVERY, EVERY)
