"""`make examples`: every integration as a job of real processes, first healthy, then with a fault.

In: the scripts beside this file. Out: one line each and exit code 0, or 1 when one did not end as it must.
The first start trains in silence and saves; the second resumes from there, is hit, and must name that rank.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.injection import STATE_DIR_VARIABLE
from examples.integrations.arguments import EVERY
from training_agent.contract import Env, ExitCode

ROOT = Path(__file__).parents[2]
NAMES = ("plain", "huggingface", "lightning", "accelerate")
RANKS, HIT = 3, 1
HEALTHY, ALL = 2 * EVERY, 4 * EVERY  # steps of the first start, and of both
FAULT_STEP, SEEN = HEALTHY + 2, 3 * EVERY
TIMEOUT_S = 240.0
AT_A_TIME = 2  # a start is mostly imports: of the launcher alone, then of its ranks


@dataclass(frozen=True, slots=True)
class Ended:
    """One start of a job."""

    code: int
    output: str

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """As the ranks logged them."""
        lines = [line[line.index('{"sdc":"alarm"') :] for line in self.output.splitlines() if _tells(line)]
        return [json.loads(line)["alarm"] for line in lines]


def _tells(line: str) -> bool:
    return '{"sdc":"alarm"' in line


def main(names: list[str]) -> int:
    """Run the named examples, or all; the exit code."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return int(not all(pool.map(run, names or NAMES)))


def run(name: str) -> bool:
    """Both starts of one example, and a line about them; whether all went as it must."""
    out = ROOT / "out" / "integrations" / name
    shutil.rmtree(out, ignore_errors=True)
    began = time.monotonic()
    healthy = start(name, out, attempt=1, steps=HEALTHY)
    hit = None
    if healthy.code == 0:
        hit = start(name, out, attempt=2, steps=ALL, FAULT="forward-x1000")
    problem = wrong_with(healthy, hit)
    took = f"{time.monotonic() - began:.0f} s"
    if problem is None:
        say(f"{name:<12} silent for {HEALTHY} steps, resumed, rank {HIT} named at step {SEEN}  ({took})")
        return True
    last = "\n".join((hit or healthy).output.splitlines()[-25:])
    say(f"{name:<12} FAILED: {problem}  ({took}; output in {out})\n{last}")
    return False


def start(name: str, folder: Path, *, attempt: int, steps: int, **fault: str) -> Ended:
    """Start the job under torchrun and wait for it; its output is kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        "PYTHONFAULTHANDLER": "1",  # should a library abort the process, every thread says where it was
        **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"},
        Env.NODE_NAME.value: "hyperpod-i-0123456789abcdef0",
        Env.GPU_UUIDS.value: ",".join(f"GPU-{rank}" for rank in range(RANKS)),
        Env.SHARED_DIR.value: str(folder),
        Env.ATTEMPT.value: str(attempt),
        STATE_DIR_VARIABLE: str(folder / "faults"),
        **{"FAULT": "none", "FAULT_RANK": str(HIT), "FAULT_STEP": str(FAULT_STEP), **fault},
    }
    command = [sys.executable, "-m", "training_agent.run", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += ["-m", f"examples.integrations.{name}", "--steps", str(steps)]
    log = folder / f"start-{attempt}.log"
    with log.open("wb") as f:
        job = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=f, stderr=subprocess.STDOUT)
        try:
            code = job.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            job.terminate()  # torchrun ends its workers
            code = job.wait()
    return Ended(code, log.read_text(errors="replace"))


def wrong_with(healthy: Ended, hit: Ended | None) -> str | None:
    """What did not go as it must; None when all did. Pure."""
    if healthy.code != 0 or hit is None:
        return f"the healthy start ended with code {healthy.code}"
    if healthy.alarms:
        return f"the healthy start alarmed: {healthy.alarms[0]['findings']}"
    if hit.code != ExitCode.ALARM or not hit.alarms:
        return f"the hit start ended with code {hit.code} and {len(hit.alarms)} alarms"
    for alarm in hit.alarms:
        named = [f["place"]["rank"] for f in alarm["findings"] if f["place"]]
        if named != [HIT]:
            return f"the alarm names {named}, hit was [{HIT}]"
        resume = (alarm["resume_from"] or {}).get("step")
        if (alarm["step"], alarm["suspect_window"], resume) != (SEEN, [HEALTHY + 1, SEEN], HEALTHY):
            return f"step {alarm['step']}, window {alarm['suspect_window']}, to resume from {resume}"
    return None


def say(text: str) -> None:
    """One line for the person who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
