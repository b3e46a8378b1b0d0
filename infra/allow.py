"""One statement of least privilege, as a value.

In: an action list of one service and the places it is for. Out: the policy statement. Next: `permissions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aws_cdk import aws_iam as iam

from .places import Place, Places


@dataclass(frozen=True, slots=True)
class Allow:
    """One statement: these actions of one service at these places."""

    service: str
    actions: tuple[str, ...]
    at: tuple[Place, ...]
    reason: str = ""  # why a wildcard, if there is one
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wild = Place.EVERYTHING in self.at or any("*" in action for action in self.actions)
        assert not wild or self.reason, f"{self.service}:{self.actions} is a wildcard and gives no reason"

    @property
    def qualified(self) -> tuple[str, ...]:
        """`service:Action`, as in a policy."""
        return tuple(f"{self.service}:{action}" for action in self.actions)

    def statement(self, places: Places) -> iam.PolicyStatement:
        """The same as CDK knows it."""
        return iam.PolicyStatement(
            actions=list(self.qualified),
            resources=[places.arns[place] for place in self.at],
            conditions=dict(self.conditions) or None,
        )


def wildcard_reasons(table: Mapping[str, tuple[Allow, ...]]) -> dict[str, str]:
    """Step -> why it holds a wildcard; steps without one are left out."""
    found = {step: [allow.reason for allow in allows if allow.reason] for step, allows in table.items()}
    return {step: "; ".join(reasons) for step, reasons in found.items() if reasons}
