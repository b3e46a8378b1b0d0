"""`make validate`: the synthesized stack before validators that are not ours.

In: the template. Out: exit code 0 when asl-validator and statelint accept the resolved state machine and
cfn-lint the template. cfn-lint checks no definition that is joined from parts, which is why the machine is
resolved first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.bundling import ROOT
from infra.synth import synthesize

BIN = ROOT / "node_modules" / ".bin"
ARN = "arn:aws:lambda:us-east-1:123456789012:function:"
# W3005: CDK writes DependsOn that GetAtt implies.
# W3037: its list of actions is older than ListClusterOperations.
IGNORED = ("W3005", "W3037")


def definition(template: Path) -> str:
    """The state machine with an ARN in place of each reference."""
    resources = json.loads(template.read_text())["Resources"]
    parts = resources["IncidentWorkflow"]["Properties"]["DefinitionString"]["Fn::Join"][1]
    return "".join(
        part if isinstance(part, str) else ARN + part["Fn::GetAtt"][0] if "Fn::GetAtt" in part else "aws"
        for part in parts
    )


def main() -> int:
    """Number of validators that complained."""
    with TemporaryDirectory() as name:
        template = synthesize(Path(name) / "assembly")
        machine = Path(name) / "machine.asl.json"
        machine.write_text(definition(template))
        commands = (
            [str(BIN / "asl-validator"), "--json-path", str(machine)],
            [str(BIN / "statelint"), str(machine)],
            [
                str(Path(sys.executable).with_name("cfn-lint")),
                "--ignore-checks",
                *IGNORED,
                "--",
                str(template),
            ],
        )
        failed = 0
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            failed += bool(done.returncode)
            verdict = "no complaint" if not done.returncode else done.stdout + done.stderr
            sys.stdout.write(f"{Path(command[0]).name}: {verdict}\n")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
