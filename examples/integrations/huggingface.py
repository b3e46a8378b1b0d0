"""transformers' Trainer: accumulation, clipping and scheduler are its own; two lines are the agent's.

torchrun --nproc-per-node 3 -m examples.integrations.huggingface --steps 16
"""

from __future__ import annotations

import gc

from examples.integrations.arguments import arguments
from training_agent import AgentSettings, hold_while_quarantined

hold_while_quarantined(AgentSettings.from_env())  # before torch is imported

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from examples.injection import inject, schedule_of
from training_agent.integrations.huggingface import SdcCallback

config = arguments()


class Copies(Dataset):  # type: ignore[type-arg]
    """Random ids, then the same again."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        half = torch.randint(128, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": half.repeat(2), "labels": half.repeat(2)}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2))
trainer = Trainer(
    model=model,
    train_dataset=Copies(),
    args=TrainingArguments(
        output_dir=str(config.out / "checkpoints"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        warmup_steps=2,
        max_steps=config.steps,
        save_steps=config.checkpoint_every,
        logging_steps=config.checkpoint_every,
        report_to="none",
        use_cpu=True,
    ),
)
sdc = SdcCallback(trainer, schedule=schedule_of(config))
trainer.add_callback(sdc)
inject(model.transformer.h[1].mlp.c_proj, lambda sdc=sdc: sdc.guard, config)  # type: ignore[misc]
trainer.train(resume_from_checkpoint=sdc.resume())
del trainer, model, sdc  # they hold the process group, which torch may abort over at exit
gc.collect()
torch.distributed.destroy_process_group()  # the Trainer does not
