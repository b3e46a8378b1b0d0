"""The commands of `sdc` and their options. In: arguments. Out: one of the exit codes of `failures`.

Every command takes `--json`. Those that ask AWS take `--region`, and `--stack` or `--outputs` to find the
pipeline; `--api` alone is enough to decide. Next: `reading` and `acting` do the work.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from . import acting, computing, reading
from .aws import Aws
from .deployment import Deployment, environment, find, outputs_from
from .failures import Exit
from .pipeline import Pipeline
from .preflight import preflight as run_preflight
from .report.command import report as write_report
from .running import Json, run

app = typer.Typer(
    name="sdc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Silent data corruption: is everything ready, what happened, and a person's decision.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 usage, 3 not found, 4 cannot ask AWS, 5 refused by the "
    "pipeline (nothing was changed), 130 interrupted.",
)

Region = Annotated[str | None, typer.Option("--region", help="AWS region; by default the caller's own.")]
Stack = Annotated[
    str | None, typer.Option("--stack", envvar="SDC_STACK", help="Stack name; TrainingSdc-$SDC_CLUSTER.")
]
Outputs = Annotated[
    Path | None,
    typer.Option("--outputs", envvar="SDC_OUTPUTS", help="File of `cdk deploy --outputs-file`."),
]
Api = Annotated[
    str | None,
    typer.Option("--api", envvar="SDC_API", help="Address of the approval API, as mails show it."),
]
IncidentId = Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, as mails show it.")]
Node = Annotated[str | None, typer.Option("--node", help="The node that you mean: hyperpod-i-... or i-...")]
Question = Annotated[str | None, typer.Option("--question", help="The question that you answer: INCIDENT-1")]
Action = Annotated[
    str | None, typer.Option("--action", help="What it asks for: replace, deep_check or release.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the incident.")]


@app.command()
def doctor(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Parts: job (in the pod), account, people, cluster.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="A check to leave out on purpose, by its name.")
    ] = None,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
) -> None:
    """Is this job, account, cluster and everybody who is to be asked ready?"""
    aws = Aws(region)

    def deployment() -> Deployment:
        return find(aws, stack=stack, outputs=outputs, environ=environment())

    run(json, lambda s: reading.doctor(s, environment(), aws, deployment, only or (), skip or ()))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def preflight(ctx: typer.Context, json: Json = False) -> None:
    """Run a training script up to its first update: is it deterministic, who replays whom?

    Everything after `--` is the launch: sdc preflight -- torchrun --nproc-per-node 8 train.py
    """
    run(json, lambda s: run_preflight(s, ctx.args))


app.command()(computing.replay)
app.command(context_settings={"allow_extra_args": True})(computing.bisect)


@app.command()
def incidents(
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """Open incidents, oldest first."""
    run(json, lambda s: reading.incidents(s, _pipeline(region, stack, outputs, api)))


@app.command()
def show(
    incident: IncidentId,
    follow: Annotated[bool, typer.Option("--follow", help="Wait until it has ended.")] = False,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """One incident: what is asked, and its story with the duration of each step."""
    run(
        json,
        lambda s: reading.show(s, _pipeline(region, stack, outputs, api), incident, follow=follow),
    )


@app.command()
def approve(
    incident: IncidentId,
    reason: Reason,
    node: Node = None,
    question: Question = None,
    action: Action = None,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """Say yes to what an incident asks, signed with your AWS identity."""
    meant = acting.Meant(node, question, action)
    run(
        json,
        lambda s: acting.decide(
            s, _pipeline(region, stack, outputs, api), incident, "approve", meant, reason
        ),
    )


@app.command()
def reject(
    incident: IncidentId,
    reason: Reason,
    node: Node = None,
    question: Question = None,
    action: Action = None,
    release: Annotated[
        bool, typer.Option("--release", help="Uncordon the node; without it the cordon stays.")
    ] = False,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """Say no, signed with your AWS identity; the node stays cordoned unless released."""
    answer = "release" if release else "keep"
    meant = acting.Meant(node, question, action)
    run(
        json,
        lambda s: acting.decide(s, _pipeline(region, stack, outputs, api), incident, answer, meant, reason),
    )


@app.command()
def release(
    incident: IncidentId,
    reason: Reason,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """Put back to work what an ended incident left cordoned and held, signed with your AWS identity."""
    run(json, lambda s: acting.release(s, _pipeline(region, stack, outputs, api), incident, reason))


@app.command()
def history(
    subject: Annotated[str, typer.Argument(metavar="NODE|GPU", help="hyperpod-i-..., i-... or GPU-...")],
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
) -> None:
    """Every incident that named a node or a GPU; the GPU's UUID outlives its instance."""
    run(json, lambda s: reading.history(s, _pipeline(region, stack, outputs, None), subject))


@app.command()
def report(
    incident: Annotated[
        str | None, typer.Argument(metavar="[INCIDENT]", help="Its id; none: the run.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="FOLDER",
            envvar="SDC_SHARED_DIR",
            help="The job's shared folder, or its checkpoints.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file to write.")] = None,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
) -> None:
    """One page on a run, an incident, or both: what was checked, what follows, who decided, how long."""
    run(json, lambda s: write_report(s, _pipeline(region, stack, outputs, None), incident, folder, out))


@app.command()
def drill(
    timeout: Annotated[int, typer.Option("--timeout", help="Seconds to wait for the question.")] = 300,
    json: Json = False,
    region: Region = None,
    stack: Stack = None,
    outputs: Outputs = None,
    api: Api = None,
) -> None:
    """Start a fire drill and watch it until approvers are asked; it can never replace anything."""
    run(json, lambda s: acting.drill(s, _pipeline(region, stack, outputs, api), timeout))


@app.command()
def clear(
    subject: Annotated[
        str | None, typer.Argument(metavar="[NODE|GPU]", help="Whose entry; none: list them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries.")] = False,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Let a job start again that ended with exit code 6.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept beside the record.")] = "",
    shared_dir: Annotated[
        Path | None, typer.Option("--shared-dir", envvar="SDC_SHARED_DIR", help="The job's shared folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Let a held job go where no pipeline can: take entries out of its quarantine.json."""
    if reproducible:
        run(json, lambda s: acting.acknowledge(s, shared_dir, reason))
    run(json, lambda s: acting.clear(s, shared_dir, subject, everything=everything, reason=reason))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    try:
        code = app(list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except typer.Exit as e:
        return e.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as e:  # noqa: BLE001 - see below
        show_usage = getattr(e, "show", None)  # click's usage errors
        if show_usage is None:  # a fault of ours; Python's own code, 1, is an answer of some commands
            traceback.print_exc()
            return Exit.CANNOT_ASK
        show_usage()
        return Exit.USAGE
    return int(code or 0)


def _pipeline(region: str | None, stack: str | None, outputs: Path | None, api: str | None) -> Pipeline:
    aws, env = Aws(region), environment()

    def deployment() -> Deployment:
        return find(aws, stack=stack, outputs=outputs or outputs_from(env), environ=env)

    return Pipeline(aws, deployment, api)
