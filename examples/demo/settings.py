"""What the person asked of `make demo`, checked before anything starts.

Comes in: the environment variables below. Goes out: `DemoSettings`. Next step: `examples.demo.__main__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.config import TrainConfig
from examples.injection import STATE_DIR_VARIABLE
from training_agent.errors import ConfigurationError

DEEP_CHECKS = ("pass", "fail", "stuck")
VARIABLES = (
    ("FAULT", "forward-x1000", "`FAULT=list` prints them; `none` must end without an alarm"),
    ("FAULT_RANK", "3", "which rank's GPU is hit"),
    ("FAULT_STEP", "23", "from which step on"),
    ("SEED", "0", "which weights and data"),
    ("NODES", "3", "at least 3"),
    ("GPUS", "2", "on each node, at least 1"),
    ("DEEP_CHECK", "pass", "how HyperPod's deep health check ends: `pass`, `fail`, `stuck`"),
    ("INTERACTIVE", "0", "`1`: you are the approver: open the printed link and decide"),
    ("OUT", "demo-out", "where the evidence goes; the next run replaces it"),
)  # name, default, meaning: for `--help` and the README
MARKER = ".made-by-demo"  # in the demo's own folder


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One demo run."""

    nodes: int
    gpus: int  # per node
    fault: str
    fault_rank: int
    fault_step: int
    seed: int
    deep_check: str
    interactive: bool
    out: Path

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus

    @property
    def train(self) -> TrainConfig:
        """What is trained: about a minute on two cores, audit, weight check and checkpoint every 10 steps."""
        return TrainConfig(out=self.out, seed=self.seed)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> DemoSettings:
        """Read the variables; ConfigurationError names the variable, the cause and the remedy."""
        nodes = _integer(environ, "NODES", 3)
        gpus = _integer(environ, "GPUS", 2)
        if nodes < 3:
            raise ConfigurationError(
                f"NODES={nodes}: evidence that is independent by node needs three nodes. Set NODES=3 or more."
            )
        if gpus < 1:
            raise ConfigurationError(f"GPUS={gpus}: each node needs at least one GPU. Set GPUS=1 or more.")
        world_size = nodes * gpus
        rank = _integer(environ, "FAULT_RANK", min(3, world_size - 1))
        if not 0 <= rank < world_size:
            raise ConfigurationError(
                f"FAULT_RANK={rank}: there is no such rank. NODES={nodes} with GPUS={gpus} has ranks 0 to "
                f"{world_size - 1}."
            )
        deep_check = environ.get("DEEP_CHECK") or "pass"
        if deep_check not in DEEP_CHECKS:
            raise ConfigurationError(f"DEEP_CHECK={deep_check}: set one of {', '.join(DEEP_CHECKS)}.")
        return cls(
            nodes=nodes,
            gpus=gpus,
            fault=environ.get("FAULT") or "forward-x1000",
            fault_rank=rank,
            fault_step=_integer(environ, "FAULT_STEP", 23),
            seed=_integer(environ, "SEED", 0),
            deep_check=deep_check,
            interactive=environ.get("INTERACTIVE", "0") not in ("", "0"),
            out=_own_folder(Path(environ.get("OUT") or "demo-out").resolve()),
        )


def fault_environment(settings: DemoSettings, state_dir: str = "") -> dict[str, str]:
    """What only the injector inside the trainer reads."""
    return {
        "FAULT": settings.fault,
        "FAULT_RANK": str(settings.fault_rank),
        "FAULT_STEP": str(settings.fault_step),
        "FAULT_GPUS_PER_NODE": str(settings.gpus),
        "SEED": str(settings.seed),
        STATE_DIR_VARIABLE: str(settings.out / "faults" / state_dir),
    }


def _own_folder(out: Path) -> Path:
    """The demo empties its folder at each start: only one that it made itself, or an empty one, may be it."""
    if out.exists() and not (out.is_dir() and ((out / MARKER).exists() or not any(out.iterdir()))):
        raise ConfigurationError(
            f"OUT={out}: this is not a folder that an earlier demo made, and its content would be deleted. "
            "Name a new folder."
        )
    return out


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"{name}={text}: this is not a whole number. Set for example {name}={default}."
        ) from None
