"""How tests read a template."""

from __future__ import annotations

from typing import Any


def of_type(resources: dict[str, Any], kind: str) -> dict[str, Any]:
    """Properties by logical id of all resources of one type."""
    return {name: item.get("Properties", {}) for name, item in resources.items() if item["Type"] == kind}


def as_list(value: Any) -> list[Any]:
    """CloudFormation writes a list of one as the item itself."""
    return value if isinstance(value, list) else [value]


def statements(properties: dict[str, Any]) -> list[dict[str, Any]]:
    """All statements of a role's inline policies."""
    return [
        statement
        for policy in properties.get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def actions(properties: dict[str, Any]) -> set[str]:
    """All actions that a role allows."""
    return {action for statement in statements(properties) for action in as_list(statement["Action"])}
