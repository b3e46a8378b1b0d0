"""`sdc report`: figures of a run's folder, decisions of the incident table, one page that stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.events import builder
from tests.unit.lambdas.document import Document
from training_agent.cli.deployment import Deployment
from training_agent.cli.failures import CannotAskError, Exit, NotFoundError
from training_agent.cli.pipeline import Pipeline
from training_agent.cli.report import alarms, bounds, claims, page
from training_agent.cli.report.command import report
from training_agent.cli.report.incidents import record
from training_agent.cli.report.limits import limits
from training_agent.cli.report.run import Run, figures, read
from training_agent.cli.screen import Screen
from training_agent.contract import Alarm, Check, Finding, FindingKind, delivery_key
from training_agent.kernels import Kernels
from training_agent.schedule import Schedule

from .fakes import FakeAws
from .histories import entered, exited
from .report_builder import (
    ALARM_STEP,
    ID,
    SAVED,
    delivered,
    incident,
    manifest,
    raised,
    rows,
    run_folder,
    save,
)

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
OUTPUTS = {
    "IncidentTableName": "incidents",
    "StateMachineArn": "arn:aws:states:us-east-1:123456789012:stateMachine:W",
}


def told(table: dict[str, list[Any]]) -> Pipeline:
    """A pipeline whose incident table holds these rows, and whose execution has made one step."""

    def query(parameters: Any) -> Any:
        return {"Items": table.get(parameters["ExpressionAttributeValues"][":pk"]["S"], [])}

    events = [entered(0, "locate"), exited(1, "locate", "ranks 3 are on a node")]
    calls = {
        ("dynamodb", "query"): query,
        ("stepfunctions", "get_execution_history"): {"events": events},
        ("stepfunctions", "exceptions"): None,
    }
    return Pipeline(FakeAws(calls), lambda: Deployment("stack t", OUTPUTS), None)


def plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: next(iter(value.values())) for name, value in item.items()} for item in items]


def shown(folder: Path) -> Run:
    """Without what differs from machine to machine."""
    return replace(read(folder), folder="/fsx/llama")


# what the counts allow to be said


@pytest.mark.parametrize(("events", "mean"), [(0, 2.996), (1, 4.744), (2, 6.296), (10, 16.962)])
def test_the_bound_is_garwoods(events: int, mean: float) -> None:
    """Quantiles of chi-square at 95 % with 2k + 2 degrees of freedom, halved."""
    assert bounds.at_most(events, 1000) == pytest.approx(mean / 1000, rel=1e-3)


def test_without_a_trial_nothing_is_bounded() -> None:
    assert bounds.at_most(0, 0) is None
    assert bounds.at_most(0, 1) == 1.0


def test_overhead_is_what_checked_steps_take_beyond_the_others() -> None:
    found = bounds.overhead({"plain": [9, 9.0], "audited": [1, 3.0], "weights compared": [0, 0.0]})
    assert found is not None and found.share == pytest.approx(0.2) and found.step_seconds == 1.0
    assert found.by_kind == (("plain", 9, 1.0), ("audited", 1, 3.0))
    assert bounds.overhead({"plain": [0, 0.0], "audited": [3, 9.0]}) is None
    assert bounds.overhead({}) is None


# a run


def test_a_run_is_read_from_manifests_and_spool(tmp_path: Path) -> None:
    run = read(run_folder(tmp_path, raised(), steps=(47_000, 48_000, 48_050)))
    assert [(c.step, c.state) for c in run.checkpoints] == [
        (47_000, "complete"), (48_000, "complete"), (48_050, "doubtful"),
    ]  # fmt: skip
    assert (run.job, run.job_uid, len(run.alarms)) == ("llama-tiny", "job-0001", 1)
    assert run.figures is not None and run.figures.step == 48_000  # not the doubtful one's
    assert (run.figures.gpu_steps, run.figures.gpu_steps_audited) == (288_000, 2_880)
    assert (run.figures.longest_gap, run.figures.since_last_audit) == (100, 0)
    assert run.figures.alarms_at_most == pytest.approx(4.744 / 481, rel=1e-3)


def test_records_of_a_librarys_checkpoints_are_read_too(tmp_path: Path) -> None:
    save(tmp_path, 8, manifest(8), "step-8")
    folder = tmp_path / "checkpoints"
    (folder / "epoch-1.ckpt").write_bytes(b"x")
    record_ = json.loads((folder / "step-8" / "manifest.json").read_text())
    sealed = {**record_, "step": 9, "files": {".": {"sha256": "0", "bytes": 1}}}
    (folder / "epoch-1.ckpt.sdc.json").write_text(json.dumps(sealed))
    assert [c.name for c in read(tmp_path).checkpoints] == ["step-8", "epoch-1.ckpt"]


def test_an_interrupted_save_is_shown_and_never_counted(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "checkpoints" / "step-48050.partial-0badcafe").mkdir()
    run = read(folder)
    assert run.checkpoints[-1].state == "incomplete" and "interrupted" in run.checkpoints[-1].why
    assert run.figures is not None and run.figures.step == SAVED[-1]


def test_audits_by_outcome_are_told_as_what_was_asked_for() -> None:
    plan = {"audit_every": 100, "max_poisoned_steps": 49, "overhead_budget": 0.02}
    found = figures(manifest(200, schedule=plan))
    assert found is not None
    said = claims.audited(found)
    assert "asked for (at most 49 poisoned steps, 2.0 % of the time for audits on average)" in said


def test_a_budget_beside_a_larger_overhead_says_what_each_of_them_means() -> None:
    counted = manifest(200)["assurance"]
    for plan, said in (({}, False), ({"overhead_budget": 0.02}, True)):
        found = figures(manifest(200, schedule=plan, assurance=counted))
        assert found is not None
        (claim,) = (c for c in claims.what_follows(found) if c.title == "Overhead")
        assert ("The budget of 2.0 % is what the pace aims at for audits, on average" in claim.text) is said
        assert "the check for NaN and Inf is part of every step and not in this figure" in claim.text


def nan_from_data(step: int) -> Alarm:
    """Healthy peers computed the same NaN; nobody is named."""
    finding = Finding(FindingKind.NONFINITE, reproduced=True, involved=(builder.places()[1],))
    return replace(raised(), check=Check.NONFINITE, step=step, suspect_window=(step - 3, step),
                   findings=(finding,), pairs=(), contests=(), nonfinite_ranks=(1,))  # fmt: skip


def test_an_alarm_without_a_pipeline_shows_node_instance_and_gpu_as_it_carries_them() -> None:
    place = builder.places()[3]
    (said,) = alarms.named(raised())
    assert place.instance_id and place.gpu_uuid
    assert said == f"rank 3: node {place.node}, instance {place.instance_id}, GPU {place.gpu_uuid}"
    nobody = alarms.named(nan_from_data(48_003))
    assert nobody[0] == "nobody; involved:" and nobody[1].startswith("rank 1: node hyperpod-")
    assert alarms.named(replace(raised(), findings=())) == ("nobody",)


@pytest.mark.parametrize(
    ("alarm", "said", "poisoned"),
    [
        (raised(), "steps 48001 to 48100: at most 99 poisoned updates were applied, about 1 min 39 s", True),
        (nan_from_data(48_003), "It is data or numerics, and says nothing against the updates before", False),
        (replace(raised(), suspect_window=(48_100, 48_100)), "step 48100: its update was not applied", False),
        (replace(raised(), check=Check.REDUCTION, pairs=()), "so none was poisoned", False),
        (replace(raised(), check=Check.WEIGHTS, pairs=()), "at most 100 poisoned updates", True),
    ],
    ids=["replay", "NaN of the data", "one step", "reduction", "weights, found after the update"],
)
def test_the_suspect_window_counts_what_a_gpu_can_have_spoiled(
    alarm: Alarm, said: str, poisoned: bool
) -> None:
    text = alarms.window(alarm, 1.0)
    assert said in text and ("poisoned updates were applied" in text) is poisoned


def test_the_bound_of_false_alarms_counts_alarms_of_audits_only() -> None:
    several = [nan_from_data(48_001 + n) for n in range(5)]
    found = figures(manifest(200), several)
    assert found is not None and found.alarms_at_most == bounds.at_most(0, 2)
    (claim,) = (c for c in claims.what_follows(found) if c.title == "False alarms of audits")
    assert "0 alarms of audits in 2 audited steps" in claim.text
    assert claim.figure == "no bound: too few audits"  # and not "fewer than 1.00 per audited step"
    assert "5 alarms of other checks are not in it" in claim.text
    by_audit = figures(manifest(200), [*several, raised()])
    assert by_audit is not None and by_audit.alarms_at_most == bounds.at_most(1, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reduction": True}, "is seen by a checksum only, from 1e-6 of a float32 gradient"),
        ({}, "that is the same on all ranks is not seen."),
        ({"strict": False}, "a checkpoint may hold updates that no audit has passed"),
        ({"check_on_checkpoint": False}, "may hold weights that differ between ranks"),
        ({"optimizer_state": False}, "moments that differ between ranks"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::training_agent.schedule.ScheduleWarning")
def test_what_a_report_does_not_say_follows_the_schedules_switches(
    changes: dict[str, Any], said: str
) -> None:
    plan = json.loads(json.dumps(Schedule(**changes).plain()))
    found = figures(manifest(200, schedule=plan))
    assert found is not None and said in " ".join(limits(found))
    assert ("and at checkpoints" in claims.audited(found)) is plan["strict"]
    assert len(limits(found)) == 5 + (changes != {} and "reduction" not in changes)


def test_a_record_of_an_older_agent_does_not_say_whether_the_reduction_was_checked() -> None:
    older = {"audit_every": 100, "check_every": 10, "kernels": "switched"}
    assert "do not say whether that was on" in " ".join(limits(figures(manifest(200, schedule=older))))


@pytest.mark.parametrize("alarm", [(), (raised(),)], ids=["healthy", "alarm"])
def test_a_page_claims_neither_corruption_nor_soundness_by_its_words(
    alarm: tuple[Alarm, ...], tmp_path: Path
) -> None:
    html = page.render(read(run_folder(tmp_path, *alarm)), (), "", NOW)
    (title,) = re.findall("<title>(.*?)</title>", html)
    assert title.endswith(": checks for silent data corruption")
    assert re.search(r"\bsound\b", html) is None


OTHER_KERNELS = "a fault that only the kernels of other steps show is not seen"


def with_forced(audits: int) -> dict[str, Any]:
    """Twenty audits, so many of them with the kernels of every step."""
    made = manifest(2000)
    plan, counted = made["schedule"] | {"kernels": "forced"}, made["assurance"] | {"audits_forced": audits}
    return made | {"schedule": plan, "assurance": counted}


@pytest.mark.parametrize(("forced", "said"), [(20, ""), (5, "5 of the audits ran the kernels of every step")])
def test_the_report_says_which_kernels_were_audited(forced: int, said: str, tmp_path: Path) -> None:
    save(tmp_path, 2000, with_forced(forced))
    run = read(tmp_path)
    assert run.figures is not None
    text = claims.audited(run.figures)
    assert "with the kernels of every step" in text and said in text
    html = page.render(run, (), "", NOW)
    assert (OTHER_KERNELS in html) is (forced < 20), "a limit of the audits that ran others"


@pytest.mark.parametrize("kernels", list(Kernels))
def test_an_alarm_is_shown_with_its_kernels(kernels: Kernels, tmp_path: Path) -> None:
    run = read(run_folder(tmp_path, replace(raised(), kernels=kernels.value)))
    assert f"<dt>Audited kernels</dt><dd>{kernels.audited}</dd>" in page.render(run, (), "", NOW)


def test_layer_audits_are_told_with_what_they_leave_out() -> None:
    counted = {"turn": 40, "passed": 38, "skipped": 2, "gpu_blocks": 228, "nbytes": 5 * 10**9,
               "last_pass": 99, "blocks": 20, "covered": [f"layers.{i}" for i in range(19)]}  # fmt: skip
    found = figures(manifest(100, layer_audits=counted))
    assert found is not None
    (claim,) = (c for c in claims.what_follows(found) if c.title == "Blocks of ordinary steps")
    assert claim.figure == "38 layer audits passed"
    for said in (
        "228 blocks",
        "5.0 GB",
        "19 of the model's 20 blocks",
        "were not compared",
        "2 more were due",
    ):
        assert said in claim.text
    off = figures(manifest(100, layer_audits={**counted, "passed": 0, "skipped": 0}))
    assert off is not None and off.layers is None


def test_manifests_without_figures_lead_to_no_claims(tmp_path: Path) -> None:
    run = read(run_folder(tmp_path, plain=True))
    assert run.figures is None
    html = page.render(run, (), "", NOW)
    assert "nothing is claimed" in html and "caught within" not in html


def test_a_folder_without_a_run_is_said_so(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFoundError, match="SDC_SHARED_DIR"):
            try:
                read(wrong)
            except NotFoundError as e:
                raise NotFoundError(f"{e} {e.remedy}", "") from e


# an incident


def test_who_decided_what_when_and_how_long_it_took() -> None:
    found = incident()
    assert [(d.what, d.result.split()[0]) for d in found.decisions] == [("decision", "alex@example.com")]
    took = {s.name: s.seconds for s in found.spans}
    assert took == {"open": 2, "contain": 6, "approve": 733, "replace": 1601, "come back": 364}
    assert found.alarm == raised() and found.new_instance_id.endswith("9")


def test_what_has_not_ended_has_no_duration() -> None:
    early = [i for i in plain(rows()) if "audit#" not in i["sk"] or i["what"] != "decision"]
    found = record(early)
    assert found is not None
    assert {s.name: s.seconds for s in found.spans}["approve"] is None
    assert "No person was asked" in page.render(None, (found,), "", NOW)


def test_rows_that_are_no_incident_are_none() -> None:
    assert record([]) is None
    assert record([{"sk": "state", "document": "{"}]) is None


# the page


@pytest.mark.parametrize("kind", ["healthy run", "run with an alarm", "incident"])
def test_the_report_as_it_is_written(kind: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    run, records = None, (incident(),)
    if kind == "healthy run":
        run, records = shown(run_folder(tmp_path)), ()
    elif kind == "run with an alarm":
        run = shown(run_folder(tmp_path, raised()))
    html = page.render(run, records, "", NOW)
    assert html == snapshot
    document = Document(html)
    names = [t for t, _ in document.tags]
    assert "script" not in names and "link" not in names and "img" not in names
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert all(v in ids for _, a in document.tags for v in (a.get("aria-labelledby") or "").split())


def test_an_alarm_of_another_group_at_the_same_step_is_shown_beside_the_incident_of_the_first(
    tmp_path: Path,
) -> None:
    record = incident()
    assert record.alarm is not None
    read_run = read(run_folder(tmp_path, record.alarm))
    for group, shown_twice in (("", False), ("3 ranks from 3 on (0a1b2c3d)", True)):
        run = replace(read_run, alarms=(replace(record.alarm, group=group),))
        assert ("<h3>Alarm of check" in page.render(run, (record,), "", NOW)) is shown_twice


def test_every_field_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    alarm = raised("C1", evil)
    run = replace(read(run_folder(tmp_path, alarm)), job=evil, notes=(evil,), folder=evil)
    html = page.render(run, (replace(incident(by=evil), reason=evil, node=evil),), evil, NOW)
    assert "<script" not in html and html.count("&lt;script&gt;") >= 6


# the command


def test_an_incidents_report_is_a_file_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    pipeline = told({f"incident#{ID}": rows()})
    assert report(Screen(as_json=False), pipeline, ID, None, out) is Exit.DONE
    said = capsys.readouterr().out
    assert "was replaced by" in said and "r.html" in said
    html = out.read_text()
    assert "ranks 3 are on a node" in html and f"execution:W:{ID}-1" in html
    assert max(map(len, said.splitlines())) <= 80


def test_a_runs_report_finds_its_incidents_by_the_alarms_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "shared", raised())
    table = {f"delivery#{delivery_key(raised())}": [delivered()], f"incident#{ID}": rows()}
    assert report(Screen(as_json=True), told(table), None, folder, None) is Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert [i["id"] for i in document["incidents"]] == [ID]
    assert document["incidents"][0]["decisions"][0]["what"] == "decision"
    assert {d["name"]: d["seconds"] for d in document["incidents"][0]["durations"]}["approve"] == 733
    assert document["run"]["figures"]["longest_gap"] == 100
    assert document["run"]["alarms"][0]["step"] == ALARM_STEP
    assert not list(Path.cwd().glob("sdc-report-*"))  # --json alone writes no file


def test_without_a_pipeline_a_run_is_reported_all_the_same(tmp_path: Path) -> None:
    def none() -> Deployment:
        raise CannotAskError("No deployment is named.", "Give --stack NAME.")

    folder, out = run_folder(tmp_path / "shared", raised()), tmp_path / "r.html"
    report(Screen(as_json=False), Pipeline(FakeAws(), none, None), None, folder, out)
    assert "is not in this report: No deployment is named. Give --stack NAME." in out.read_text()


def test_what_is_no_incident_id_is_said_before_anything_is_asked_or_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never() -> Deployment:
        raise AssertionError("the deployment was looked up")

    pipeline = Pipeline(FakeAws(), never, None)
    for ask in (
        lambda: report(Screen(as_json=False), pipeline, "abc", None, None),
        lambda: pipeline.incident("abc"),
        lambda: pipeline.rows("3f1c9a0b7d2e4685" + chr(10)),
    ):
        with pytest.raises(NotFoundError, match="is no incident id"):
            ask()
    assert capsys.readouterr() == ("", "")


def test_an_unknown_incident_and_no_subject_at_all_are_said_so() -> None:
    with pytest.raises(NotFoundError, match="no incident"):
        report(Screen(as_json=True), told({}), ID, None, None)
    with pytest.raises(NotFoundError, match="Neither"):
        report(Screen(as_json=True), told({}), None, None, None)
