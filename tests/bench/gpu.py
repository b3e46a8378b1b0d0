"""`python -m tests.bench.gpu`: the GPU figures, one JSON line each as it is known, all of them last.

Runs with the machine's own python3 and torch, PYTHONPATH at the repository, nothing installed. Each section
is a process of its own with a time cap: what fails or hangs takes no other figure with it, and a section's
figures up to then are kept. --dry: smallest sizes, on the CPU where there is no GPU; proves that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

SECTIONS = {"digest": 90, "alone": 200, "two processes": 150}  # seconds; with `COUNTED` 8 minutes
COUNTED = {"instructions": 40}  # needs no GPU, and a compiler of Triton's
OUT = Path("out/bench-gpu.json")
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # deterministic audits refuse to run without


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    dry = parser.parse_args().dry
    found: dict[str, Any] = {}
    for name, cap_s in (SECTIONS if dry else SECTIONS | COUNTED).items():
        started = time.monotonic()
        error = run(name, cap_s, dry, found)
        section = found.setdefault(name, {})
        section["section_s"] = round(time.monotonic() - started, 1)
        if error:
            section["error"] = error
            _say({name: {"error": error}})
        if name == "digest" and found.get("machine", {}).get("device") == "cpu" and not dry:
            _say("bench-gpu needs a CUDA GPU; --dry runs it on the CPU with the smallest sizes.")
            return 2
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(found, indent=1) + "\n")
    _say(found)
    return 1 if any("error" in section for section in found.values()) else 0


def run(name: str, cap_s: float, dry: bool, found: dict[str, Any]) -> str:
    """Add what one section finds to `found`, line by line; why it has no more, "" if it is whole."""
    module = ["tests.unit.agent.sm90"] if name in COUNTED else ["tests.bench.gpu_sections", name, str(cap_s)]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *module, *(["--dry"] if dry else [])],
        env={CUBLAS: ":4096:8", **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # it may have children of its own
    )
    late = threading.Timer(cap_s, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    trouble: deque[str] = deque(maxlen=30)
    with process:
        for line in process.stdout or ():
            figures = _figures(line)
            if figures:
                for section, part in ({name: figures} if name in COUNTED else figures).items():
                    found.setdefault(section, {}).update(part)
                _say(figures)
            else:
                trouble.append(line)
    late.cancel()
    if process.returncode == 0:
        return ""
    if process.returncode == -signal.SIGKILL:
        return f"killed: its {cap_s} s were over, or the machine's memory"
    return f"exit code {process.returncode}: {''.join(trouble)}"


def _figures(line: str) -> dict[str, Any]:
    """What a line of a section says; nothing, where it is one of the agent's log or was cut off."""
    if not line.startswith("{") or line.startswith('{"sdc"'):
        return {}
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}


def _say(value: Any) -> None:
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
