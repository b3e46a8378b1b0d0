"""`make demo`: one fault, all the way round.

Reads the request, starts the local cloud, runs the reference and then the job that is hit, watches the
pipeline deal with it, and proves the result. Exit 0 only if the right ranks were named, the incident ended as
its decision row says, and the final weights are bit-identical to those of the run that was never hit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from typing import NoReturn

from examples.demo.launch import fault_environment, reference_run
from examples.demo.proof import failures, summarize
from examples.demo.settings import DemoSettings
from examples.demo.story import Story, tell
from examples.demo.watch import Watch, seats_of
from examples.injection import plan_from
from training_agent.contract import ExitCode
from training_agent.errors import ConfigurationError
from training_agent.faults import describe


def main() -> int:
    """Run the demo that the environment asks for; returns the exit code."""
    if os.environ.get("FAULT") == "list":
        sys.stdout.write(describe() + "\n")
        return 0
    try:
        settings = DemoSettings.from_env(os.environ)
        plan_from(settings.train, fault_environment(settings), settings.world_size, settings.gpus)
    except ConfigurationError as e:
        sys.stderr.write(f"{e}\n")
        return int(ExitCode.CONFIGURATION)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # so that every `with` block ends its processes
    return run(settings, Story())


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def run(settings: DemoSettings, story: Story) -> int:
    """The demo itself; writes everything to `settings.out`."""
    # a fresh folder: old results must not be mistaken for new ones
    shutil.rmtree(settings.out, ignore_errors=True)
    settings.out.mkdir(parents=True)
    watch = Watch(settings, story)
    with story.phase("synthesizing the CDK app and loading its template into the local cloud"):
        cloud = watch.start_cloud()
    with cloud:
        with story.phase("reference run, and the same run hit by the fault without the agent") as progress:
            reference_run(settings, seats_of(cloud, settings), progress)
        with story.phase(
            f"the job: {settings.nodes} nodes x {settings.gpus} GPUs, {settings.fault}"
        ) as progress:
            watch.job(cloud, progress)
        seen = watch.observed(cloud)
        watch.keep_evidence(cloud)
    summary = summarize(seen)
    wrong = failures(seen, summary)
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    tell(story, summary, wrong, watch.cost(summary))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
