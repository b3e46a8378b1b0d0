"""A worker's exit code, past torchrun, to the scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from training_agent.errors import ConfigurationError
from training_agent.run import main, most_significant
from training_agent.settings import AgentSettings

from .builders import ROOT

WORKER = """
import sys
from training_agent import exit_codes
from training_agent.errors import *
from tests.unit.report.builders import an_alarm
exit_codes.install(); exit_codes.install()
raise {error}
"""


def worker(error: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKER.format(error=error)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("SdcAlarm(an_alarm(), 'rank 1 is out-voted')", 3),
        ("ConfigurationError('audit_every is 0')", 4),
        ("RefusedNodeError('held')", 5),
        ("PeerLostError('rank 2 vanished')", 130),
        ("ValueError('not ours')", 1),
    ],
)
def test_an_uncaught_error_of_the_agent_ends_the_process_with_its_code(
    tmp_path: Path, error: str, code: int
) -> None:
    child = worker(error, SDC_EXIT_CODE_DIR=str(tmp_path), RANK="5")
    assert child.returncode == code
    assert error.split("(")[0] in child.stderr
    expected = [] if code == 1 else [str(code)]
    assert [p.read_text() for p in tmp_path.iterdir()] == expected


def test_the_message_survives_the_hook_that_torch_puts_around_ours(tmp_path: Path) -> None:
    text = """
import torch.distributed as dist
from training_agent import exit_codes
from training_agent.errors import ConfigurationError
exit_codes.install()
dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
raise ConfigurationError("audit_every is 0: set 1 or more")
"""
    child = subprocess.run(
        [sys.executable, "-c", text.format(store=tmp_path / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert child.returncode == 4
    assert "audit_every is 0: set 1 or more" in child.stderr


def test_settings_that_are_refused_end_the_process_with_code_4() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from training_agent.settings import *; AgentSettings.from_env()"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "NODE_NAME"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert child.returncode == 4
    assert "Set NODE_NAME" in child.stderr


def test_a_folder_that_cannot_be_written_does_not_change_the_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert worker("RefusedNodeError('held')", SDC_EXIT_CODE_DIR=str(tmp_path / "file")).returncode == 5


def launcher(*codes: int | str, ends: int = 1) -> list[str]:
    """A launcher like torchrun: workers leave `codes` ("<restart>:<code>" or code), it ends with `ends`."""
    script = (
        "import os, sys\n"
        "from training_agent import exit_codes\n"
        "for rank, item in enumerate(sys.argv[2:]):\n"
        "    restart, _, code = item.rpartition(':')\n"
        "    os.environ['TORCHELASTIC_RESTART_COUNT'] = restart or '0'\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    exit_codes.record(int(code))\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    return ["--", sys.executable, "-c", script, str(ends), *map(str, codes)]


def test_the_wrapper_ends_with_its_workers_code_not_torchruns() -> None:
    assert main(launcher(3, 3)) == 3
    assert main(launcher(4)) == 4


def test_an_alarm_outweighs_the_peers_it_took_along() -> None:
    assert main(launcher(130, 3, 130)) == 3
    assert main(launcher(130, 5)) == 5
    assert most_significant([131, 1], otherwise=1) == 131


def test_codes_are_exchanged_for_those_that_a_scheduler_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDC_EXIT_CODES", "3=13 130=77")
    child = worker("SdcAlarm(an_alarm(), 'rank 1')", SDC_EXIT_CODE_DIR=str(tmp_path))
    assert (child.returncode, [p.read_text() for p in tmp_path.iterdir()]) == (13, ["3"])
    assert main(launcher(130, 3)) == 13  # significance goes by our own
    assert main(launcher(4)) == 4
    assert main(launcher(ends=3)) == 3  # the launcher's own


@pytest.mark.parametrize("text", ["3", "3=", "3=0", "3=256", "7=8", "3=a", "3=4 3=5"])
def test_exit_codes_that_cannot_be_read_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match="SDC_EXIT_CODES"):
        AgentSettings.from_env({"SDC_EXIT_CODES": text}, node="hyperpod-i-1")
    monkeypatch.setenv("SDC_EXIT_CODES", text)
    assert main(launcher(3)) == 4
    assert "write pairs such as" in capsys.readouterr().err


def test_without_a_workers_code_the_launchers_own_stands() -> None:
    assert main(launcher(ends=7)) == 7


def test_a_launcher_that_recovered_by_itself_ends_well() -> None:
    assert main(launcher(3, ends=0)) == 0


def test_codes_of_an_earlier_restart_do_not_count() -> None:
    assert main(launcher("0:3", "1:4")) == 4


def test_a_launcher_killed_by_a_signal_is_128_plus_its_number() -> None:
    assert main(["--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_a_missing_program_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--", "no-such-torchrun"]) == 127
    assert "no such program" in capsys.readouterr().err
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        # os.write: a signal in the middle of a print would make the handler's own print fail
        "import os, signal, sys, time\n"
        "def end(number, frame): os.write(1, b'got %d\\n' % number); sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end); signal.signal(signal.SIGINT, end)\n"
        "os.write(1, b'ready\\n'); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "training_agent.run", "--", sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    output, _ = child.communicate(timeout=PATIENCE_S)
    assert output == f"got {int(number)}\n"
    assert child.returncode == 9
