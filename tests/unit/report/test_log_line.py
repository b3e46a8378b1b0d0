"""A thread of ours that logs while the interpreter ends must not abort the process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from tests.patience import PATIENCE_S
from training_agent.log_line import _Writer, log_line

from .builders import ROOT


class Slow:
    """A standard output whose reader takes its time."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.writing, self.go_on = threading.Event(), threading.Event()

    def write(self, line: str) -> None:
        self.writing.set()
        self.go_on.wait(PATIENCE_S)
        self.lines.append(line)

    def flush(self) -> None:
        """Nothing is kept back."""


def test_the_end_waits_for_the_line_in_progress_and_lets_no_other_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python aborts where a thread that it has ended still holds the stream's lock."""
    out, writer = Slow(), _Writer()
    monkeypatch.setattr(sys, "stdout", out)
    threads = [threading.Thread(target=writer.write, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    assert out.writing.wait(PATIENCE_S)
    threads[1].start()  # waits for the first one
    end = threading.Thread(target=writer.end)
    end.start()
    end.join(0.2)
    assert end.is_alive() and out.lines == []
    out.go_on.set()
    end.join(PATIENCE_S)
    writer.write("third")
    assert out.lines == ["first"] and not end.is_alive()
    writer._lock.release()
    threads[1].join(PATIENCE_S)
    assert out.lines == ["first"]


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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert json.loads(done.stdout)["child"] is True
