"""Evidence that comes in while an incident is open: never a second workflow, never lost, decided with."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain import messages
from lambdas.domain.decision_table import ROWS
from lambdas.domain.errors import ConflictError
from lambdas.domain.findings import most_named
from lambdas.domain.incident import Incident, State, Target, execution_name
from lambdas.steps.locate import MAX_JOINED
from lambdas.steps.outcome import amend
from tests.events import builder
from training_agent.contract import Finding, Verdict, instance_subject

from .drive import Driver
from .fakes import START
from .looks import look

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


@pytest.fixture
def first(driver: Driver) -> Incident:
    """A transient verdict, contained and decided."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    assert driver.play(incident, "locate", stop="confirm") == "confirm"
    return incident


def another(driver: Driver, finding: Finding, step: int = 40) -> Incident:
    (incident,) = driver.alarm(builder.alarm(finding, step=step))
    return incident


def test_it_joins_and_the_next_decision_is_made_with_it(driver: Driver, first: Incident) -> None:
    second = another(driver, builder.culprit(3))
    assert driver.play(second, "locate") == "joined"
    assert driver.world.incidents.get(second.id).state is State.JOINED
    assert driver.world.incidents.get(first.id).joined == (second.id,)
    driver.step("confirm", first)
    assert driver.step("decide", first)["outcome"] == "approve"
    assert driver.world.incidents.get(first.id).decided_rows == ("V2", "C1")
    assert driver.world.cluster.calls == []  # the deep check is not needed any more


def test_a_second_transient_verdict_is_a_repeat(driver: Driver, first: Incident) -> None:
    driver.play(another(driver, builder.pair(3, Verdict.TRANSIENT)), "locate")
    assert driver.step("confirm", first)["outcome"] == "confirmed"
    assert driver.step("decide", first)["outcome"] == "approve"


def test_the_mail_shows_all_evidence(driver: Driver, first: Incident) -> None:
    driver.play(another(driver, builder.culprit(3)), "locate")
    driver.step("confirm", first)
    driver.step("decide", first)
    driver.ask(first)
    text = " ".join(driver.world.mail.sent[-1][2].split())
    assert "one comparison with rank 3" in text and "both ring comparisons" in text


def test_a_second_gpu_of_the_node_is_a_suspect_too(driver: Driver, first: Incident) -> None:
    driver.play(another(driver, builder.culprit(2)), "locate")
    (target,) = driver.world.incidents.get(first.id).targets
    assert target.ranks == (2, 3)
    assert target.gpu_uuids == tuple(p.gpu_uuid for p in reversed(builder.places()[2:4]))


def test_evidence_after_the_question_that_changes_the_row_is_asked_anew(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.PERSISTENT)))
    driver.answer(driver.until_asked(incident))
    driver.play(another(driver, builder.culprit(3)), "locate")
    assert driver.step("replace", incident)["outcome"] == "reopened"
    assert driver.play(incident, "contain", stop="request_approval") == "request_approval"
    link = driver.ask(incident, token="token-2")
    assert driver.step("replace", incident)["outcome"] == "human"  # the old answer is for the old question
    assert driver.world.cluster.calls == [] and link
    assert len(driver.world.approvals.rows) == 2


