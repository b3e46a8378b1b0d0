"""One demo run from the local cloud to the proof.

Comes in: `DemoSettings`. Goes out: everything in `settings.out`, the story on the terminal, the exit code.
"""

from __future__ import annotations

import json
import shutil

from examples.demo.launch import reference_run, write_report
from examples.demo.proof import failures, summarize
from examples.demo.settings import MARKER, DemoSettings
from examples.demo.story import Story, tell
from examples.demo.watch import Watch, seats_of


def run(settings: DemoSettings) -> int:
    """The demo itself; writes everything to `settings.out`."""
    story = Story()
    # a fresh folder: old results must not be mistaken for new ones
    shutil.rmtree(settings.out, ignore_errors=True)
    settings.out.mkdir(parents=True)
    (settings.out / MARKER).touch()
    watch = Watch(settings, story)
    with story.phase("synthesizing the CDK app and loading its template into the local cloud"):
        cloud = watch.start_cloud()
    with cloud:
        with story.phase("reference run, and the same run hit by the fault without the agent") as progress:
            reference_run(settings, seats_of(cloud, settings), progress)
        with story.phase(
            f"the job: {settings.nodes} nodes x {settings.gpus} GPUs, fault {settings.fault}"
        ) as progress:
            watch.job(cloud, progress)
        seen = watch.observed(cloud)
        watch.keep_evidence(cloud)
        write_report(settings, cloud)
    summary = summarize(seen)
    wrong = failures(seen, summary)
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    tell(story, summary, wrong, watch.cost(summary))
    return 1 if wrong else 0
