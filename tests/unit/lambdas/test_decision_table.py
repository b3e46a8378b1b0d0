"""The decision table is total and unambiguous, and its next steps are the published ones."""

from __future__ import annotations

import itertools

import pytest

from lambdas.domain.decision_table import (
    ROWS,
    STRENGTH,
    TABLE,
    Contain,
    Facts,
    Next,
    Then,
    decide,
    evaluate,
    row_of,
)
from lambdas.domain.incident import Action, CheckResult
from tests.events.builder import culprit, pair, weights
from training_agent.contract import Finding, FindingKind, Mode, Place, SecondConfirmation, Verdict

PLACE = Place(3, 1, "hyperpod-i-0123456789abcdef0", "i-0123456789abcdef0", "GPU-1")
EVERY_FINDING = [
    Finding(kind, rank, PLACE if rank is not None else None, verdict, majority, reproduced, second)
    for kind, rank, verdict, majority, reproduced, second in itertools.product(
        FindingKind,
        (None, 3),
        (None, *Verdict),
        (False, True),
        (None, False, True),
        (None, *SecondConfirmation),
    )
]
KNOWN = Facts(nodes=3, cordoned_by_us=True, mode=Mode.REPLACE)


def test_exactly_one_row_matches_any_finding() -> None:
    for finding in EVERY_FINDING:
        taking = [row.id for row in TABLE if row.when is not None and row.when.takes(finding)]
        assert len(taking) <= 1, (finding, taking)
        assert row_of(finding).id == (taking or ["X0"])[0]


def test_every_row_is_reached_and_ranked() -> None:
    assert {row_of(f).id for f in EVERY_FINDING} == set(ROWS) == set(STRENGTH)
    assert list(ROWS) == ["S1", "N0", "W1", "W2", "C1", "C2", "V1", "V2", "V3", "V4", "N1", "R1", "X0"]


def test_every_decision_is_made_for_every_finding_and_fact() -> None:
    for finding in EVERY_FINDING:
        for mode, check, ours in itertools.product(Mode, CheckResult, (False, True)):
            facts = Facts(3, 1, True, False, check, ours, mode)
            decision = decide((finding,), facts)
            if decision.action is Action.RELEASE:
                assert decision.row.contain is Contain.HOLD and decision.next is Next.APPROVE
            elif decision.next in (Next.APPROVE, Next.RELEASE):
                assert ours and decision.row.blames_node
            if decision.next is Next.APPROVE and decision.action is Action.REPLACE:
                assert mode is Mode.REPLACE and finding.rank is not None
            assert decision.reason


def test_rows_that_replace_cordon_and_need_a_name() -> None:
    for row in TABLE:
        if row.then in (Then.REPLACE, Then.RELEASE_OR_REPLACE):
            assert row.contain in (Contain.CORDON, Contain.ISOLATE) and row.blames_node
            assert row.when is not None and row.when.named is True


@pytest.mark.parametrize(
    ("findings", "row"),
    [
        ((weights(3), culprit(3)), "C1"),
        ((pair(3, Verdict.TRANSIENT), weights(3)), "W1"),
        ((culprit(3, majority=False), pair(3, Verdict.PERSISTENT)), "V1"),
        ((pair(3, Verdict.TRANSIENT), pair(3, Verdict.REPLAYER)), "V3"),
        ((Finding(FindingKind.WEIGHTS), pair(3, Verdict.UNATTRIBUTABLE)), "V4"),
        ((), "X0"),
    ],
)
def test_the_strongest_evidence_decides(findings: tuple[Finding, ...], row: str) -> None:
    assert evaluate(findings, KNOWN).id == row


def test_more_than_two_of_three_nodes_are_not_bad_gpus() -> None:
    assert evaluate((culprit(3),), Facts(nodes=3, nodes_named=2)).id == "C1"
    assert evaluate((culprit(3),), Facts(nodes=3, nodes_named=3)).id == "S1"
    assert evaluate((culprit(3),), Facts(nodes=1000, nodes_named=20)).id == "C1"
    assert evaluate((culprit(3),), Facts(nodes=1000, nodes_named=21)).id == "S1"


@pytest.mark.parametrize(
    ("second", "row"),
    [
        (SecondConfirmation.REPEATS, "V1"),
        (SecondConfirmation.AGREES, "V2"),
        (SecondConfirmation.UNAVAILABLE, "V4"),
        (None, "V4"),
    ],
)
def test_v3_is_decided_again_by_the_second_confirmation(second: SecondConfirmation | None, row: str) -> None:
    finding = pair(3, Verdict.REPLAYER, second=second)
    assert decide((finding,), KNOWN).next is Next.CONFIRM
    again = Facts(nodes=3, second_read=True, cordoned_by_us=True, mode=Mode.REPLACE)
    assert decide((finding,), again).row.id == row


@pytest.mark.parametrize(
    ("repeats", "check", "expected"),
    [
        (None, CheckResult.NOT_RUN, Next.CONFIRM),
        (False, CheckResult.NOT_RUN, Next.CONFIRM),
        (False, CheckResult.RUNNING, Next.CONFIRM),
        (False, CheckResult.PASSED, Next.RELEASE),
        (False, CheckResult.FAILED, Next.APPROVE),
        (True, CheckResult.NOT_RUN, Next.APPROVE),
        (False, CheckResult.STUCK, Next.HUMAN),
        (False, CheckResult.NEVER_STARTED, Next.HUMAN),
        (False, CheckResult.UNAVAILABLE, Next.HUMAN),
        (False, CheckResult.NEEDS_APPROVAL, Next.APPROVE),  # of the check, not of a replacement
        (False, CheckResult.NODE_GONE, Next.HUMAN),
    ],
)
def test_a_transient_verdict_is_released_only_by_a_passed_check(
    repeats: bool | None, check: CheckResult, expected: Next
) -> None:
    facts = Facts(nodes=3, repeats=repeats, deep_check=check, cordoned_by_us=True, mode=Mode.REPLACE)
    assert decide((pair(3, Verdict.TRANSIENT),), facts).next is expected
