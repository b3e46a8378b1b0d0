"""`make demo`: one fault, all the way round.

Reads the request, starts the local cloud, runs the reference and then the job that is hit, watches the
pipeline deal with it, and proves the result. Exit 0 only if the right ranks were named, the incident ended as
its decision row says, and the final weights are bit-identical to those of the run that was never hit.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from examples.demo.settings import VARIABLES, DemoSettings, fault_environment
from examples.injection import plan_from
from training_agent.contract import ExitCode
from training_agent.errors import ConfigurationError
from training_agent.faults import describe


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo that the environment asks for; returns the exit code."""
    _parser().parse_args(arguments)  # there are none: --help, or a mistake
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
    from examples.demo.run import run  # AWS, CDK and what plays them: seconds that a refusal need not wait

    try:
        return run(settings)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; nothing is left running. The logs are in {settings.out / 'logs'}.\n")
        return 130
    except (RuntimeError, OSError) as e:
        sys.stderr.write(f"the demo could not be finished: {e}\nThe logs are in {settings.out / 'logs'}.\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    names = [f"{name}={default}" for name, default, _ in VARIABLES]
    wide = max(map(len, names))
    lines = [f"  {n:<{wide}}  {v[2].replace('`', '')}" for n, v in zip(names, VARIABLES, strict=True)]
    return argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="One fault in a training job, all the way round.",
        epilog="\n".join(["what is asked for, by environment variables (these are the defaults):", *lines, "",
                          "exit codes: 0 proven, 1 not proven, 2 a mistake in the arguments,",
                          "  4 cannot be run, 130 stopped"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
