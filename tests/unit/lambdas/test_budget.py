"""The budget's arithmetic, its denominator, and the breaker that stays open until a human closes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain.errors import UnavailableError
from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Budget, BudgetAnswer, allowed_per_day, is_floor, within_budget
from lambdas.domain.world import ClusterNode
from tests.events import builder

from .drive import Driver
from .fakes import LAUNCHED, START

SUSPECT = builder.INSTANCES[1]
FIVE_PERCENT = Budget(per_day=100, percent=5, per_hour=1)


def calls(driver: Driver) -> int:
    return sum(1 for name, _ in driver.world.cluster.calls if name == "replace")


@pytest.mark.parametrize(
    ("running", "allowed"), [(0, 0), (1, 1), (3, 1), (4, 1), (19, 1), (20, 1), (39, 1), (40, 2), (250, 12)]
)
def test_five_percent_of_the_running_nodes_rounded_down_but_never_below_one(
    running: int, allowed: int
) -> None:
    assert allowed_per_day(FIVE_PERCENT, running) == allowed
    assert is_floor(5, running) is (0 < running < 20)


def test_the_absolute_cap_wins() -> None:
    assert allowed_per_day(replace(FIVE_PERCENT, per_day=2), 250) == 2
    assert allowed_per_day(replace(FIVE_PERCENT, per_day=0), 250) == 0


def test_the_day_and_the_hour_end_to_the_second() -> None:
    hour, day = START - timedelta(hours=1), START - timedelta(days=1)
    second = timedelta(seconds=1)
    assert within_budget(FIVE_PERCENT, 40, (hour + second,), START) == BudgetAnswer.HOUR
    assert within_budget(FIVE_PERCENT, 40, (hour,), START) == BudgetAnswer.OK
    assert within_budget(FIVE_PERCENT, 40, (day + second, hour), START) == BudgetAnswer.DAY
    assert within_budget(FIVE_PERCENT, 40, (day, hour), START) == BudgetAnswer.OK


def test_over_budget_opens_the_breaker_and_ends_in_a_state_of_its_own(
    driver: Driver, approved: Incident
) -> None:
    driver.setting("REPLACEMENTS_PER_DAY", "1")
    driver.world.controls.replaced["gpu"]["other"] = START
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.BLOCKED_BY_BREAKER
    assert driver.world.controls.breaker().open and calls(driver) == 0
    assert "breaker" in driver.world.mail.sent[-1][2]


def test_an_open_breaker_stops_replacements_within_budget_too(driver: Driver, approved: Incident) -> None:
    driver.world.controls.open_breaker("a replacement never ended", "other", START)
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.BLOCKED_BY_BREAKER
    assert calls(driver) == 0


def test_a_closed_breaker_lets_the_next_one_through(driver: Driver, approved: Incident) -> None:
    driver.world.controls.open_breaker("over budget", "other", START)
    assert driver.world.controls.close_breaker("looked at it", "arn", START)
    assert driver.step("replace", approved)["outcome"] == "replaced"


def test_replacements_of_another_group_count_for_that_group(driver: Driver, approved: Incident) -> None:
    driver.setting("REPLACEMENTS_PER_DAY", "1")
    driver.world.controls.replaced["cpu"]["other"] = START
    assert driver.step("replace", approved)["outcome"] == "replaced"


def test_cpu_groups_are_no_part_of_the_denominator(driver: Driver, approved: Incident) -> None:
    """3 GPU nodes allow one by the floor; 200 CPU nodes beside them change nothing."""
    driver.setting("REPLACEMENT_BUDGET_PERCENT", "5")
    for number in range(200):
        instance = f"i-{number:017x}"
        driver.world.cluster.members[instance] = ClusterNode(instance, "cpu", "Running", LAUNCHED)
    driver.world.controls.replaced["gpu"]["other"] = START
    assert driver.step("replace", approved)["outcome"] == "human"
    assert driver.world.controls.breaker().open and calls(driver) == 0


def test_nodes_that_are_not_running_are_no_part_of_the_denominator(
    driver: Driver, approved: Incident
) -> None:
    driver.setting("REPLACEMENT_BUDGET_PERCENT", "67")  # 2 of 3, 1 of 2
    driver.world.controls.replaced["gpu"]["other"] = START - timedelta(hours=2)
    driver.world.cluster.set_status(builder.INSTANCES[0], "Failure")
    assert driver.step("replace", approved)["outcome"] == "human"
    assert calls(driver) == 0


def test_an_unreadable_page_stops_without_opening_the_breaker(
    driver: Driver, approved: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> tuple[ClusterNode, ...]:
        raise UnavailableError("ListClusterNodes: page 2")

    monkeypatch.setattr(driver.world.cluster, "nodes", fails)
    answer = driver.step("replace", approved)
    assert answer["outcome"] == "human" and "cannot be read" in answer["story"]
    assert calls(driver) == 0 and not driver.world.controls.breaker().open


def test_two_incidents_for_the_last_slot_replace_one_node(driver: Driver) -> None:
    driver.setting("REPLACEMENTS_PER_DAY", "1")
    driver.register()
    first, second = driver.alarm(builder.alarm(builder.culprit(1), builder.culprit(4)))
    for incident in (first, second):
        link = driver.until_asked(incident)
        target = driver.world.incidents.get(incident.id).instance_id or ""
        assert driver.answer(link, typed=target[-6:])["statusCode"] == 200
    assert driver.step("replace", first)["outcome"] == "replaced"
    driver.world.cluster.swap(builder.INSTANCES[0])
    assert driver.step("verify", first)["outcome"] == "verified"
    assert driver.step("replace", second)["outcome"] == "human"
    assert calls(driver) == 1


def test_the_floor_of_one_is_a_red_line_on_page_and_mail(driver: Driver) -> None:
    driver.setting("REPLACEMENT_BUDGET_PERCENT", "5")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    link = driver.until_asked(incident)
    assert "floor of one" in driver.browse(link)["body"]
    assert "5 % of the 3 Running nodes" in " ".join(driver.world.mail.sent[-1][2].split())


def test_no_red_line_where_the_percentage_allows_a_node(driver: Driver) -> None:
    driver.setting("REPLACEMENT_BUDGET_PERCENT", "34")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    assert "floor of one" not in driver.browse(driver.until_asked(incident))["body"]
