"""Starts the demo's processes: the reference run, and the job as its manifest describes it.

Comes in: `DemoSettings`, the local cloud, the seats of the ranks. Goes out: processes and their logs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulator.cloud import LocalCloud
from emulator.training_operator import JobSpec
from examples.demo.reference import PLACES_VARIABLE
from examples.demo.settings import DemoSettings, fault_environment
from examples.demo.story import Progress
from training_agent.contract import Env

CLUSTER = "demo"  # HyperPod's name of the cluster
REFERENCE_TIMEOUT_SECONDS = 300.0
STEP = re.compile(r"step \d+/\d+")
ROOT = Path(__file__).parents[2]


def synthesized(out_dir: Path, context: Mapping[str, object]) -> Path:
    """Run the app as the CDK command line does, in a process of its own; returns the template's path."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        env={
            **_common_environment(),
            "CDK_OUTDIR": str(out_dir),
            "CDK_CONTEXT_JSON": json.dumps(context),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    templates = list(out_dir.glob("*.template.json"))
    if done.returncode != 0 or len(templates) != 1:
        raise RuntimeError(f"the CDK app could not be synthesized:\n{done.stdout}{done.stderr}")
    return templates[0]


def reference_run(settings: DemoSettings, places: Sequence[Mapping[str, str]], progress: Progress) -> None:
    """Run `examples.demo.reference` to its end; RuntimeError with the log's last lines when it fails."""
    log_path = settings.out / "logs" / "reference.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(settings.world_size), "-m", "examples.demo.reference"]
    command += [
        "--seed",
        str(settings.seed),
        "--steps",
        str(settings.train.steps),
        "--out",
        str(settings.out),
    ]
    environment = {
        **_common_environment(),
        **fault_environment(settings, "poisoned"),
        PLACES_VARIABLE: json.dumps(list(places)),
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        deadline = time.monotonic() + REFERENCE_TIMEOUT_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the reference run did not end in {REFERENCE_TIMEOUT_SECONDS:.0f} s")
            progress(last_line(log_path))
            time.sleep(0.2)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the reference run failed ({process.returncode}):\n{tail(log_path)}")


def job_spec(settings: DemoSettings, cloud: LocalCloud) -> JobSpec:
    """The job as its manifest describes it: script, agent's variables, the injector's variables."""
    shared = settings.out / "shared"
    return JobSpec(
        name="llama",
        namespace="training",
        nodes=settings.nodes,
        gpus_per_node=settings.gpus,
        python=sys.executable,
        command=[
            str(ROOT / "examples" / "train.py"),
            *("--steps", str(settings.train.steps)),
            *("--seed", str(settings.seed)),
            *("--audit-every", str(settings.train.audit_every)),
            *("--check-every", str(settings.train.check_every)),
            *("--checkpoint-every", str(settings.train.checkpoint_every)),
            *("--out", str(settings.out)),
        ],
        environment={
            **_common_environment(),
            **cloud.environment(),
            **fault_environment(settings, "job"),
            Env.CLUSTER.value: CLUSTER,
            Env.EVENT_BUS.value: cloud.event_bus_name,
            Env.QUARANTINE_TABLE.value: cloud.quarantine_table_name,
        },
        shared_dir=shared,
        log_dir=settings.out / "logs",
    )


def write_report(settings: DemoSettings, cloud: LocalCloud) -> None:
    """`sdc report` as an operator runs it: the run, and the incidents that its alarms opened."""
    outputs = settings.out / "cloud" / "outputs.json"
    outputs.write_text(json.dumps({"TrainingSdc-demo": cloud.stack.outputs()}))
    command = [sys.executable, "-m", "training_agent.cli", "report", "--run", str(settings.out / "shared")]
    done = subprocess.run(
        [*command, "--outputs", str(outputs), "--out", str(settings.out / "report.html")],
        env={**_common_environment(), **cloud.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the report could not be written:\n{done.stdout}{done.stderr}")


def last_line(path: Path) -> str:
    """Return the last line of a log that says how far a run is, or nothing."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line for line in reversed(lines) if STEP.search(line)), "")


def tail(path: Path, lines: int = 30) -> str:
    """Return the end of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _common_environment() -> dict[str, str]:
    """What a process of the training image has: the interpreter's surroundings, one thread, loopback."""
    keep = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR") if k in os.environ}
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {**keep, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
