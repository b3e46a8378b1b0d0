"""Two ranks that save together, then start in folders that they do not share. Prints a line per fact."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from training_agent import CheckpointStore, _shared_proof, attach
from training_agent.checkpoint_together import save_together
from training_agent.contract import Job
from training_agent.errors import CheckpointError, ConfigurationError
from training_agent.settings import AgentSettings


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


def main() -> None:
    shared = Path(sys.argv[1])
    _shared_proof.PATIENCE_S = 0.5  # one machine has no cache to wait for
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = CheckpointStore(shared / "checkpoints", 2)
    state = {"w": torch.arange(4.0), f"only-{rank}": torch.full((2,), float(rank))}
    save_together(store, 10, lambda folder: dcp.save(state, checkpoint_id=folder), {"last_audit_pass": 10})
    dist.barrier()
    info = store.newest()
    assert info is not None
    folder, _ = store.verified(info)
    loaded = {"w": torch.zeros(4), f"only-{rank}": torch.zeros(2)}
    dcp.load(loaded, checkpoint_id=folder)
    say(f"loaded {loaded['w'].tolist()} {loaded[f'only-{rank}'].tolist()}")

    def half(folder: Path) -> None:
        (folder / f"part-{rank}").write_text("x")
        if rank == 1:
            raise OSError("no space left")

    try:
        save_together(store, 20, half, {})
    except CheckpointError as e:
        say(f"refused {e}")
    say(f"newest {getattr(store.newest(), 'step', None)}")

    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = AgentSettings(
        "test", Job("job", "uid"), f"hyperpod-i-{rank:017x}", shared_dir=shared / f"node-{rank}"
    )
    try:
        attach(model, optimizer, settings=own)
    except ConfigurationError as e:
        say(f"unshared {e}")
    attach(model, optimizer, settings=dataclasses.replace(own, allow_node_local=True)).close()
    attach(model, optimizer, settings=dataclasses.replace(own, shared_dir=shared)).close()
    dist.barrier()  # rank 0 removes what it wrote after the others have answered
    say(f"left over {[p.name for p in shared.rglob('.sdc-shared*')]}")


main()
