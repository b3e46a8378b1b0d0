"""transformers' Trainer under guard, by one line: `trainer.add_callback(SdcCallback(trainer))`.

In: a Trainer that trains with DDP under torchrun. Out: the same training; `SdcAlarm` leaves
`trainer.train()` on every rank before the wrong update. Checks read gradients before the Trainer clips them;
its unconditional `optimizer.step()` raises. Tested with transformers 5.24.

    sdc = SdcCallback(trainer)
    trainer.add_callback(sdc)
    trainer.train(resume_from_checkpoint=sdc.resume())
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..guard import Guard
from ..policy import Policy
from ..report import Reporter
from ..schedule import Schedule
from ..settings import AgentSettings
from . import _library
from ._guarding import Guarding
from ._refused import refuse_huggingface
from ._sealed import SealedCheckpoints

_transformers = _library.load("transformers", "transformers", "5.0", "huggingface")


class SdcCallback(_transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """Guards one Trainer.

    Parameters
    ----------
    trainer: whose `train()` is guarded; give it this callback by `trainer.add_callback`.
    schedule: how often each check runs; None is `Schedule()` with `ckpt_every` as the Trainer saves.
    settings: None reads the environment, see `AgentSettings.from_env`.
    reporter: None is `job_reporter`.
    policy: "stop" or "warn".
    adopt: accept one resume from a checkpoint that was written without the agent.

    Raises
    ------
    ConfigurationError: on every rank alike: this Trainer cannot be guarded; the text says what to change.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        schedule: Schedule | None = None,
        settings: AgentSettings | None = None,
        reporter: Reporter | None = None,
        policy: Policy | str = Policy.STOP,
        adopt: bool = False,
    ) -> None:
        self._guarding = Guarding(settings, reporter, policy, adopt)
        refuse_huggingface(trainer)
        self._trainer = trainer
        self._schedule = schedule
        self._checkpoints = SealedCheckpoints(Path(trainer.args.output_dir))
        self._library_saves = trainer._save_checkpoint
        trainer._save_checkpoint = self._save

    @property
    def guard(self) -> Guard | None:
        """The guard of the training in progress."""
        return self._guarding.guard

    def resume(self) -> str | None:
        """For `trainer.train(resume_from_checkpoint=...)`: the newest that can be trusted, or None.

        Raises
        ------
        CheckpointError: damaged, or only doubtful ones are left.
        """
        newest = self._checkpoints.resume()
        return None if newest is None else str(newest)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Model, optimizer and checkpoint are ready, nothing is computed yet: attach."""
        step = state.global_step
        resumed = (self._path(step), step) if step else None
        saves = state.save_steps if str(getattr(args.save_strategy, "value", "")) == "steps" else None
        self._guarding.begin(
            self._trainer.model_wrapped,
            [self._trainer.optimizer],
            self._checkpoints,
            schedule=self._schedule or Schedule(ckpt_every=saves),
            resumed=resumed,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training ended well; perhaps the best model was loaded."""
        self._guarding.last_look()
        self._guarding.end()

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """In place of the Trainer's own method, which every way to a checkpoint goes through."""
        path = self._path(self._trainer.state.global_step)
        self._guarding.save(self._checkpoints, path, lambda: self._library_saves(*args, **kwargs))

    def _path(self, step: int) -> Path:
        """Where the Trainer saves, and what it has loaded when its own count of steps is `step`."""
        return self._checkpoints.folder / f"checkpoint-{step}"
