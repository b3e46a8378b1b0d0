"""Where the pipeline stands: the outputs of its stack.

In: the file that `cdk deploy --outputs-file` writes, or CloudFormation's answer. Out: `Deployment`. An
approver needs neither: the mail's `--api` address is enough to decide.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..contract import Env
from .aws import Aws, explained
from .failures import CannotAskError

STACK_PREFIX = "TrainingSdc-"  # before the cluster's name, unless cdk.json names the stack itself
REDEPLOY = "Deploy the stack of this version once more: its outputs name what `sdc` asks."


@dataclass(frozen=True, slots=True)
class Deployment:
    """One stack's outputs, by name."""

    source: str  # where they come from, for messages
    outputs: Mapping[str, str] = field(default_factory=dict)

    def need(self, name: str) -> str:
        """One output.

        Raises:
            CannotAskError: the stack has no such output.
        """
        if not self.outputs.get(name):
            raise CannotAskError(f"{self.source} has no output {name}.", REDEPLOY)
        return self.outputs[name]


def find(aws: Aws, *, stack: str | None, outputs: Path | None, environ: Mapping[str, str]) -> Deployment:
    """The deployment that the options or the environment name.

    Raises:
        CannotAskError: none is named, or it cannot be read.
    """
    if outputs is not None:
        return from_file(outputs, stack)
    cluster = environ.get(Env.CLUSTER)
    name = stack or (f"{STACK_PREFIX}{cluster}" if cluster else None)
    if name is None:
        raise CannotAskError(
            "No deployment is named.",
            "Give --stack NAME (TrainingSdc-<cluster> unless cdk.json says otherwise), set SDC_CLUSTER, or "
            "give --outputs FILE, written by `cdk deploy --outputs-file FILE`.",
        )
    with explained(f"read the outputs of stack {name}", "cloudformation:DescribeStacks"):
        found = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    given = {o["OutputKey"]: o["OutputValue"] for s in found for o in s.get("Outputs", ())}
    return Deployment(f"stack {name}", given)


def from_file(path: Path, stack: str | None) -> Deployment:
    """Read CDK's outputs file: `{stack: {name: value}}`.

    Raises:
        CannotAskError: there is no such file, it is not such a file, or it has several stacks and none is
            chosen.
    """
    try:
        content: Any = json.loads(path.read_text())
        stacks = {str(name): dict(values) for name, values in content.items()}
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise CannotAskError(
            f"{path} cannot be read as outputs: {e}.", "Write it with `cdk deploy --outputs-file`."
        ) from e
    if stack is None and len(stacks) == 1:
        stack = next(iter(stacks))
    if stack not in stacks:
        raise CannotAskError(
            f"{path} has the stacks {', '.join(sorted(stacks)) or '(none)'}.", "Choose one with --stack NAME."
        )
    return Deployment(f"stack {stack}", stacks[stack])


def outputs_from(environ: Mapping[str, str]) -> Path | None:
    """SDC_OUTPUTS, where it is set."""
    return Path(environ["SDC_OUTPUTS"]) if environ.get("SDC_OUTPUTS") else None


def environment() -> Mapping[str, str]:
    """The process's own variables: the one place of the command line that reads them."""
    return os.environ
