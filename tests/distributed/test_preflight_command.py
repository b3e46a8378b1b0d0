"""`sdc preflight` over a real launch: it ends before the first update and says what can be compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.ranks import ROOT
from training_agent.cli.app import main
from training_agent.cli.failures import Exit

SCRIPT = str(Path(__file__).with_name("preflight_job.py"))
LAUNCH = ["preflight", "--json", "--", sys.executable, "-m", "torch.distributed.run", "--standalone",
          "--nproc-per-node", "2", SCRIPT]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "code"), [pytest.param("quiet", Exit.DONE, marks=pytest.mark.soak), ("noisy", Exit.NO)]
)
def test_preflight_ends_before_the_first_update_and_names_the_operator(
    how: str, code: Exit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODE_NAME", "hyperpod-i-0123456789abcdef0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert main([*LAUNCH, how]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 0, told
    assert [(r["rank"], r["replays"]) for r in told["ranks"]] == [(0, 1), (1, 0)]
    assert told["ready"] is (how == "quiet")
    assert any("NoisyBackward" in note for note in told["notes"]) is (how == "noisy")


def test_an_alarm_is_said_with_rank_and_node_and_leaves_nothing_for_the_job_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODE_NAME", "hyperpod-i-0123456789abcdef0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SDC_SHARED_DIR", str(tmp_path))
    monkeypatch.setenv("SDC_TERMINATION_LOG", str(tmp_path / "termination-log"))
    (tmp_path / "checkpoints").mkdir()
    with_three = ["3" if word == "2" else word for word in LAUNCH if word != "--json"]
    assert main([*with_three, "faulty"]) == Exit.NO
    shown = " ".join(capsys.readouterr().out.split())
    assert "The launch ended with 3: a GPU computes something else than its peers." in shown
    assert "rank 1 on node hyperpod-i-0123456789abcdef0, GPU number 1" in shown
    assert "nothing was trained, reported or recorded" in shown
    assert "exitcode" not in shown and "Traceback" not in shown
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoints", "placement"}  # who stood where, of a start


def test_a_launch_that_fails_shows_its_last_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "import sys; print('no such data set'); sys.exit(4)"
    assert main(["preflight", "--", sys.executable, "-c", failing]) == Exit.NO
    out = capsys.readouterr().out
    assert "no such data set" in out and "the set-up is refused" in out
    assert main(["preflight", "--", sys.executable, "-c", "pass"]) == Exit.CANNOT_ASK
    assert main(["preflight"]) == Exit.USAGE
