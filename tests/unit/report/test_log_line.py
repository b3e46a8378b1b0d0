"""A thread of ours that logs while the interpreter ends must not abort the process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from training_agent.log_line import log_line

from .builders import ROOT

ENDING = """
import threading, time
from training_agent.log_line import log_line

def talk():
    while True:
        log_line("warning", message="x" * 200_000)

for _ in range(3):
    threading.Thread(target=talk, daemon=True).start()
time.sleep(0.05)
"""


def test_a_thread_that_logs_at_the_end_does_not_abort_the_process() -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ENDING], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err[-2000:].decode()
        assert all(json.loads(line)["sdc"] == "warning" for line in out.splitlines())


def test_lines_of_several_threads_are_whole(capfd: pytest.CaptureFixture[str]) -> None:
    threads = [threading.Thread(target=log_line, args=("warning",), kwargs={"n": n}) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(20))


def test_a_forked_child_logs_although_another_thread_held_the_lock() -> None:
    code = (
        "import os, threading\n"
        "from training_agent import log_line as m\n"
        "m._writer._lock.acquire()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    m.log_line('warning', child=True)\n"
        "    os._exit(0)\n"
        "os._exit(os.waitpid(pid, 0)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=20, check=True)
    assert json.loads(done.stdout)["child"] is True
