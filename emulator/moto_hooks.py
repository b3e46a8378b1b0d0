"""Where moto hands over to the local cloud. In: Lambda invokes, SNS e-mails, eks:DescribeCluster, as moto
receives them. Out: our functions, our mailbox, our Kubernetes endpoint. Put in once per process, pointed at
one cloud.
"""

from __future__ import annotations

import base64
import importlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult

from .api_error import ApiError
from .lambda_runtime import Outcome, UnknownFunctionError
from .mailbox import Mailbox, SubjectError, check_subject
from .names import ACCOUNT, arn, function_name_of


@dataclass(frozen=True, slots=True)
class EksCluster:
    """What DescribeCluster says about the fake Kubernetes."""

    name: str
    endpoint: str
    authority: bytes  # PEM

    def description(self) -> dict[str, Any]:
        """The `cluster` member of the response."""
        return {
            "name": self.name,
            "arn": arn("eks", f"cluster/{self.name}"),
            "version": "1.32",
            "endpoint": self.endpoint,
            "roleArn": f"arn:aws:iam::{ACCOUNT}:role/eks",
            "status": "ACTIVE",
            "certificateAuthority": {"data": base64.b64encode(self.authority).decode()},
            "accessConfig": {"authenticationMode": "API"},
        }


def install(invoke: Callable[[str, Any], Outcome], mailbox: Mailbox, eks: EksCluster) -> None:
    """Point moto at one cloud's functions, mailbox and Kubernetes."""
    _install_lambda(invoke)
    _install_mail(mailbox)
    _install_eks(eks)


def _install_lambda(invoke: Callable[[str, Any], Outcome]) -> None:
    module = importlib.import_module("moto.awslambda_simple.models")

    def moto_invoke(
        self: Any, function_name: str, qualifier: str | None, body: Any, headers: Any, response_headers: Any
    ) -> bytes:
        event = json.loads(body) if body else {}
        kind = {k.lower(): v for k, v in dict(headers).items()}.get("x-amz-invocation-type", "")
        if kind == "Event":
            threading.Thread(target=invoke, args=(function_name, event), daemon=True).start()
            return b""
        try:
            outcome = invoke(function_name, event)
        except UnknownFunctionError:
            name = arn("lambda", f"function:{function_name_of(function_name)}")
            raise ApiError("ResourceNotFoundException", f"Function not found: {name}") from None
        if outcome.failed:
            response_headers["x-amz-function-error"] = "Unhandled"
        response_headers["Content-Length"] = str(len(outcome.payload))
        return outcome.payload

    module.LambdaSimpleBackend.invoke = moto_invoke


def _install_mail(mailbox: Mailbox) -> None:
    module = importlib.import_module("moto.sns.models")
    original = getattr(module.Subscription.publish, "original", module.Subscription.publish)

    def publish(
        self: Any,
        message: str,
        message_id: str,
        subject: str | None = None,
        message_attributes: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if self.protocol not in ("email", "email-json"):
            original(self, message, message_id, subject, message_attributes, **more)
            return
        matcher = self._filter_policy_matcher
        if matcher is not None and not matcher.matches(message_attributes, message):
            return
        if subject is not None:
            try:
                check_subject(subject)
            except SubjectError as e:
                raise ApiError("InvalidParameter", str(e)) from e
        if more.get("message_structure") == "json":
            message = self._parse_message_structure(message, self.protocol)
        attributes = {k: str(v["Value"]) for k, v in (message_attributes or {}).items()}
        mailbox.deliver(self.endpoint, subject, message, self.topic.arn, attributes)

    publish.original = original  # type: ignore[attr-defined]
    module.Subscription.publish = publish


def _install_eks(eks: EksCluster) -> None:
    module = importlib.import_module("moto.eks.responses")

    def describe_cluster(self: Any) -> ActionResult:
        name = self._get_param("name")
        if name != eks.name:
            raise ApiError("ResourceNotFoundException", f"No cluster found for name: {name}.")
        return ActionResult({"cluster": eks.description()})

    module.EKSResponse.describe_cluster = describe_cluster
