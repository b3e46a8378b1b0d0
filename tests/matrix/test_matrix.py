"""The short form of the scenario table, and that its judge can say no."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import judge, oracle, rows
from tests.matrix import run as run_module
from tests.matrix.run import run

TABLE = rows.load()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the configurations' raw results stand."""
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def short(raw: Path) -> dict[str, Any]:
    """One launch of six ranks."""
    return run(["6x3"], "short", 280, raw)


def test_every_row_is_met_and_is_missed_when_its_check_is_off(short: dict[str, Any]) -> None:
    wrong = {
        f"{r['name']} {r['config']} {r['switched_off']}": r["problems"] for r in short["rows"] if not r["ok"]
    }
    assert not wrong
    assert {r["name"] for r in short["rows"]} == {r["name"] for r in TABLE["rows"] if r.get("short")}
    assert any(r["switched_off"] for r in short["rows"])


def test_document_holds_the_raw_alarm_of_every_rank_and_the_hashes(short: dict[str, Any]) -> None:
    row = next(r for r in short["rows"] if r["name"] == "x1000 from 23" and not r["switched_off"])
    assert [a["step"] for a in row["found"]["alarms"]] == [30] * 6
    assert [len(h) for h in row["before"]] == [3] * 6
    assert row["before"] == row["after"]


