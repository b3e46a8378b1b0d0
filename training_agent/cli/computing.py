"""The commands of `sdc` that compute: options only. In: arguments. Out: what `replay` does. Used by `app`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..clients import boto3_client
from .bisect import Search
from .bisect import bisect as run_bisect
from .deployment import environment
from .replay import Wanted
from .replay import replay as run_replay
from .running import Json, run


def replay(
    capsule: Annotated[Path, typer.Argument(metavar="CAPSULE", help="The file that the alarm names.")],
    model: Annotated[
        str, typer.Option("--model", help="module:function that returns the model, or (model, compute_loss).")
    ],
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Weights; by default those in the capsule.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="How often to compute it.")] = 10,
    device: Annotated[str | None, typer.Option("--device", help="Such as cuda:3; cuda:0 or cpu.")] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="What a trusted GPU computed from these weights.")
    ] = None,
    save_reference: Annotated[
        Path | None, typer.Option("--save-reference", help="Write what this one computes, for other GPUs.")
    ] = None,
    incident: Annotated[
        str | None, typer.Option("--incident", help="The incident that the receipt is for.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option("--receipt", help="Where to write the receipt.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Send the receipt to the pipeline (SDC_EVENT_BUS).")
    ] = False,
    json: Json = False,
) -> None:
    """Compute the micro-batch of an alarm again, here: are the bits the right ones?

    Ends with 0 when every repeat is equal to what was expected, 1 when one differs and some rank of the job
    had got the bits of one, 4 when nothing can tell: a model built in another way differs on every GPU.
    """
    wanted = Wanted(
        capsule, model, checkpoint, repeat, device, reference, save_reference, incident, receipt, publish
    )
    run(json, lambda s: run_replay(s, wanted, environment(), boto3_client))


def bisect(
    ctx: typer.Context,
    alarm: Annotated[Path, typer.Argument(metavar="ALARM", help="A file of $SDC_SHARED_DIR/spool.")],
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", help="Folder; by default where the alarm resumes from.")
    ] = None,
    trail: Annotated[
        Path | None, typer.Option("--trail", help="By default the alarm's, in ../capsules.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Where the search is remembered; beside the alarm.")
    ] = None,
    max_updates: Annotated[
        int, typer.Option("--max-updates", help="The most updates to compute, all launches together.")
    ] = 10_000,
    json: Json = False,
) -> None:
    """Which update of the suspect window was the first poisoned one?

    Everything after `--` is the job's own launch, on as many trusted GPUs as it had:
    sdc bisect spool/KEY.json -- torchrun --nproc-per-node 8 train.py
    Ends with 0 when it is decided, 4 when not; called again, it goes on where it was.
    """
    wanted = Search(alarm, tuple(ctx.args), checkpoints, trail, state, max_updates)
    run(json, lambda s: run_bisect(s, wanted, environment()))
