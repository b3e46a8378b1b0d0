"""What both callbacks do with the guard: attach it, take a checkpoint over, ask it before every save.

In: what the library has prepared when its training begins. Out: the guard, and sealed checkpoints. Next: the
library's own loop, whose `optimizer.step()` raises `SdcAlarm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..checkpoint_together import agree
from ..checks.replay import LossFunction
from ..errors import ConfigurationError
from ..guard import Guard, attach
from ..policy import Policy
from ..report import Reporter, job_reporter
from ..schedule import Schedule
from ..settings import AgentSettings
from ._sealed import SealedCheckpoints

POLICIES = (Policy.STOP, Policy.WARN)


class Guarding:
    """One callback's guard, over all `fit()` or `train()` calls.

    Parameters
    ----------
    settings, reporter: None reads the environment; reports as `job_reporter` does.
    policy: "stop" or "warn": libraries count a dropped step as done, so dropping and repeating is not theirs.
    adopt: a checkpoint without a record may be resumed from; the run before had no agent.

    Raises
    ------
    ConfigurationError: the policy, or the environment.
    """

    def __init__(
        self,
        settings: AgentSettings | None,
        reporter: Reporter | None,
        policy: Policy | str,
        adopt: bool,
    ) -> None:
        if policy not in POLICIES:
            raise ConfigurationError(
                f"policy={policy!r}: this library counts a dropped step as done. Use 'stop' or 'warn'; "
                "'retry' and 'skip' need training_agent.train(...) or a loop of your own."
            )
        self.settings = settings or AgentSettings.from_env()
        self._reporter = reporter
        self._policy = policy
        self._adopt = adopt
        self.guard: Guard | None = None

    def watching(self) -> Guard:
        """The guard of the training in progress.

        Raises:
            ConfigurationError: there is none.
        """
        if self.guard is None:
            raise ConfigurationError(
                "Nothing is guarded: training has not begun, or the callback was not given to the trainer."
            )
        return self.guard

    def begin(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        checkpoints: SealedCheckpoints,
        *,
        schedule: Schedule,
        compute_loss: LossFunction | None = None,
        resumed: tuple[Path, int] | None = None,
    ) -> Guard:
        """Attach; a collective. `resumed`: the checkpoint that the library has loaded, and its step count.

        Raises
        ------
        SdcAlarm: an alarm of this process was swallowed, or replicas differ after the load.
        ConfigurationError, CheckpointError: see `attach` and `Guard.after_load`.
        """
        if self.guard is not None:  # the last training of this process ended by an error
            self.guard._latch.raise_again()
            self.guard.abandon()
        manifest, step = None, 0
        if resumed is not None:
            path, step = resumed
            known = not (self._adopt and checkpoints.unknown(path))
            manifest = checkpoints.manifest(path) if known else None
        self.guard = attach(
            model,
            optimizers,
            compute_loss=compute_loss,
            schedule=schedule,
            step=0 if manifest is not None else step,
            settings=self.settings,
            reporter=self._reporter or job_reporter(self.settings, dist.get_rank()),
            checkpoints=checkpoints,
            policy=self._policy,
        )
        if manifest is not None:
            self.guard.after_load(manifest)
        return self.guard

    def save(self, checkpoints: SealedCheckpoints, path: Path, write: Callable[[], object]) -> None:
        """Ask the guard, let the library write, seal what it wrote; a collective.

        Raises
        ------
        SdcAlarm: the weights differ between ranks, or an alarm was raised before; nothing is written.
        CheckpointError: on every rank, when one could not write.
        """
        guard = self.watching()
        guard.before_save(together=True)
        first = dist.get_rank() == 0
        if first:
            checkpoints.unseal(path)
        agree(write, None)

        def seal() -> None:
            if first:
                checkpoints.seal(path, guard.step, dist.get_world_size(), guard.manifest())

        agree(seal, None)

    def last_look(self) -> None:
        """The loop has ended; whatever is saved now was compared. A collective.

        Raises
        ------
        SdcAlarm: replicas differ.
        """
        self.watching().before_save(together=True)

    def end(self) -> None:
        """Training ended well: take the guard off."""
        if self.guard is not None:
            self.guard.close()
            self.guard = None