def test_evidence_that_changes_nothing_leaves_the_approval_standing(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.answer(driver.until_asked(incident))
    driver.play(another(driver, builder.pair(3, Verdict.TRANSIENT)), "locate")
    assert driver.step("replace", incident)["outcome"] == "replaced"


def test_s1_is_judged_again_right_before_the_replacement(driver: Driver) -> None:
    """Two more nodes are named within ten minutes: not a GPU, whatever was approved."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.answer(driver.until_asked(incident))
    for rank, step in ((1, 40), (5, 50)):
        another(driver, builder.culprit(rank), step)
    assert driver.step("replace", incident)["outcome"] == "reopened"
    driver.play(incident, "contain")
    closed = driver.world.incidents.get(incident.id)
    assert closed.state is State.HANDED_TO_HUMAN and closed.decided_rows == ("C1", "S1")
    assert driver.world.cluster.calls == []


def test_nodes_named_hours_later_are_no_part_of_the_ten_minutes() -> None:
    minute = timedelta(minutes=1)
    named = [(START - 9 * minute, "a"), (START, "b"), (START + 9 * minute, "c"), (START + 60 * minute, "d")]
    assert most_named(named, START, 10 * minute) == 2
    assert most_named([*named, (START + minute, "e")], START, 10 * minute) == 3
    assert most_named([], START, 10 * minute) == 0


def test_evidence_before_the_release_stops_it(driver: Driver, first: Incident) -> None:
    driver.world.incidents.rows[first.id] = replace(
        driver.world.incidents.get(first.id), state=State.DECIDED, closing=State.RELEASED
    )
    driver.play(another(driver, builder.culprit(3)), "locate")
    assert driver.step("resume", first)["outcome"] == "reopened"
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_evidence_after_the_release_contains_the_node_again(driver: Driver, first: Incident) -> None:
    """The job came back on the released node and was hit again while the incident still watched it."""
    driver.world.incidents.rows[first.id] = replace(
        driver.world.incidents.get(first.id), state=State.DECIDED, closing=State.RELEASED
    )
    assert driver.step("resume", first)["outcome"] == "waiting"
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    driver.play(another(driver, builder.culprit(3)), "locate")
    assert driver.step("resume", first)["outcome"] == "reopened"
    assert driver.play(first, "contain", stop="request_approval") == "request_approval"
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_holder_that_has_just_ended_takes_no_evidence(driver: Driver, first: Incident) -> None:
    """The row is written conditionally: it is tried again, and the gate is free by then, whoever died."""
    second = another(driver, builder.culprit(3))
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], state=State.RELEASED)
    with pytest.raises(ConflictError):
        driver.step("locate", second)
    assert driver.step("locate", second)["outcome"] == "located"


def test_unlocated_evidence_is_kept_and_never_decided_with(driver: Driver, first: Incident) -> None:
    """The same delivery key with other findings could be forged: only what was proven counts."""
    forged = builder.alarm(builder.culprit(3))
    driver.send(builder.event(forged))
    assert driver.world.incidents.get(first.id).joined == ()
    driver.step("confirm", first)
    assert driver.world.incidents.get(first.id).decided_rows == ("V2",)


def test_evidence_without_end_is_bounded(driver: Driver, first: Incident) -> None:
    for number in range(MAX_JOINED + 3):
        driver.world.clock.at = START + timedelta(hours=4 * number)
        late = builder.alarm(
            builder.pair(3, Verdict.TRANSIENT),
            step=100 + number,
            time=driver.world.clock.at.isoformat(),
        )
        (incident,) = driver.alarm(late)
        assert driver.play(incident, "locate") == "joined"
    assert len(driver.world.incidents.get(first.id).joined) == MAX_JOINED


def test_a_mail_stays_below_what_sns_takes_however_many_findings_there_are(
    driver: Driver, first: Incident
) -> None:
    """21 alarms of 64 KB can stand here: too large a mail is refused, and nobody is told."""
    long = (replace(builder.culprit(3), evidence=f"{n} " + "x" * 300) for n in range(3000))
    alarm = builder.alarm(builder.culprit(3))
    incident = driver.world.incidents.get(first.id)
    facts = messages.facts(incident, alarm, tuple(long), ROWS["C1"], "why")
    assert len("".join(f.text for f in facts)) < 30_000
    assert facts[-1].text.startswith("2960 more")


def test_a_cordon_that_a_later_row_would_not_have_set_is_told_of_and_can_be_let_go(
    driver: Driver, first: Incident
) -> None:
    """S1 contains nothing, and takes nothing back: a mail that says "no node was cordoned" would hide it."""
    driver.play(another(driver, builder.culprit(3)), "locate")
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], nodes_named=99)
    driver.play(first, "confirm")
    ended = driver.world.incidents.get(first.id)
    assert (ended.state, ended.decision_row) == (State.HANDED_TO_HUMAN, "S1")
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    _, subject, body = driver.world.mail.sent[-1]
    assert "stays cordoned" in subject and f"sdc release {first.id}" in body
    assert "no node was" not in body.lower()


@pytest.mark.parametrize("by", ["step", "reconciler"])
def test_a_cordon_that_a_broken_containment_left_is_told_of_and_can_be_let_go(
    driver: Driver, first: Incident, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The row on record is the one before, which cordons nothing."""
    amend(
        driver.world, first.id, lambda i: replace(i, decision_row="S1", state=State.LOCATED, targets=_free(i))
    )
    driver.world.kubernetes.change(NODE, unschedulable=False, annotations={})
    del driver.world.incidents.effects[first.id, f"cordon:{NODE}"]  # as if it had never been contained
    monkeypatch.setattr("lambdas.steps.contain.evict_job", _breaks_off)
    with pytest.raises(KeyboardInterrupt):
        driver.step("contain", first)
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert not any(t.cordoned_by_us for t in driver.world.incidents.get(first.id).targets)
    if by == "step":
        driver.play(first, "tell_human")
    else:
        driver.world.executions.ended[execution_name(first)] = "FAILED"
        look(driver)
    body = driver.world.mail.sent[-1][2]
    assert "No node was cordoned" not in body and f"sdc release {first.id}" in body
    assert driver.world.quarantine.rows[instance_subject(SUSPECT)]["state"] == "held"


def _free(incident: Incident) -> tuple[Target, ...]:
    return tuple(replace(t, cordoned_by_us=False) for t in incident.targets)


def _breaks_off(*_: object) -> None:
    raise KeyboardInterrupt