def test_an_interrupted_run_goes_on_with_what_it_has(
    short: dict[str, Any], raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows.configs(TABLE, "6x3", "short")[0].label
    kept = tmp_path / first.replace(" ", "-")
    shutil.copytree(raw / kept.name, kept)
    launched: list[tuple[Any, ...]] = []

    def dies(*args: Any, **_: Any) -> None:
        launched.append(args)
        raise RuntimeError("a rank died")

    monkeypatch.setattr(run_module, "launch", dies)
    again = run(["6x3"], "short", 1, tmp_path, resume=True)
    assert launched == [("tests.matrix.worker", 6, tmp_path, "6x3", "short", first)]
    assert again["rows"] == [r for r in short["rows"] if r["config"] == first]
    assert [entry["because"] for entry in again["not_run"]] == ["a rank died"]


def test_kept_raw_results_are_judged_again_without_running_anything(
    short: dict[str, Any], raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(run_module, "launch", never)
    assert run(["6x3"], "short", 1, raw, only_judge=True) == short
    assert {e["because"] for e in run(["8x4"], "short", 1, raw, only_judge=True)["not_run"]} == {
        "no raw results"
    }


def test_every_row_says_what_proves_it() -> None:
    names = {r["name"] for r in TABLE["rows"]}
    for row in TABLE["rows"]:
        assert row["off"] or row["because"], row["name"]
        assert row.get("instead", row["name"]) in names
        assert row["schedule"] in TABLE["schedules"]


def _case(name: str, partner: str = "fixed") -> rows.Case:
    row = next(r for r in TABLE["rows"] if r["name"] == name)
    return rows.Case(row, rows.Config("6x3", "bf16", "immediate", partner), blinded=False)


def _found() -> list[dict[str, Any]]:
    """A run that meets "x1000 from 23"."""
    finding = {
        "rank": 3,
        "kind": "culprit",
        "verdict": "persistent",
        "second_confirmation": None,
        "reproduced": None,
    }
    alarm = {
        "check": "replay",
        "step": 30,
        "suspect_window": [21, 30],
        "findings": [finding],
        "nonfinite_ranks": [],
        "reduced_nonfinite": False,
        "loss_audited": True,
        "pairs": [{"replayer": 1, "target": 3}, {"replayer": 3, "target": 5}],
    }
    state = ["w", "m", "r"]
    rank = {
        "alarm": json.dumps(alarm),
        "error": "",
        "applied": 29,
        "saved": [],
        "passes": {},
        "before": state,
        "after": state,
        "strikes": 4,
        "manifest": {},
    }
    return [copy.deepcopy(rank) for _ in range(6)]


def _spoil(field: str, value: Any, ranks: tuple[int, ...] = tuple(range(6))) -> list[dict[str, Any]]:
    found = _found()
    for rank in ranks:
        if field in found[rank]:
            found[rank][field] = value
        else:
            alarm = json.loads(found[rank]["alarm"])
            target = alarm if field in alarm else alarm["findings"][0]
            assert field in target
            target[field] = value
            found[rank]["alarm"] = json.dumps(alarm)
    return found


def _silenced(**wrong: Any) -> list[dict[str, Any]]:
    """No rank alarms, all come to the last step; `wrong` is rank 1's."""
    found = [{**rank, "alarm": None, "applied": 31} for rank in _found()]
    found[1] |= wrong
    return found


def test_judge_accepts_the_run_that_meets_its_row() -> None:
    assert judge.problems(_case("x1000 from 23"), TABLE, _found()) == []


@pytest.mark.parametrize(
    "found",
    [
        _spoil("alarm", None),
        _spoil("alarm", None, (2,)),
        _spoil("rank", 4),
        _spoil("rank", None),
        _spoil("kind", "pair"),
        _spoil("verdict", "transient"),
        _spoil("step", 31),
        _spoil("suspect_window", [21, 29]),
        _spoil("pairs", [{"replayer": 1, "target": 3}]),
        _spoil("applied", 30),
        _spoil("saved", [30]),
        _spoil("after", ["x", "m", "r"], (5,)),
        _spoil("error", "PeerLostError", (1,)),
        _spoil("strikes", 0),
    ],
    ids=lambda _: "",
)
def test_judge_refuses_every_departure(found: list[dict[str, Any]]) -> None:
    assert judge.problems(_case("x1000 from 23"), TABLE, found)


def test_a_row_that_is_met_without_its_check_fails() -> None:
    case = _case("x1000 from 23")
    blind = rows.Case(case.row, case.config, blinded=True)
    met = ["replay alarms at step 30 although replay is switched off"]
    assert judge.verdict(blind, TABLE, _found()) == met
    assert judge.verdict(blind, TABLE, _silenced()) == []
    never = [{**rank, "strikes": 0} for rank in _silenced()]
    assert judge.verdict(blind, TABLE, never) == ["the fault never struck"]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (_silenced(error="PeerLostError"), "rank 1: PeerLostError"),
        (_spoil("error", "RuntimeError: boom"), "rank 0: RuntimeError: boom"),
        (_spoil("alarm", None, (2,)), "the ranks' alarms differ"),
        (_spoil("verdict", "transient"), "replay alarms at step 30"),
        (_spoil("kind", "pair"), "replay alarms at step 30"),
        (_spoil("saved", [30]), "replay alarms at step 30"),
        (_silenced(applied=29), "ended at [29, 31]"),
    ],
    ids=[
        "one rank crashed",
        "all crashed",
        "alarms differ",
        "other verdict",
        "other kind",
        "other saves",
        "ended early",
    ],
)
def test_a_blinded_twin_that_crashes_or_is_red_for_another_reason_is_not_missed(
    found: list[dict[str, Any]], says: str
) -> None:
    case = _case("x1000 from 23")
    wrong = judge.verdict(rows.Case(case.row, case.config, blinded=True), TABLE, found)
    assert any(says in w for w in wrong)


def test_oracle_knows_the_published_pairs_and_rotates() -> None:
    published = {"ranks": 32, "nodes": 4, "victim": 13, "second": 22}
    assert oracle.pairs("both", published, oracle.offset(published, 5, "fixed")) == {(5, 13), (13, 21)}
    six = TABLE["layouts"]["6x3"]
    assert [oracle.offset(six, audit, "rotate") for audit in range(4)] == [2, 3, 4, 2]
    assert judge.shift_of(_case("x1000 from 23", "rotate"), TABLE) == 3
