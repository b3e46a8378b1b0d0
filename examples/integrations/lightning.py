"""Lightning's Trainer: accumulation, clipping and scheduler are its own; one callback is the agent's.

torchrun --nproc-per-node 3 -m examples.integrations.lightning --steps 16
"""

from __future__ import annotations

import gc
import os
from typing import Any

from examples.integrations.arguments import arguments
from training_agent import AgentSettings, hold_while_quarantined

hold_while_quarantined(AgentSettings.from_env())  # before torch is imported

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from examples.injection import inject, schedule_of
from examples.llama import Llama, ModelConfig, compute_loss, micro_batch
from training_agent.integrations.lightning import SdcCallback

config = arguments()
model_config = ModelConfig(layers=2)


class Decoder(LightningModule):  # type: ignore[misc]
    """A small Llama-style decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Llama(model_config)

    def training_step(self, tokens: Tensor, batch_index: int) -> Tensor:
        loss = compute_loss(self.decoder, tokens)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)]


torch.manual_seed(0)
data = [micro_batch(model_config, 0, index, 0, sequences=1)[0] for index in range(512)]
folder = config.out / "checkpoints"
sdc = SdcCallback(folder, schedule=schedule_of(config))
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    max_steps=config.steps,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[sdc, ModelCheckpoint(folder, every_n_train_steps=config.checkpoint_every, save_top_k=-1)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Decoder()
inject(model.get_submodule("decoder.blocks.1.feed_forward.down"), lambda sdc=sdc: sdc.guard, config)  # type: ignore[misc]
trainer.fit(
    model,
    DataLoader(data, batch_size=2),  # type: ignore[arg-type]
    ckpt_path=sdc.resume(),
)
del trainer, model, sdc  # they hold the process group, which torch may abort over at exit
gc.collect()
torch.distributed.destroy_process_group()  # the Trainer does not
