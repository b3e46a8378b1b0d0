"""One cause, one warning, whoever meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from training_agent.contract import ExitCode
from training_agent.report import job_reporter
from training_agent.warn_once import warn_once

from .builders import ROOT, FakeAws, an_alarm, settings_of
from .starts import Start


class NoCredentialsError(Exception):
    """As botocore calls it."""


def warnings(text: str) -> list[str]:
    parsed = [json.loads(line) for line in text.splitlines()]
    return [str(p["message"]) for p in parsed if p["sdc"] == "warning"]


def test_a8_missing_credentials_are_one_warning_of_hold_publisher_and_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = FakeAws()
    aws.broken = NoCredentialsError("Unable to locate credentials")
    Start(tmp_path, world=1, aws=aws).launch().finish()  # asks the table
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    reporter.alarm(an_alarm())
    reporter.close()
    found = warnings(capsys.readouterr().out)
    assert len(found) == 1, found
    assert "NoCredentialsError" in found[0]


def test_another_cause_is_another_warning(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise NoCredentialsError
        except NoCredentialsError as e:
            raise RuntimeError("the table") from e
    except RuntimeError as e:
        warn_once(e, "first")
    warn_once(NoCredentialsError(), "same")
    warn_once(TimeoutError(), "second")
    assert warnings(capsys.readouterr().out) == ["first", "second"]


TERMINATED = """
import os, signal, sys, time
from training_agent.steady import steady
with steady(3):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("made safe", flush=True)
print("went on", flush=True)
"""


def test_sigterm_waits_for_the_alarm_and_leaves_its_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED],
        env={"PYTHONPATH": str(ROOT), "SDC_EXIT_CODE_DIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "made safe\n"), done.stderr
    assert [p.read_text() for p in tmp_path.iterdir()] == [str(int(ExitCode.ALARM))]
