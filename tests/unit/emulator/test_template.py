"""The template resolver: what it cannot resolve or does not know is an error that names the place."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.plan import definition_of, read
from emulator.template import Template, TemplateError

QUEUE = {"Type": "AWS::SQS::Queue"}


def template(resources: dict[str, Any], prefix: str = "", **more: Any) -> Template:
    content = {"Resources": resources, **more}
    return Template(content, endpoint_url="http://aws", api_url="http://page", prefix=prefix)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"Ref": "Queue"}, "http://aws/123456789012/Queue"),
        ({"Ref": "Topic"}, "arn:aws:sns:us-east-1:123456789012:Topic"),
        ({"Ref": "Table"}, "Table"),
        ({"Ref": "Bus"}, "named"),
        ({"Ref": "AWS::Region"}, "us-east-1"),
        ({"Ref": "Given"}, "default"),
        ({"Fn::GetAtt": ["Queue", "Arn"]}, "arn:aws:sqs:us-east-1:123456789012:Queue"),
        ({"Fn::GetAtt": "Bus.Arn"}, "arn:aws:events:us-east-1:123456789012:event-bus/named"),
        ({"Fn::GetAtt": ["Role", "Arn"]}, "arn:aws:iam::123456789012:role/Role"),
        ({"Fn::GetAtt": ["Api", "ApiEndpoint"]}, "http://page"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Table"}]]}, "a-Table"),
        ({"Fn::Sub": "${AWS::Partition}/${Table}/${Queue.QueueName}/${!kept}"}, "aws/Table/Queue/${kept}"),
        ({"Fn::Sub": ["${x}", {"x": {"Ref": "Table"}}]}, "Table"),
        ({"Fn::Select": [1, {"Fn::Split": [":", "a:b:c"]}]}, "b"),
        (
            {"Fn::Join": ["", ["https://", {"Ref": "Api"}, ".execute-api.us-east-1.amazonaws.com/review"]]},
            "http://page/review",
        ),
        ([1, {"Ref": "AWS::NoValue"}, True], [1, True]),
        ({"a": {"Ref": "AWS::NoValue"}, "b": None}, {}),
    ],
)
def test_intrinsics_resolve(value: Any, expected: Any) -> None:
    resources = {
        "Queue": QUEUE,
        "Topic": {"Type": "AWS::SNS::Topic"},
        "Table": {"Type": "AWS::DynamoDB::Table"},
        "Bus": {"Type": "AWS::Events::EventBus", "Properties": {"Name": "named"}},
        "Role": {"Type": "AWS::IAM::Role"},
        "Api": {"Type": "AWS::ApiGatewayV2::Api"},
    }
    parameters = {"Given": {"Type": "String", "Default": "default"}}
    assert template(resources, Parameters=parameters).resolve(value, "here") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"Ref": "Gone"}, "here: refers to Gone"),
        ({"Fn::GetAtt": ["Gone", "Arn"]}, "here: refers to Gone"),
        ({"Fn::GetAtt": ["Queue", "Colour"]}, "attribute Colour of Queue"),
        ({"Fn::ImportValue": "x"}, "here: the local cloud cannot resolve Fn::ImportValue"),
        ({"Ref": "Unset"}, "parameter Unset has no default"),
    ],
)
def test_what_cannot_be_resolved_is_an_error_that_names_the_place(value: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        template({"Queue": QUEUE}, Parameters={"Unset": {"Type": "String"}}).resolve(value, "here")


def test_an_unknown_resource_type_is_refused_by_name() -> None:
    with pytest.raises(TemplateError, match="AWS::Kinesis::Stream"):
        template({"Stream": {"Type": "AWS::Kinesis::Stream"}})


def test_an_empty_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="no resources"):
        template({})


def test_what_is_left_out_is_listed_by_name() -> None:
    assert template({"Queue": QUEUE, "Role": {"Type": "AWS::KMS::Key"}}).left_out() == ["AWS::KMS::Key Role"]


def test_a_prefix_keeps_two_stacks_apart() -> None:
    resources = {"Queue": QUEUE, "Bus": {"Type": "AWS::Events::EventBus", "Properties": {"Name": "named"}}}
    second = template(resources, prefix="two-")
    assert second.name_of("Queue") == "two-Queue"
    assert second.name_of("Bus") == "two-named"
    assert second.arn_of("Queue").endswith(":two-Queue")


def function(**variables: Any) -> dict[str, Any]:
    return {
        "Type": "AWS::Lambda::Function",
        "Properties": {"Handler": "a.b", "Environment": {"Variables": variables}},
    }


def test_overrides_replace_values_and_never_add_a_variable() -> None:
    source = template({"F": function(MODE="observe", A="1"), "G": function(A="1")})
    plan = read(source, {"*": {"MODE": "replace"}, "G": {"A": "2"}})
    assert plan.functions["F"].variables == {"MODE": "replace", "A": "1"}
    assert plan.functions["G"].variables == {"A": "2"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"F": {"NEW": "1"}}, "gives it no variable"),
        ({"H": {"A": "1"}}, "functions that the template does not have"),
    ],
)
def test_overrides_that_name_nothing_are_refused(overrides: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        read(template({"F": function(A="1")}), overrides)


def test_an_api_without_a_stage_serves_nothing_and_another_stage_is_refused() -> None:
    resources: dict[str, Any] = {
        "F": function(),
        "Integration": {
            "Type": "AWS::ApiGatewayV2::Integration",
            "Properties": {"IntegrationUri": {"Fn::GetAtt": ["F", "Arn"]}, "PayloadFormatVersion": "2.0"},
        },
        "Route": {
            "Type": "AWS::ApiGatewayV2::Route",
            "Properties": {"RouteKey": "GET /x", "Target": "integrations/Integration"},
        },
    }
    assert read(template(resources), {}).routes == []
    stage = {"Type": "AWS::ApiGatewayV2::Stage", "Properties": {"StageName": "$default"}}
    assert [r.key for r in read(template(resources | {"Stage": stage}), {}).routes] == ["GET /x"]
    stage["Properties"] = {"StageName": "prod"}
    with pytest.raises(TemplateError, match="prod"):
        read(template(resources | {"Stage": stage}), {})


def test_a_disabled_mapping_feeds_nobody() -> None:
    properties = {"EventSourceArn": "arn:aws:sqs:r:a:Queue", "FunctionName": "F", "Enabled": False}
    mapping = {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}
    assert read(template({"Mapping": mapping}), {}).mappings == []


def test_substitutions_of_a_definition_are_made() -> None:
    machine = {"DefinitionString": '{"a": "${f}"}', "DefinitionSubstitutions": {"f": "arn"}}
    assert definition_of(machine) == '{"a": "arn"}'
    with pytest.raises(TemplateError, match="no inline definition"):
        definition_of({"DefinitionS3Location": {}})
