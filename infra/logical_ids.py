"""Stable logical ids: tests, the local cloud and operators name resources by them."""

from __future__ import annotations

from typing import TypeVar

from aws_cdk import CfnElement
from constructs import Construct

Resource = TypeVar("Resource", bound=Construct)


def fix(resource: Resource, logical_id: str) -> Resource:
    """Give the CloudFormation resource behind `resource` this logical id, and hand `resource` back."""
    element = resource if isinstance(resource, CfnElement) else resource.node.default_child
    assert isinstance(element, CfnElement), f"{logical_id}: no CloudFormation resource behind {resource}"
    element.override_logical_id(logical_id)
    return resource


def camel(step: str) -> str:
    """`request_approval` -> `RequestApproval`."""
    return "".join(part.title() for part in step.split("_"))
