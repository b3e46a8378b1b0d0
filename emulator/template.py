"""The synthesized CloudFormation template, resolved. In: template JSON. Out: resources with plain properties.

Every intrinsic must resolve and every resource type must be known, either to be created or to be left out by
name; anything else is an error, because a resource that quietly does not exist locally proves nothing.
Next: `plan` reads the resolved resources, `stack` creates them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .names import ACCOUNT, REGION, arn

Properties = dict[str, Any]

CREATED = {  # or read by what plays it
    "AWS::ApiGatewayV2::Api",
    "AWS::ApiGatewayV2::Integration",
    "AWS::ApiGatewayV2::Route",
    "AWS::ApiGatewayV2::Stage",
    "AWS::DynamoDB::Table",
    "AWS::EKS::AccessEntry",
    "AWS::Events::EventBus",
    "AWS::Events::Rule",
    "AWS::IAM::Role",
    "AWS::Lambda::EventSourceMapping",
    "AWS::Lambda::Function",
    "AWS::Lambda::Permission",
    "AWS::SNS::Subscription",
    "AWS::SNS::Topic",
    "AWS::SQS::Queue",
    "AWS::StepFunctions::StateMachine",
}
# What has no effect here: nobody judges resources' policies, stores logs or evaluates alarms in it.
LEFT_OUT = {
    "AWS::CDK::Metadata",
    "AWS::CloudWatch::Alarm",
    "AWS::CloudWatch::CompositeAlarm",
    "AWS::CloudWatch::Dashboard",
    "AWS::Chatbot::SlackChannelConfiguration",
    "AWS::Events::Archive",
    "AWS::Events::EventBusPolicy",
    "AWS::IAM::ManagedPolicy",
    "AWS::IAM::Policy",
    "AWS::KMS::Alias",
    "AWS::KMS::Key",
    "AWS::Logs::LogGroup",
    "AWS::Logs::MetricFilter",
    "AWS::Logs::ResourcePolicy",
    "AWS::SNS::TopicPolicy",
    "AWS::SQS::QueuePolicy",
}
PSEUDO: dict[str, Any] = {
    "AWS::AccountId": ACCOUNT,
    "AWS::NoValue": None,
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::StackName": "local",
    "AWS::URLSuffix": "amazonaws.com",
}
_ARN_OF = {  # type -> (service, resource prefix before the physical name)
    "AWS::CloudWatch::Alarm": ("cloudwatch", "alarm:"),
    "AWS::DynamoDB::Table": ("dynamodb", "table/"),
    "AWS::Events::EventBus": ("events", "event-bus/"),
    "AWS::Events::Rule": ("events", "rule/"),
    "AWS::IAM::ManagedPolicy": ("iam", "policy/"),
    "AWS::IAM::Role": ("iam", "role/"),
    "AWS::KMS::Key": ("kms", "key/"),
    "AWS::Lambda::Function": ("lambda", "function:"),
    "AWS::Logs::LogGroup": ("logs", "log-group:"),
    "AWS::SNS::Topic": ("sns", ""),
    "AWS::SQS::Queue": ("sqs", ""),
    "AWS::StepFunctions::StateMachine": ("states", "stateMachine:"),
}
_REF_IS_ARN = {"AWS::SNS::Topic", "AWS::StepFunctions::StateMachine", "AWS::IAM::ManagedPolicy"}
_OWN_NAME = {
    "AWS::Events::EventBus": "Name",
    "AWS::DynamoDB::Table": "TableName",
    "AWS::SQS::Queue": "QueueName",
    "AWS::Lambda::Function": "FunctionName",
}


class TemplateError(ValueError):
    """The template cannot be loaded; the text names the resource and what to do."""


class Template:
    """A template in one account: physical names are the logical ids, or the names that it gives itself.

    Args:
        source: path of the synthesized JSON, or its parsed content.
        endpoint_url: of the local AWS, for queue URLs.
        api_url: where the HTTP front serves this template's API.
        prefix: put before physical names, so that two stacks can live in one account.
    """

    def __init__(
        self, source: Path | Mapping[str, Any], *, endpoint_url: str, api_url: str, prefix: str = ""
    ) -> None:
        content = json.loads(source.read_text()) if isinstance(source, Path) else source
        self.resources: Mapping[str, Any] = content.get("Resources") or {}
        self._parameters: Mapping[str, Any] = content.get("Parameters") or {}
        self._outputs: Mapping[str, Any] = content.get("Outputs") or {}
        self._endpoint_url, self.api_url, self.prefix = endpoint_url, api_url, prefix
        unknown = sorted({r["Type"] for r in self.resources.values()} - CREATED - LEFT_OUT)
        if not self.resources:
            raise TemplateError("the template has no resources: run `make synth` and load cdk.out's template")
        if unknown:
            raise TemplateError(
                f"the local cloud does not know these types of the template: {', '.join(unknown)}. "
                "Create them in emulator/stack.py, or name them in LEFT_OUT of emulator/template.py"
            )

    def outputs(self) -> dict[str, str]:
        """Outputs by name, resolved."""
        return {name: str(self.resolve(o["Value"], name)) for name, o in self._outputs.items()}

    def left_out(self) -> list[str]:
        """`Type LogicalId` of every resource that is not created, sorted."""
        return sorted(f"{r['Type']} {i}" for i, r in self.resources.items() if r["Type"] in LEFT_OUT)

    def of_type(self, kind: str) -> Iterator[tuple[str, Properties]]:
        """(logical id, resolved properties) of all resources of a type."""
        for logical_id, resource in self.resources.items():
            if resource["Type"] == kind:
                yield logical_id, self.resolve(resource.get("Properties") or {}, logical_id)

    def name_of(self, logical_id: str) -> str:
        """Physical name."""
        resource = self._resource(logical_id, logical_id)
        own = (resource.get("Properties") or {}).get(_OWN_NAME.get(resource["Type"], ""))
        return self.prefix + (own if isinstance(own, str) else logical_id)

    def arn_of(self, logical_id: str) -> str:
        """ARN; log groups end in ``:*`` as CloudFormation has it."""
        kind = self._resource(logical_id, logical_id)["Type"]
        if kind not in _ARN_OF:
            raise TemplateError(f"{logical_id} ({kind}) has no ARN that the local cloud knows")
        service, prefix = _ARN_OF[kind]
        tail = ":*" if kind == "AWS::Logs::LogGroup" else ""
        region = "" if service == "iam" else REGION
        return arn(service, f"{prefix}{self.name_of(logical_id)}{tail}", region=region)

    def resolve(self, value: Any, where: str) -> Any:
        """Plain JSON for a value that may hold intrinsics; `where` is for the message.

        Raises:
            TemplateError: an intrinsic that cannot be resolved.
        """
        if isinstance(value, list):
            return [r for r in (self.resolve(v, where) for v in value) if r is not None]
        if isinstance(value, str):
            return self._localize(value)
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            key, argument = next(iter(value.items()))
            if key == "Ref":
                return self._ref(argument, where)
            if key.startswith("Fn::") or key == "Condition":
                return self._localize(self._intrinsic(key, argument, where))
        resolved = {k: self.resolve(v, f"{where}.{k}") for k, v in value.items()}
        return {k: v for k, v in resolved.items() if v is not None}

    def _intrinsic(self, name: str, argument: Any, where: str) -> Any:
        if name == "Fn::GetAtt":
            parts = argument.split(".", 1) if isinstance(argument, str) else argument
            return self._attribute(parts[0], parts[1], where)
        if name == "Fn::Join":
            return argument[0].join(str(p) for p in self.resolve(argument[1], where))
        if name == "Fn::Select":
            return self.resolve(argument[1], where)[int(argument[0])]
        if name == "Fn::Split":
            return self.resolve(argument[1], where).split(argument[0])
        if name == "Fn::Sub":
            text, variables = (argument, {}) if isinstance(argument, str) else argument
            return re.sub(
                r"\$\{([^!}][^}]*)\}", lambda m: str(self._substitute(m[1], variables, where)), text
            ).replace("${!", "${")
        raise TemplateError(f"{where}: the local cloud cannot resolve {name}")

    def _substitute(self, name: str, variables: Mapping[str, Any], where: str) -> Any:
        if name in variables:
            return self.resolve(variables[name], where)
        logical_id, dot, attribute = name.partition(".")
        return self._attribute(logical_id, attribute, where) if dot else self._ref(name, where)

    def _ref(self, logical_id: str, where: str) -> Any:
        if logical_id in PSEUDO:
            return PSEUDO[logical_id]
        if logical_id in self._parameters:
            if "Default" in self._parameters[logical_id]:
                return self._parameters[logical_id]["Default"]
            raise TemplateError(f"{where}: parameter {logical_id} has no default")
        kind = self._resource(logical_id, where)["Type"]
        if kind == "AWS::SQS::Queue":
            return f"{self._endpoint_url}/{ACCOUNT}/{self.name_of(logical_id)}"
        return self.arn_of(logical_id) if kind in _REF_IS_ARN else self.name_of(logical_id)

    def _attribute(self, logical_id: str, attribute: str, where: str) -> Any:
        kind = self._resource(logical_id, where)["Type"]
        if attribute == "Arn" or (kind, attribute) == ("AWS::SNS::Topic", "TopicArn"):
            return self.arn_of(logical_id)
        if attribute in ("Name", "QueueName", "TopicName"):
            return self.name_of(logical_id)
        if (kind, attribute) == ("AWS::ApiGatewayV2::Api", "ApiEndpoint"):
            return self.api_url
        if (kind, attribute) == ("AWS::ApiGatewayV2::Api", "ApiId"):
            return self.name_of(logical_id)
        raise TemplateError(
            f"{where}: the local cloud does not know attribute {attribute} of {logical_id} ({kind})"
        )

    def _resource(self, logical_id: str, where: str) -> Mapping[str, Any]:
        if logical_id not in self.resources:
            raise TemplateError(f"{where}: refers to {logical_id}, which the template does not have")
        return self.resources[logical_id]  # type: ignore[no-any-return]

    def _localize(self, value: Any) -> Any:
        """Point URLs of this template's HTTP API (built by Fn::Join in CDK) at the local front."""
        if not isinstance(value, str) or "execute-api" not in value:
            return value
        for logical_id, resource in self.resources.items():
            if resource["Type"] == "AWS::ApiGatewayV2::Api":
                host = f"https://{self.name_of(logical_id)}.execute-api.{REGION}.amazonaws.com"
                value = value.replace(host, self.api_url)
        return value
