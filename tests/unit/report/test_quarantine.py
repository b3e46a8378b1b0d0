"""Who stands in quarantine.json after which alarm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from training_agent import quarantine
from training_agent.contract import Check, ContractError, FindingKind, Verdict, delivery_key
from training_agent.quarantine import add_to_record, covers, entries_of, read_record
from training_agent.quarantine_table import Row

from .builders import a_finding, a_place, an_alarm, instance


def suspects(*findings: object, **changes: object) -> list[tuple[str | None, str | None]]:
    return [(e.instance_id, e.gpu_uuid) for e in entries_of(an_alarm(*findings, **changes))]  # type: ignore[arg-type]


def test_each_named_rank_is_an_entry_with_instance_and_gpu() -> None:
    assert suspects(a_finding(1), a_finding(4)) == [(instance(0), "GPU-1"), (instance(2), "GPU-4")]


def test_two_findings_on_one_gpu_are_one_entry() -> None:
    assert suspects(a_finding(1), a_finding(1, FindingKind.NONFINITE)) == [(instance(0), "GPU-1")]


def test_software_and_reproduced_nonfinite_hold_nobody() -> None:
    assert suspects(a_finding(None, FindingKind.SOFTWARE, involved=(a_place(0),))) == []
    assert suspects(a_finding(2, FindingKind.NONFINITE, reproduced=True), check=Check.NONFINITE) == []
    assert suspects(a_finding(None, FindingKind.NONFINITE, reproduced=True), check=Check.NONFINITE) == []


def test_a_nonfinite_reduced_gradient_holds_the_job() -> None:
    finding = a_finding(None, FindingKind.REDUCED, involved=(a_place(0), a_place(2)))
    assert suspects(finding, check=Check.NONFINITE) == [(None, None)]


def test_an_unattributable_pair_holds_the_places_involved() -> None:
    finding = a_finding(
        None, FindingKind.PAIR, verdict=Verdict.UNATTRIBUTABLE, involved=(a_place(0), a_place(2))
    )
    assert suspects(finding) == [(instance(0), "GPU-0"), (instance(1), "GPU-2")]


def test_a_finding_without_any_place_holds_the_job() -> None:
    assert suspects(a_finding(None, FindingKind.WEIGHTS)) == [(None, None)]
    assert suspects(a_finding(1, place=None)) == [(None, None)]


def test_the_same_alarm_in_the_next_attempt_is_another_occurrence() -> None:
    first = an_alarm(a_finding(1))
    again = replace(first, job=replace(first.job, attempt=first.job.attempt + 1))
    assert delivery_key(first) == delivery_key(again)
    assert entries_of(first)[0].delivery_key != entries_of(again)[0].delivery_key


def test_entries_are_only_ever_added(tmp_path: Path) -> None:
    first, second = entries_of(an_alarm()), entries_of(an_alarm(a_finding(4), step=40))
    add_to_record(tmp_path, first)
    add_to_record(tmp_path, second)
    add_to_record(tmp_path, first)
    assert read_record(tmp_path).entries == first + second


def test_two_groups_that_alarm_at_once_both_stand_in_the_record(tmp_path: Path) -> None:
    def write(group: int) -> None:
        for step in range(8):
            add_to_record(tmp_path, entries_of(an_alarm(a_finding(group), step=40 + step)))

    with ThreadPoolExecutor(3) as groups:
        list(groups.map(write, range(3)))
    assert len(read_record(tmp_path).entries) == 24


def test_a_writer_that_died_with_the_record_in_its_hands_keeps_no_suspect_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_PATIENCE_S", 0.05)
    (tmp_path / ".quarantine.json.lock").touch()
    add_to_record(tmp_path, entries_of(an_alarm()))
    assert read_record(tmp_path).entries and not (tmp_path / ".quarantine.json.lock").exists()


def test_a_damaged_record_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "quarantine.json").write_text('{"entries": [')
    with pytest.raises(ContractError):
        add_to_record(tmp_path, entries_of(an_alarm()))
    assert (tmp_path / "quarantine.json").read_text() == '{"entries": ['


def test_an_entry_covers_its_instance_and_its_gpu_wherever_it_is() -> None:
    (entry,) = entries_of(an_alarm(a_finding(1)))
    assert covers(entry, a_place(0))  # same instance
    assert not covers(entry, a_place(2))
    assert covers(entry, replace(a_place(5), gpu_uuid="GPU-1"))


def test_an_unknown_instance_does_not_match_another_unknown_one() -> None:
    desk = replace(a_place(1), node="desk", instance_id=None)
    (by_gpu,) = entries_of(an_alarm(a_finding(1, place=desk)))
    assert covers(by_gpu, desk)
    assert not covers(by_gpu, replace(desk, gpu_uuid="GPU-other"))
    (by_instance,) = entries_of(an_alarm(a_finding(1, place=replace(a_place(1), gpu_uuid=None))))
    assert not covers(by_instance, replace(a_place(5), gpu_uuid=None))


def test_a_held_row_releases_nothing_even_under_the_alarms_own_key() -> None:
    (entry,) = entries_of(an_alarm())
    assert not Row("gpu#GPU-1", True, frozenset({entry.delivery_key})).releases(entry)
    assert Row("gpu#GPU-1", False, frozenset({entry.delivery_key})).releases(entry)


def test_a_release_counts_for_its_own_alarms_alone_whatever_the_clocks_say() -> None:
    (entry,) = entries_of(an_alarm(time="2000-01-01T00:00:00Z"))
    assert not Row("gpu#GPU-1", False, frozenset({"another"})).releases(entry)
