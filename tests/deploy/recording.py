"""The kinds of requests that the handlers make of AWS, recorded by the workflow tests, committed beside this.

In: what `emulator.lambda_worker` noted. Out: requests.json, one entry for each function, action, resource and
set of condition keys, with one call's parameters as an example. `tests/infra/test_requests.py` and
`make validate` judge it; a workflow test run that sees a kind that is not in it fails.
`python -m tests.deploy.recording` runs the workflow tests and writes it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.iam import Request

FILE = Path(__file__).with_name("requests.json")
ROOT = FILE.parents[2]
WRITE = "SDC_RECORD_REQUESTS"  # set: the workflow tests add to the file instead of comparing
LONGEST = 60  # characters of a text in an example


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of request."""

    function: str  # logical id
    request: Request
    service: str  # as boto3 names it
    operation: str
    parameters: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What a kind is known by."""
        action, resource, context = self.request.key
        return json.dumps([self.function, action, resource, context])

    def plain(self) -> dict[str, Any]:
        call = {"service": self.service, "operation": self.operation, "parameters": _short(self.parameters)}
        return {"function": self.function, **self.request.plain(), **call}


def load() -> list[Recorded]:
    """What is committed."""
    if not FILE.is_file():
        return []
    return [
        Recorded(
            e["function"],
            Request(e["action"], e["resource"], {k: tuple(v) for k, v in e["context"].items()}),
            e["service"],
            e["operation"],
            e["parameters"],
        )
        for e in json.loads(FILE.read_text())
    ]


def noted(folder: Path) -> list[Recorded]:
    """What the functions of a local cloud asked for; prefixes of further stacks are taken off."""
    found = []
    for path in sorted(folder.glob("*functions/*.requests.jsonl")):
        prefix = path.parent.name.removesuffix("functions")
        for line in path.read_text().splitlines():
            e = json.loads(line.replace(f"/{prefix}", "/").replace(f":{prefix}", ":") if prefix else line)
            request = Request(e["action"], e["resource"], {k: tuple(v) for k, v in e["context"].items()})
            function = path.name.removesuffix(".requests.jsonl")
            found.append(Recorded(function, request, *e["call"], e["parameters"]))
    return found


def compare(folder: Path) -> None:
    """Fail on a kind of request that is not committed; with the variable set, add it.

    Raises:
        AssertionError: naming the first ones.
    """
    known = {r.key: r for r in load()}
    fresh = {r.key: r for r in noted(folder) if r.key not in known}
    if os.environ.get(WRITE):
        everything = [r.plain() for _, r in sorted((known | fresh).items())]
        FILE.write_text(json.dumps(everything, indent=1) + "\n")
        return
    assert not fresh, (
        f"requests that are not in {FILE.relative_to(ROOT)}: {sorted(fresh)[:5]}. "
        "When they are meant: python -m tests.deploy.recording"
    )


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return value[:LONGEST] if isinstance(value, str) else value


def main() -> int:
    """Record anew; the exit code of the workflow tests."""
    FILE.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/workflow"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, WRITE: "1"}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
