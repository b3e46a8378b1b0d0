"""What people see: 80 columns, JSON everywhere, exit codes, no colour where none is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training_agent.cli import acting, reading
from training_agent.cli.app import app, main
from training_agent.cli.aws import Answer
from training_agent.cli.clear import CLEARED_FILE
from training_agent.cli.deployment import Deployment, find, from_file
from training_agent.cli.failures import CannotAskError, Exit, NotFoundError, RefusedError
from training_agent.cli.pipeline import Pipeline, subject_of
from training_agent.cli.screen import Screen, duration, wrapped
from training_agent.contract import QuarantineEntry
from training_agent.quarantine import add_to_record, read_record

from .fakes import FakeAws

ID = "3f1c9a0b7d2e4685"
NODE = "hyperpod-i-0123456789abcdef0"
INCIDENT = {
    "incident_id": ID, "state": "AWAITING_APPROVAL", "job": "llama-70b-" + "x" * 60, "node": NODE,
    "instance_id": NODE[9:], "decision_row": "C1", "reason": "out-voted " * 20,
    "opened_at": "2026-05-01T12:00:00Z", "synthetic": False,
}  # fmt: skip
APPROVAL = {
    "question": f"{ID}-1", "action": "replace", "state": "PENDING",
    "instance_id": NODE[9:], "answers": ["approve", "keep"],
    "answer": None, "decided_by": "", "expires_at": "2026-05-01T20:00:00Z",
    "facts": {"Evidence": "five of six GPUs compute other bits " * 5}, "warnings": ["node-local checkpoints"],
}  # fmt: skip
MEANT = acting.Meant(NODE, f"{ID}-1", "replace")
SHOWN = Answer(200, {"incident": INCIDENT, "approval": APPROVAL})


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("SDC_OUTPUTS", "SDC_STACK", "SDC_API", "SDC_CLUSTER", "SDC_SHARED_DIR"):
        monkeypatch.delenv(name, raising=False)


def pipeline(*answers: tuple[str, str, Answer]) -> tuple[Pipeline, FakeAws]:
    aws = FakeAws(signed={(m, p): a for m, p, a in (("GET", f"/incidents/{ID}", SHOWN), *answers)})

    def none() -> Deployment:
        raise CannotAskError("no stack", "--stack")

    return Pipeline(aws, none, "https://api"), aws


def test_nothing_is_wider_than_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    talk, _ = pipeline(("GET", "/incidents", Answer(200, {"incidents": [INCIDENT]})))
    reading.show(Screen(as_json=False), talk, ID, follow=False)
    reading.incidents(Screen(as_json=False), talk)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(f"sdc approve {ID}" in line for line in lines)
    for option in (f"--node {NODE}", f"--question {ID}-1", "--action replace"):
        assert any(option in line for line in lines), option
    assert any(NODE[9:] in line and "AWAITING_APPROVAL" in line for line in lines)


def test_no_history_is_said_to_be_gone_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoneSuch(Exception):
        pass

    def asked(**_: object) -> None:
        raise NoneSuch

    gone = SimpleNamespace(ExecutionDoesNotExist=NoneSuch)
    states = SimpleNamespace(get_execution_history=asked, exceptions=gone)
    outputs = {"StateMachineArn": "arn:aws:states:us-east-1:123456789012:stateMachine:W"}
    aws = FakeAws()
    monkeypatch.setattr(aws, "client", lambda _service: states)
    with pytest.raises(CannotAskError, match="No execution") as refused:
        Pipeline(aws, lambda: Deployment("stack", outputs), "https://api").told(ID)
    assert "never had one" in refused.value.remedy and "gone" not in str(refused.value)


def test_a_decision_names_the_instance_that_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    done = Answer(200, {"result": "delivered", "approval": {"decided_by": "arn:me"}})
    talk, aws = pipeline(("POST", f"/incidents/{ID}/decision", done))
    assert acting.decide(Screen(as_json=True), talk, ID, "approve", MEANT, "seen") is Exit.DONE
    assert aws.sent[-1][2] == {
        "decision": "approve", "reason": "seen", "instance_id": NODE[9:],
        "question": f"{ID}-1", "action": "replace",
    }  # fmt: skip
    assert json.loads(capsys.readouterr().out)["result"] == "delivered"


@pytest.mark.parametrize(
    ("meant", "reason"),
    [
        (acting.Meant(None, None, None), "why"),
        (replace(MEANT, node=None), "why"),
        (replace(MEANT, question=None), "why"),
        (replace(MEANT, action=None), "why"),
        (replace(MEANT, node="i-0fffffffffffffff0"), "why"),
        (replace(MEANT, question=f"{ID}-2"), "why"),
        (replace(MEANT, action="deep_check"), "why"),
        (MEANT, " "),
    ],
)
def test_nothing_is_sent_for_another_node_or_question_or_without_a_reason(
    meant: acting.Meant, reason: str
) -> None:
    talk, aws = pipeline()
    with pytest.raises(RefusedError) as refused:
        acting.decide(Screen(as_json=True), talk, ID, "approve", meant, reason)
    everything = f"--node {NODE} --question {ID}-1 --action replace"
    assert (everything in refused.value.remedy) is (None in (meant.node, meant.question, meant.action))
    assert [m for m, *_ in aws.sent] == ["GET"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, Exit.REFUSED), (409, Exit.REFUSED), (410, Exit.REFUSED), (503, Exit.CANNOT_ASK)],
)
def test_a_refusal_has_its_exit_code(status: int, code: Exit) -> None:
    talk, _ = pipeline(("POST", f"/incidents/{ID}/decision", Answer(status, {})))
    with pytest.raises((RefusedError, CannotAskError)) as refused:
        acting.decide(Screen(as_json=True), talk, ID, "keep", MEANT, "why")
    assert refused.value.code is code
    assert refused.value.remedy


def test_errors_are_json_too_and_on_standard_error_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nonsense", "--api", "https://api", "--json"]) == Exit.NOT_FOUND
    assert json.loads(capsys.readouterr().out)["exit_code"] == Exit.NOT_FOUND
    assert main(["incidents"]) == Exit.CANNOT_ASK
    out, err = capsys.readouterr()
    assert out == "" and "--stack NAME" in err and "\x1b" not in err
    assert main(["approve"]) == Exit.USAGE


def test_every_command_takes_json_and_says_what_it_is_for() -> None:
    for command in app.registered_commands:
        assert command.callback is not None and command.callback.__doc__
        assert "json" in command.callback.__annotations__, command.callback.__name__


def test_help_fits_the_terminal_and_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(c.callback.__name__) for c in app.registered_commands if c.callback]
    for arguments in ([], *([n] for n in names)):
        assert main([*arguments, "--help"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        if not arguments:
            assert "Exit codes: 0 done" in out


def entry(instance: str | None, gpu: str | None) -> QuarantineEntry:
    return QuarantineEntry("k@1", instance, gpu, (21, 30), None, "2026-05-01T12:00:00.000Z")


def test_clear_takes_one_entry_out_and_keeps_who_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_to_record(tmp_path, (entry(NODE[9:], "GPU-a"), entry("i-0fffffffffffffff0", "GPU-b")))
    where = ["--shared-dir", str(tmp_path)]
    assert main(["clear", *where]) == 0
    assert "GPU-b" in capsys.readouterr().out
    assert main(["clear", NODE, *where]) == Exit.USAGE  # no reason
    assert len(read_record(tmp_path).entries) == 2
    assert main(["clear", NODE, *where, "--reason", "tested by hand"]) == 0
    assert [e.gpu_uuid for e in read_record(tmp_path).entries] == ["GPU-b"]
    note = json.loads((tmp_path / CLEARED_FILE).read_text())
    assert (note["reason"], note["entry"]["gpu_uuid"]) == ("tested by hand", "GPU-a")
    assert main(["clear", NODE, *where, "--reason", "again"]) == Exit.NOT_FOUND
    assert main(["clear", "--all", *where, "--reason", "over"]) == 0
    assert read_record(tmp_path).entries == ()


def test_clear_leaves_a_damaged_record_alone(tmp_path: Path) -> None:
    (tmp_path / "quarantine.json").write_text("{")
    assert main(["clear", "--all", "--reason", "x", "--shared-dir", str(tmp_path)]) == Exit.CANNOT_ASK
    assert (tmp_path / "quarantine.json").read_text() == "{"


def test_the_deployment_is_read_from_cdks_file_or_cloudformation(tmp_path: Path) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps({"a": {"ReviewUrl": "u"}, "b": {}}))
    assert from_file(file, "a").need("ReviewUrl") == "u"
    with pytest.raises(CannotAskError, match="a, b"):
        from_file(file, None)
    with pytest.raises(CannotAskError, match="no output"):
        from_file(file, "b").need("ReviewUrl")
    asked: list[Any] = []

    def describe(parameters: Any) -> Any:
        asked.append(parameters)
        return {"Stacks": [{"Outputs": [{"OutputKey": "ReviewUrl", "OutputValue": "v"}]}]}

    aws = FakeAws({("cloudformation", "describe_stacks"): describe})
    found = find(aws, stack=None, outputs=None, environ={"SDC_CLUSTER": "demo"})
    assert found.need("ReviewUrl") == "v"
    assert asked == [{"StackName": "TrainingSdc-demo"}]


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        (NODE, f"instance#{NODE[9:]}"),
        (NODE[9:], f"instance#{NODE[9:]}"),
        ("GPU-0123abcd", "gpu#GPU-0123abcd"),
    ],
)
def test_history_knows_nodes_instances_and_gpus(name: str, subject: str) -> None:
    assert subject_of(name) == subject


def test_history_of_anything_else_is_refused() -> None:
    with pytest.raises(NotFoundError, match="neither"):
        subject_of("rank 3")


def test_durations_and_wrapping() -> None:
    assert [duration(s) for s in (0.04, 61, 3725, 90061)] == ["0.0 s", "1 min 01 s", "1 h 02 min", "1 d 01 h"]
    assert wrapped("a bb ccc", 5, 0, 2) == ["a bb", "  ccc"]
    assert wrapped("", 5, 0, 2) == [""]


def test_without_its_libraries_sdc_says_how_to_get_them() -> None:
    code = (
        "import sys; sys.modules['typer'] = None\n"
        "from training_agent.cli.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.CANNOT_ASK
    assert "pip install 'training-agent[aws,cli]'" in done.stderr


def test_a_training_process_imports_nothing_of_the_command_line() -> None:
    code = (
        "import sys, training_agent.hold, training_agent.report\n"
        "print('typer' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
