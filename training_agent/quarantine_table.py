"""Reads the pipeline's quarantine table: mode and state by job, instance and GPU, across jobs.

Written by `lambdas.steps.contain` and `resume`; asked by `training_agent.hold`, on rank 0, with GetItem only
(the pod's role has nothing else). boto3 is imported when the first question is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .clients import ClientFactory, boto3_client
from .contract import MODE_SUBJECT, Mode, QuarantineEntry, QuarantineState

_PARALLEL_READS = 16  # 2,048 nodes with 8 GPUs are 18,434 rows: seconds, once per start


class TableUnreadableError(Exception):
    """The table gave no answer; the text says why. Whoever holds keeps holding."""


@dataclass(frozen=True, slots=True)
class Row:
    """State of one subject; an unknown state counts as held."""

    subject: str
    held: bool
    delivery_keys: frozenset[str]  # alarms, each in its attempt, that the row speaks of

    def releases(self, entry: QuarantineEntry) -> bool:
        """Tell whether this row sets `entry` free: released, and for that very alarm.

        Moments are not compared: an accusation bears the pod's clock, a release that of AWS.
        """
        return not self.held and entry.delivery_key in self.delivery_keys


class QuarantineTable:
    """The rows that a job needs, read strongly consistent."""

    def __init__(self, name: str, client: ClientFactory = boto3_client) -> None:
        self._name = name
        self._make_client: Callable[[], Any] = lambda: client("dynamodb")
        self._client: Any = None

    def mode(self) -> Mode | None:
        """Mode of the pipeline; None when the row is missing or says something unknown.

        Raises
        ------
        TableUnreadableError: no credentials, no network, no such table.
        """
        item = self._get(MODE_SUBJECT)
        value = _text(item, "mode") if item else None
        return Mode(value) if value in {m.value for m in Mode} else None

    def rows(self, subjects: Iterable[str]) -> dict[str, Row]:
        """Rows of `subjects`; those without a row are missing from the answer.

        Raises
        ------
        TableUnreadableError: as `mode`.
        """
        wanted = list(dict.fromkeys(subjects))
        if not wanted:
            return {}
        first = self._get(wanted[0])  # alone, so that an unreachable table costs one timeout, not thousands
        with ThreadPoolExecutor(min(_PARALLEL_READS, len(wanted))) as pool:
            items = [first, *pool.map(self._get, wanted[1:])]
        return {s: _row(s, i) for s, i in zip(wanted, items, strict=True) if i}

    def _get(self, subject: str) -> dict[str, Any] | None:
        try:
            if self._client is None:
                self._client = self._make_client()
            answer = self._client.get_item(
                TableName=self._name, Key={"subject": {"S": subject}}, ConsistentRead=True
            )
            return answer.get("Item")  # type: ignore[no-any-return]
        except Exception as e:  # botocore's kinds cannot be named without importing it
            raise TableUnreadableError(f"quarantine table {self._name}: {type(e).__name__}: {e}") from e


def _row(subject: str, item: dict[str, Any]) -> Row:
    return Row(
        subject=subject,
        held=_text(item, "state") != QuarantineState.RELEASED.value,
        delivery_keys=_keys(item),
    )


def _text(item: dict[str, Any], name: str) -> str | None:
    value = item.get(name, {}).get("S")
    return value if isinstance(value, str) else None


def _keys(item: dict[str, Any]) -> frozenset[str]:
    """All keys; rows of the version before have one."""
    several = item.get("delivery_keys", {}).get("SS")
    one = _text(item, "delivery_key")
    return frozenset(several if isinstance(several, list) else [one] if one else [])
