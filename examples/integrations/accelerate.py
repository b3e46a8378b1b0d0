"""Accelerate: accumulation, clipping and scheduler are its own; `attach` takes what `prepare` returns.

torchrun --nproc-per-node 3 -m examples.integrations.accelerate --steps 16
"""

from __future__ import annotations

import gc

from examples.integrations.arguments import arguments
from training_agent import AgentSettings, CheckpointStore, attach, hold_while_quarantined, job_reporter

settings = AgentSettings.from_env()
hold_while_quarantined(settings)  # before torch is imported

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

from examples.injection import inject, schedule_of
from training_agent import save_together

config = arguments()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 100)
layer = model.model.layers[1].mlp.down_proj
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

store = CheckpointStore(config.out / "checkpoints", accelerator.num_processes)
guard = attach(
    model,
    optimizer,
    schedule=schedule_of(config),
    settings=settings,
    reporter=job_reporter(settings, accelerator.process_index),
    checkpoints=store,
)
inject(layer, lambda guard=guard: guard, config)  # type: ignore[misc]
if found := store.resume():
    folder, manifest = store.verified(found)
    accelerator.load_state(str(folder))
    guard.after_load(manifest)

for batch_index in range(2 * guard.step, 2 * config.steps):
    seed = batch_index * accelerator.num_processes + accelerator.process_index
    tokens = torch.randint(128, (4, 16), generator=torch.Generator().manual_seed(seed)).repeat(1, 2)
    with accelerator.accumulate(model):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients and guard.step % config.checkpoint_every == 0:
        guard.before_save()
        save_together(store, guard.step, lambda f: accelerator.save_state(str(f)), guard.manifest())
guard.close()
accelerator.wait_for_everyone()
accelerator.free_memory()
# They hold the process group, which torch may abort over at exit.
del guard, model, optimizer, scheduler, layer
gc.collect()
accelerator.end_training()
