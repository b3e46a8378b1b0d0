"""The control table's rows, on moto's DynamoDB: mode, kill switch, locks, budget, breaker. No sockets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import pytest

from lambdas.adapters.controls import ControlTable
from lambdas.domain.errors import HaltedError, RefusedError
from training_agent.contract import Mode

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def put_control(key: str, value: Any) -> None:
    boto3.resource("dynamodb").Table("controls").put_item(Item={"key": key, "value": value})


@pytest.mark.parametrize(("value", "on"), [(True, True), (False, False), ("off", True), ("", True)])
def test_anything_but_a_clear_no_is_a_kill_switch(tables: None, value: Any, on: bool) -> None:
    put_control("kill_switch", value)
    assert ControlTable("controls").read().kill_switch is on


def test_control_rows_default_to_the_deployed_mode_and_no_kill_switch(tables: None) -> None:
    control = ControlTable("controls").read()
    assert control.mode is None and control.kill_switch is False
    put_control("mode", "contain")
    assert ControlTable("controls").read().mode is Mode.CONTAIN


def test_an_unreadable_mode_halts(tables: None) -> None:
    put_control("mode", "full speed")
    with pytest.raises(HaltedError):
        ControlTable("controls").read()


def test_a_lock_has_one_holder(tables: None) -> None:
    store = ControlTable("controls")
    assert store.lock("replacement", "a") and store.lock("replacement", "a")
    assert not store.lock("replacement", "b")
    store.unlock("replacement", "b")
    assert not store.lock("replacement", "b")
    store.unlock("replacement", "a")
    assert store.lock("replacement", "b")


def test_replacements_are_remembered(tables: None) -> None:
    store = ControlTable("controls")
    assert store.replacements("gpu") == {}
    store.count_replacement("gpu", "a", NOW)
    store.count_replacement("gpu", "b", NOW)
    store.count_replacement("cpu", "c", NOW)
    assert store.replacements("gpu") == {"a": NOW, "b": NOW}


def test_the_list_of_replacements_is_pruned_after_a_day(tables: None) -> None:
    store = ControlTable("controls")
    for hour in range(0, 60, 6):
        store.count_replacement("gpu", f"i{hour}", NOW + timedelta(hours=hour))
    assert list(store.replacements("gpu")) == ["i36", "i42", "i48", "i54"]


def test_the_breaker_opens_once_and_only_a_human_closes_it(tables: None) -> None:
    store = ControlTable("controls")
    assert not store.breaker().open
    assert not store.close_breaker("nothing to close", "arn", NOW)
    store.open_breaker("over budget", "a", NOW)
    store.open_breaker("again", "b", NOW)
    assert store.breaker().open and store.breaker().reason == "over budget"
    assert store.close_breaker("looked at it", "arn:aws:iam::1:user/a", NOW)
    assert not store.breaker().open
    store.open_breaker("once more", "c", NOW)
    assert store.breaker().reason == "once more"


def test_a_breaker_row_that_is_not_clearly_closed_is_open(tables: None) -> None:
    put_control("breaker", "whatever")
    assert ControlTable("controls").breaker().open


def test_a_missing_table_is_refused_and_not_taken_for_empty(tables: None) -> None:
    with pytest.raises(RefusedError):
        ControlTable("nowhere").read()
