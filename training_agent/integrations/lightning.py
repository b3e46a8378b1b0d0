"""Lightning's Trainer under guard, by one callback: `Trainer(callbacks=[SdcCallback(folder), ...])`.

In: a Trainer with the DDP strategy and automatic optimization. Out: the same training; `SdcAlarm` leaves
`trainer.fit()` on every rank before the wrong update. The loss function that is audited is `training_step`;
Lightning's closure is checked after its backward and clipping, before the update. Tested with 2.6.6.

    sdc = SdcCallback(folder)
    trainer = Trainer(strategy="ddp", callbacks=[sdc, ModelCheckpoint(folder, every_n_train_steps=1000)])
    trainer.fit(model, data, ckpt_path=sdc.resume())
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .._phase import Phase
from ..errors import ConfigurationError
from ..guard import Guard
from ..policy import Policy
from ..report import Reporter
from ..schedule import Schedule
from ..settings import AgentSettings
from . import _library
from ._guarding import Guarding
from ._refused import refuse_lightning
from ._sealed import SealedCheckpoints

# Two packages hold the same code; a script that has imported the older name must get that one's callback.
_OLD_NAME = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
_pl = (
    _library.load("pytorch-lightning", "pytorch_lightning", "2.6", "lightning")
    if _OLD_NAME
    else _library.load("lightning", "lightning.pytorch", "2.6", "lightning")
)


class SdcCallback(_pl.Callback):  # type: ignore[misc,name-defined]
    """Guards `trainer.fit()` of the Trainer that it is given to.

    Parameters
    ----------
    checkpoints: the folder that ModelCheckpoint saves to, the same at every start and on all nodes; None is
        that of the Trainer's first ModelCheckpoint, and `resume()` then cannot look for it.
    schedule: how often each check runs; None is `Schedule()` with `ckpt_every` as ModelCheckpoint saves.
    settings: None reads the environment, see `AgentSettings.from_env`.
    reporter: None is `job_reporter`.
    policy: "stop" or "warn".
    adopt: accept one resume from a checkpoint that was written without the agent.

    Raises
    ------
    ConfigurationError: the environment; what cannot be guarded is refused when `fit()` starts.
    """

    def __init__(
        self,
        checkpoints: str | Path | None = None,
        *,
        schedule: Schedule | None = None,
        settings: AgentSettings | None = None,
        reporter: Reporter | None = None,
        policy: Policy | str = Policy.STOP,
        adopt: bool = False,
    ) -> None:
        self._guarding = Guarding(settings, reporter, policy, adopt)
        self._schedule = schedule
        self._checkpoints = None if checkpoints is None else SealedCheckpoints(Path(checkpoints).absolute())
        self._output: Any = None  # of the last training_step of the loop
        self._replaced: list[tuple[Any, str]] = []

    @property
    def guard(self) -> Guard | None:
        """The guard of the training in progress."""
        return self._guarding.guard

    def resume(self) -> str | None:
        """What to give to `trainer.fit(ckpt_path=...)`: the newest that can be trusted, or None.

        Raises
        ------
        ConfigurationError: the callback was not given the folder.
        CheckpointError: damaged, or only doubtful ones are left.
        """
        if self._checkpoints is None:
            raise ConfigurationError(
                "SdcCallback.resume() needs the folder: SdcCallback('/shared/checkpoints')."
            )
        newest = self._checkpoints.resume()
        return None if newest is None else str(newest)

    # -- what Lightning calls --------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse, before anything is computed."""
        if stage == "fit":
            refuse_lightning(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Model, optimizers and checkpoint are ready, the first batch is not computed yet: attach."""
        checkpoints = self._folder_of(trainer)
        resumed = None
        if trainer.ckpt_path and trainer.global_step:
            resumed = (Path(trainer.ckpt_path), trainer.global_step)
        saver = trainer.checkpoint_callback
        every = getattr(saver, "_every_n_train_steps", 0) or None

        def compute_loss(model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
            return self._training_step(trainer, pl_module, model, args, kwargs)

        guard = self._guarding.begin(
            trainer.strategy.model,
            trainer.optimizers,
            checkpoints,
            schedule=self._schedule or Schedule(ckpt_every=every),
            compute_loss=compute_loss,
            resumed=resumed,
        )

        def training_step(*args: Any, **kwargs: Any) -> Any:
            guard.compute_loss(trainer.strategy.model, *args, **kwargs)
            output, self._output = self._output, None
            return output

        save = trainer.save_checkpoint

        def save_checkpoint(filepath: str | Path, *args: Any, **kwargs: Any) -> None:
            self._guarding.save(checkpoints, Path(filepath), lambda: save(filepath, *args, **kwargs))

        self._replace(trainer.strategy, "training_step", training_step)
        self._replace(trainer, "save_checkpoint", save_checkpoint)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The loop has ended well; ModelCheckpoint may save once more after this."""
        self._guarding.last_look()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """`fit()` ended well: the Trainer is as it was."""
        self._guarding.end()
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._replaced = []

    # -- the rest --------------------------------------------------------------------------------------

    def _training_step(
        self, trainer: Any, pl_module: Any, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """As the strategy does it, `model` being DDP or its replay."""
        strategy = trainer.strategy
        loop = self._guarding.watching().phase is Phase.TRAINING
        with strategy.precision_plugin.train_step_context(), _logging(pl_module, on=loop):
            output = strategy._forward_redirection(model, pl_module, "training_step", *args, **kwargs)
        if loop:
            self._output = output
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise ConfigurationError("training_step returned no loss: every rank needs one in every step.")
        return loss

    def _folder_of(self, trainer: Any) -> SealedCheckpoints:
        saver = trainer.checkpoint_callback
        saves_to = None if saver is None or not saver.dirpath else Path(saver.dirpath).absolute()
        if self._checkpoints is None:
            return SealedCheckpoints(saves_to or Path(trainer.default_root_dir).absolute())
        if saves_to is not None and saves_to.resolve() != self._checkpoints.folder.resolve():
            raise ConfigurationError(
                f"ModelCheckpoint saves to {saves_to}, SdcCallback looks into {self._checkpoints.folder}: an "
                "alarm could not move doubtful checkpoints aside. Give both the same folder."
            )
        return self._checkpoints

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        setattr(owner, name, by)
        self._replaced.append((owner, name))


@contextmanager
def _logging(pl_module: Any, *, on: bool) -> Iterator[None]:
    """`self.log` in a replay would mix a peer's numbers into this rank's metrics."""
    if on:
        yield
        return
    names = ("log", "log_dict")
    for name in names:
        object.__setattr__(pl_module, name, lambda *_args, **_kwargs: None)
    try:
        yield
    finally:
        for name in names:
            object.__delattr__(pl_module, name)
