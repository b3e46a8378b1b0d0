"""What a failed launch is shown with: the ranks' own words, and nothing of torchrun's report on them."""

from __future__ import annotations

import os
import sys

import pytest

from training_agent.cli.failures import CannotAskError
from training_agent.cli.launching import launch, reasons

FAILED = (
    "E1130 12:27:12.900000 12640 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: {})"
)
LAUNCHER = """\
Traceback (most recent call last):
  File "/usr/lib/torch/distributed/run.py", line 1138, in main
    run(args)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 12641)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 12641
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_12:27:12
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 12642)
  error_file: <N/A>
  traceback : {}
============================================================"""
NO_TRACE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
ALARM = """\
training_agent.errors.SdcAlarm: SDC alarm at step 1, before its update, which was not applied: other bits.
  rank 1 on node hyperpod-i-1, GPU number 1: culprit: wrong in both comparisons
  Next: this was a preflight."""


def output(said: str, code: int = 1, how: str = NO_TRACE) -> list[str]:
    """Of a launch by torchrun, its warning first and its report at the end."""
    warning = "W1130 12:27:01.100000 1 torch/distributed/run.py:793] Setting OMP_NUM_THREADS"
    return f"{warning}\n{said}\n{FAILED.format(code)}\n{LAUNCHER.format(code, how)}".splitlines()


def traceback(error: str, rank: int | None = None) -> str:
    text = f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    go()\n{error}'
    return text if rank is None else "\n".join(f"[rank{rank}]: {line}" for line in text.splitlines())


def test_an_alarm_is_told_once_however_many_ranks_raise_it() -> None:
    said = reasons(output("step 1\n" + "\n".join(traceback(ALARM, rank) for rank in range(3)), 3))
    assert said == tuple(ALARM.partition("SdcAlarm: ")[2].splitlines())


def test_lines_of_ranks_that_write_at_once_are_told_apart() -> None:
    one, other = (traceback(ALARM, rank).splitlines() for rank in (0, 1))
    mixed = "\n".join(line for pair in zip(one, other, strict=True) for line in pair)
    assert reasons(output(mixed, 3)) == tuple(ALARM.partition("SdcAlarm: ")[2].splitlines())


def test_a_refused_set_up_says_what_to_change() -> None:
    error = "training_agent.errors.ConfigurationError: NODE_NAME is not set: set it."
    assert reasons(output(traceback(error), 4)) == ("NODE_NAME is not set: set it.",)


def test_a_script_that_is_not_there_is_said_with_its_name() -> None:
    missing = "python: can't open file '/job/trian.py': [Errno 2] No such file or directory"
    said = reasons(output("\n".join([missing] * 3), 2))
    assert said == (
        missing,
        "rank 1 ended first: exit code 2",
    )


def test_any_other_error_is_shown_with_the_end_of_its_traceback() -> None:
    said = reasons(output("\n".join(traceback("ValueError: boom", rank) for rank in range(4))))
    assert said == (
        '  File "train.py", line 9, in <module>',
        "    go()",
        "ValueError: boom",
        "rank 1 ended first: exit code 1",
    )


def test_a_process_that_a_signal_ended_is_said_although_it_could_say_nothing() -> None:
    said = reasons(output("step 10 loss 2.3", -9, "Signal 9 (SIGKILL) received by PID 12642"))
    assert said == (
        "step 10 loss 2.3",
        "rank 1 ended first: Signal 9 (SIGKILL) received by PID 12642",
    )


def test_a_warning_is_the_reason_where_nothing_was_raised() -> None:
    warned = '{"sdc":"warning","time":"T","message":"the script must take the checkpoint"}'
    said = reasons(output(f'{warned}\n{{"sdc":"kernels"}}\n{warned}', 4))
    assert said == ("the script must take the checkpoint", "rank 1 ended first: exit code 4")


def test_the_agents_lines_are_heard_as_they_come_and_a_missing_program_is_named() -> None:
    heard = []
    script = """print('[default0]:{"sdc":"preflight","rank":0}'); print('{"sdc":'); raise SystemExit(5)"""
    ended = launch([sys.executable, "-c", script], os.environ, heard.append)
    assert (ended.code, heard) == (5, [{"sdc": "preflight", "rank": 0}])
    missing = launch(["no-such-launcher"], os.environ, heard.append)
    assert missing.code == 127 and "no-such-launcher: no such program" in missing.said[0]


def test_details_of_an_error_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from training_agent.cli.screen import Screen

    Screen(as_json=False).error(CannotAskError("It failed:", "Mend it.", ("one", "  two")))
    assert capsys.readouterr().err.splitlines() == ["sdc: It failed:", "one", "  two", "Mend it."]
