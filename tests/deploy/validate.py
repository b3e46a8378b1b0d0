"""`make validate`: the synthesized stack before validators that are not ours.

In: the template, also with everything chosen otherwise, and the recorded requests. Out: exit code 0 when
asl-validator and statelint accept the resolved state machine, cfn-lint both templates, and iam-simulate
allows what the handlers ask for and denies what they must not do. cfn-lint checks no definition that is
joined from parts, which is why the machine is resolved first.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.names import ACCOUNT, arn
from infra.bundling import ROOT
from infra.synth import synthesize
from tests.deploy import deployed, must_not, recording
from tests.infra.conftest import OTHER

BIN = ROOT / "node_modules" / ".bin"
ARN = "arn:aws:lambda:us-east-1:123456789012:function:"
# W3005: CDK writes DependsOn that GetAtt implies.
# W3037: its list of actions is older than ListClusterOperations and DescribeClusterOperation.
IGNORED = ("W3005", "W3037")
UNKNOWN_TO_SIMULATOR = {  # newer than its list of actions
    "sagemaker:ListClusterOperations",
    "sagemaker:DescribeClusterOperation",
}
DENIALS = {"ImplicitlyDenied", "ExplicitlyDenied"}


def definition(template: Path) -> str:
    """The state machine with an ARN in place of each reference."""
    resources = json.loads(template.read_text())["Resources"]
    parts = resources["IncidentWorkflow"]["Properties"]["DefinitionString"]["Fn::Join"][1]
    return "".join(
        part if isinstance(part, str) else ARN + part["Fn::GetAtt"][0] if "Fn::GetAtt" in part else "aws"
        for part in parts
    )


def simulated(folder: Path) -> list[str]:
    """Where the IAM simulator sees it otherwise than it should be; sentences."""
    roles = deployed.roles(folder)
    asked = [(r.function.removesuffix("Function"), r.request, "Allowed") for r in recording.load()]
    asked += [(function, request, "denied") for function, request in must_not.MUST_NOT]
    asked = [q for q in asked if q[1].action not in UNKNOWN_TO_SIMULATOR]
    questions = [
        {
            "action": request.action,
            "resource": request.resource,
            "context": {key: list(values) for key, values in request.context.items()},
            "role": arn("iam", f"role/{function}Role", region=""),
            "account": ACCOUNT,
            "statements": roles[function],
        }
        for function, request, _ in asked
    ]
    script = [shutil.which("node") or "node", str(Path(__file__).with_name("simulate.mjs"))]
    done = subprocess.run(
        script, input=json.dumps(questions), cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return [
        f"{function}: {request.action} on {request.resource} {dict(request.context)}: {answer}, not {wanted}"
        for (function, request, wanted), answer in zip(asked, json.loads(done.stdout), strict=True)
        if answer != wanted and not (wanted == "denied" and answer in DENIALS)
    ]


def main() -> int:
    """Number of validators that complained."""
    with TemporaryDirectory() as name:
        template = synthesize(Path(name) / "assembly")
        other = synthesize(Path(name) / "other", {**OTHER, "eks_access_entries": "true"})
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
                str(other),
            ],
        )
        failed = 0
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            failed += bool(done.returncode)
            verdict = "no complaint" if not done.returncode else done.stdout + done.stderr
            sys.stdout.write(f"{Path(command[0]).name}: {verdict}\n")
        wrong = simulated(Path(name))
        failed += bool(wrong)
        sys.stdout.write("iam-simulate: " + ("\n".join(wrong) or "no complaint") + "\n")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
