"""The local cloud's own parts, over sockets and processes, with a template of a dozen resources."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from moto.stepfunctions.models import StateMachine

from emulator.cloud import LocalCloud
from emulator.lambda_runtime import LambdaRuntime
from emulator.stack import Stack
from tests.workflow.scenario import fetch, until

HANDLERS = "tests.workflow.sample_handlers"
WAITING = {
    "StartAt": "work",
    "States": {
        "work": {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke",
            "Parameters": {"FunctionName": "${function}", "Payload.$": "$"},
            "Retry": [{"ErrorEquals": ["ThrottledError"], "IntervalSeconds": 60, "MaxAttempts": 2}],
            "Catch": [{"ErrorEquals": ["ThrottledError"], "Next": "wait"}],
            "Next": "ask",
        },
        "wait": {"Type": "Wait", "Seconds": 60, "Next": "ask"},
        "ask": {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
            "Parameters": {"FunctionName": "${function}", "Payload": {"token.$": "$$.Task.Token"}},
            "End": True,
        },
    },
}


def function(handler: str, *, timeout: int = 30, **variables: str) -> dict[str, Any]:
    properties = {
        "Handler": f"{HANDLERS}.{handler}",
        "Timeout": timeout,
        "Environment": {"Variables": variables},
    }
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


def arn_of(name: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [name, "Arn"]}


TEMPLATE: dict[str, Any] = {
    "Resources": {
        "Bus": {"Type": "AWS::Events::EventBus", "Properties": {"Name": "tiny"}},
        "Dead": {"Type": "AWS::SQS::Queue"},
        "Queue": {
            "Type": "AWS::SQS::Queue",
            "Properties": {
                "VisibilityTimeout": 360,
                "RedrivePolicy": {"deadLetterTargetArn": arn_of("Dead"), "maxReceiveCount": 2},
            },
        },
        "Rule": {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "EventBusName": {"Ref": "Bus"},
                "EventPattern": {"source": ["tiny"]},
                "Targets": [{"Id": "q", "Arn": arn_of("Queue")}],
            },
        },
        "Topic": {"Type": "AWS::SNS::Topic"},
        "First": {
            "Type": "AWS::SNS::Subscription",
            "Properties": {
                "TopicArn": {"Ref": "Topic"},
                "Protocol": "email",
                "Endpoint": "first@example.com",
                "FilterPolicy": {"approver": ["first@example.com"]},
            },
        },
        "EchoFunction": function("echo", SHOWN="yes"),
        "ObeyFunction": function("obey", timeout=2),
        "ConsumeFunction": function("consume"),
        "PageFunction": function("page"),
        "BrokenFunction": function("not_there"),
        "UnimportableFunction": {
            "Type": "AWS::Lambda::Function",
            "Properties": {"Handler": "no.such.module.handler"},
        },
        "Mapping": {
            "Type": "AWS::Lambda::EventSourceMapping",
            "Properties": {
                "EventSourceArn": arn_of("Queue"),
                "FunctionName": {"Ref": "ConsumeFunction"},
                "BatchSize": 10,
                "FunctionResponseTypes": ["ReportBatchItemFailures"],
            },
        },
        "Machine": {
            "Type": "AWS::StepFunctions::StateMachine",
            "Properties": {
                "DefinitionString": json.dumps(WAITING),
                "DefinitionSubstitutions": {"function": {"Ref": "ObeyFunction"}},
                "RoleArn": "arn:aws:iam::123456789012:role/r",
            },
        },
        "Api": {"Type": "AWS::ApiGatewayV2::Api", "Properties": {"ProtocolType": "HTTP"}},
        "Stage": {
            "Type": "AWS::ApiGatewayV2::Stage",
            "Properties": {"ApiId": {"Ref": "Api"}, "StageName": "$default"},
        },
        "Integration": {
            "Type": "AWS::ApiGatewayV2::Integration",
            "Properties": {"IntegrationUri": arn_of("PageFunction"), "PayloadFormatVersion": "2.0"},
        },
        "Route": {
            "Type": "AWS::ApiGatewayV2::Route",
            "Properties": {
                "RouteKey": "POST /things/{thing}",
                "Target": {"Fn::Join": ["/", ["integrations", {"Ref": "Integration"}]]},
            },
        },
    }
}


@pytest.fixture(scope="module")
def tiny(cloud: LocalCloud) -> Iterator[Stack]:
    with cloud.another_stack(TEMPLATE, prefix="tiny-") as stack:
        yield stack


@pytest.fixture(scope="module")
def runtime(tiny: Stack) -> LambdaRuntime:
    assert tiny.runtime is not None
    return tiny.runtime


def test_a_function_sees_exactly_the_variables_of_the_template_and_lambdas_own(
    runtime: LambdaRuntime,
) -> None:
    seen = runtime.invoke("EchoFunction", {}).json()["environment"]
    platform = {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"}  # put in by Python and macOS themselves
    assert set(seen) - platform == {
        "SHOWN",
        "AWS_ACCESS_KEY_ID", "AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
        "AWS_LAMBDA_FUNCTION_NAME", "AWS_REGION", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE",
        "NO_PROXY", "PATH", "PYTHONPATH",
    }  # fmt: skip
    assert seen["SHOWN"] == "yes"


def test_a_process_lives_on_between_invocations(runtime: LambdaRuntime) -> None:
    first = runtime.invoke("EchoFunction", {"n": 1}).json()
    second = runtime.invoke(f"arn:aws:lambda:us-east-1:123456789012:function:{first['function']}", {}).json()
    assert second["pid"] == first["pid"]
    assert second["calls"] == first["calls"] + 1
    assert second["number"] == 3
    assert 0 < second["left"] <= 30_000


@pytest.mark.parametrize(
    ("fail", "error_type"),
    [
        ("raise", "ThrottledError"),
        ("sleep", "Sandbox.Timedout"),
        ("exit", "Runtime.ExitError"),
        ("die", "Runtime.ExitError"),
        ("marshal", "Runtime.MarshalError"),
    ],
)
def test_a_failure_is_reported_as_the_runtime_does_and_the_next_call_works(
    runtime: LambdaRuntime, fail: str, error_type: str
) -> None:
    outcome = runtime.invoke("ObeyFunction", {"fail": fail})
    assert outcome.failed
    assert outcome.json()["errorType"] == error_type
    assert runtime.invoke("ObeyFunction", {}).json()["done"] is True


@pytest.mark.parametrize(
    ("name", "error_type"),
    [
        ("BrokenFunction", "Runtime.HandlerNotFound"),
        ("UnimportableFunction", "Runtime.ImportModuleError"),
    ],
)
def test_a_handler_that_cannot_be_loaded_fails_every_call(
    runtime: LambdaRuntime, name: str, error_type: str
) -> None:
    assert runtime.invoke(name, {}).json()["errorType"] == error_type
    assert runtime.invoke(name, {}).failed


def test_what_a_function_prints_goes_to_its_log(runtime: LambdaRuntime) -> None:
    runtime.invoke("ObeyFunction", {"mark": "of-this-test"})
    assert "of-this-test" in (runtime.folder / "ObeyFunction.log").read_text()


def test_boto3_invoke_reports_a_function_error(cloud: LocalCloud, tiny: Stack) -> None:
    client = cloud.client("lambda")
    answer = client.invoke(FunctionName="tiny-ObeyFunction", Payload=b'{"fail": "raise"}')
    assert answer["FunctionError"] == "Unhandled"
    assert json.load(answer["Payload"])["errorType"] == "ThrottledError"
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke(FunctionName="nobody")


def test_messages_that_fail_come_again_and_end_among_the_dead_letters(cloud: LocalCloud, tiny: Stack) -> None:
    for word in ("good", "bad", "good"):
        _put(cloud, tiny, word)
    until(lambda: True if _depth(cloud, "tiny-Dead") == 1 else None, "the dead letter")
    assert _depth(cloud, "tiny-Queue") == 0


def test_a_batch_whose_function_crashes_is_delivered_again_as_a_whole(cloud: LocalCloud, tiny: Stack) -> None:
    before = _depth(cloud, "tiny-Dead")
    _put(cloud, tiny, "crash")
    until(lambda: True if _depth(cloud, "tiny-Dead") == before + 1 else None, "the dead letter")


def test_mail_goes_to_the_approver_that_its_attribute_names(cloud: LocalCloud, tiny: Stack) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:tiny-Topic"
    for address in ("other@example.com", "first@example.com"):
        cloud.client("sns").publish(
            TopicArn=topic,
            Subject=f"to {address}",
            Message="line 1\nline 2  \n",
            MessageAttributes={"approver": {"DataType": "String", "StringValue": address}},
        )
    mail = cloud.mailbox.wait_for(lambda m: m.topic_arn == topic)
    assert (mail.to, mail.subject, mail.body) == (
        "first@example.com", "to first@example.com", "line 1\nline 2  \n",
    )  # fmt: skip
    assert len([m for m in cloud.mailbox if m.topic_arn == topic]) == 1


@pytest.mark.parametrize("subject", ["two\nlines", "x" * 100, "Prüfung"])
def test_a_subject_that_sns_refuses_is_refused(cloud: LocalCloud, tiny: Stack, subject: str) -> None:
    client = cloud.client("sns")
    attributes = {"approver": {"DataType": "String", "StringValue": "first@example.com"}}
    with pytest.raises(client.exceptions.InvalidParameterException):
        client.publish(
            TopicArn="arn:aws:sns:us-east-1:123456789012:tiny-Topic",
            Subject=subject,
            Message="m",
            MessageAttributes=attributes,
        )


def test_a_form_arrives_as_api_gateway_sends_it(tiny: Stack) -> None:
    url = f"{tiny.review_url}/things/a%20b?x=1&x=2"
    answer = fetch("POST", url, {"k": "v w"}, **{"Cookie": "s=1; t=2", "X-Mixed-Case": "yes"})
    event = json.loads(answer.text)
    assert answer.status == 201
    assert answer.headers["x-kind"] == "page"
    assert event["version"] == "2.0"
    assert event["routeKey"] == "POST /things/{thing}"
    assert event["rawQueryString"] == "x=1&x=2"
    assert event["queryStringParameters"] == {"x": "1,2"}
    assert event["pathParameters"] == {"thing": "a b"}
    assert event["isBase64Encoded"] is True
    assert base64.b64decode(event["body"]) == b"k=v+w"
    assert event["cookies"] == ["s=1", "t=2"]
    assert event["headers"]["x-mixed-case"] == "yes"
    assert "cookie" not in event["headers"]
    assert event["requestContext"]["http"]["method"] == "POST"
    assert event["requestContext"]["stage"] == "$default"


@pytest.mark.parametrize(("method", "path"), [("GET", "/things/a"), ("POST", "/"), ("POST", "/things/a/b")])
def test_what_is_no_route_is_404(tiny: Stack, method: str, path: str) -> None:
    answer = fetch(method, f"{tiny.review_url}{path}")
    assert (answer.status, json.loads(answer.text)) == (404, {"message": "Not Found"})


def test_retries_and_waits_are_scaled_and_named_by_the_error_class(cloud: LocalCloud, tiny: Stack) -> None:
    begin = time.monotonic()
    arn = _start(cloud, tiny, {"fail": "raise"})
    until(lambda: True if "ask" in tiny.states_entered(arn) else None, "the callback")
    assert tiny.states_entered(arn)[:2] == ["work", "wait"]
    assert time.monotonic() - begin < 30  # 60 s and 120 s of retries and 60 s of waiting in real time
    cloud.client("stepfunctions").stop_execution(executionArn=arn, error="Test.Over", cause="done")
    stopped = tiny.wait_for_execution(arn, 10)
    assert (stopped["status"], stopped["error"]) == ("ABORTED", "Test.Over")


def test_a_failed_callback_keeps_its_cause(cloud: LocalCloud, tiny: Stack) -> None:
    states = cloud.client("stepfunctions")
    arn = _start(cloud, tiny, {})
    token = until(lambda: _token(tiny, arn), "the task token")
    states.send_task_failure(taskToken=token, error="Human.Said", cause="no thanks")
    failed = tiny.wait_for_execution(arn, 10)
    assert (failed["status"], failed["error"], failed["cause"]) == ("FAILED", "Human.Said", "no thanks")


def test_executions_without_a_name_do_not_collide(cloud: LocalCloud, tiny: Stack) -> None:
    arns = {_start(cloud, tiny, {}) for _ in range(3)}
    assert len(arns) == 3
    for arn in arns:
        cloud.client("stepfunctions").stop_execution(executionArn=arn)


def test_one_name_started_by_many_threads_runs_once(
    cloud: LocalCloud, tiny: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = StateMachine._handle_name_input_idempotency

    def slowly(self: Any, *args: Any) -> Any:
        found = look_up(self, *args)
        time.sleep(0.05)  # between moto's look-up and its append
        return found

    monkeypatch.setattr(StateMachine, "_handle_name_input_idempotency", slowly)
    results: list[str] = []

    def start(number: int) -> None:
        try:
            results.append(_start(cloud, tiny, {"n": number}, name="just-one"))
        except botocore.exceptions.ClientError as e:
            results.append(e.response["Error"]["Code"])

    threads = [threading.Thread(target=start, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results.count("ExecutionAlreadyExists") == 5
    cloud.client("stepfunctions").stop_execution(executionArn=next(r for r in results if r.startswith("arn")))


def test_a_second_local_cloud_in_one_process_is_refused(cloud: LocalCloud) -> None:
    with (
        pytest.raises(RuntimeError, match="runs in this process already"),
        LocalCloud(TEMPLATE, nodes=1, gpus_per_node=1),
    ):
        pass
    assert cloud.client("sqs").list_queues()["QueueUrls"]


def test_it_closes_without_warnings_threads_or_processes(tmp_path: Path) -> None:
    script = tmp_path / "once.py"
    script.write_text(
        "import json, sys, threading\n"
        "from emulator.cloud import LocalCloud\n"
        "from tests.workflow.test_local_cloud import TEMPLATE\n"
        "for _ in range(2):\n"
        "    with LocalCloud(TEMPLATE, nodes=2, gpus_per_node=1) as cloud:\n"
        "        pid = cloud.runtime.invoke('EchoFunction', {}).json()['pid']\n"
        "        states = cloud.client('stepfunctions')\n"
        "        states.start_execution(stateMachineArn=cloud.state_machine_arn, input='{}')\n"
        "        cloud.client('events').put_events(Entries=[{'Source': 'tiny', 'DetailType': 'x',\n"
        "            'Detail': '{}', 'EventBusName': cloud.event_bus_name}])\n"
        "threads = [t.name for t in threading.enumerate() if t.name.startswith('emulator')]\n"
        "print(json.dumps({'pid': pid, 'threads': threads}))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["threads"] == []
    with pytest.raises(ProcessLookupError):
        os.kill(report["pid"], 0)


def _put(cloud: LocalCloud, stack: Stack, word: str) -> None:
    entry = {
        "Source": "tiny",
        "DetailType": "Tiny",
        "Detail": json.dumps({"word": word}),
        "EventBusName": stack.event_bus_name,
    }
    assert cloud.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0


def _depth(cloud: LocalCloud, queue: str) -> int:
    sqs = cloud.client("sqs")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(attributes[n]) for n in names)


def _start(cloud: LocalCloud, stack: Stack, event: dict[str, Any], **more: str) -> str:
    answer = cloud.client("stepfunctions").start_execution(
        stateMachineArn=stack.state_machine_arn, input=json.dumps(event), **more
    )
    return str(answer["executionArn"])


def _token(stack: Stack, arn: str) -> str | None:
    for event in stack.history(arn):
        details = event.get("taskScheduledEventDetails", {})
        if "waitForTaskToken" in details.get("resource", ""):
            return str(json.loads(details["parameters"])["Payload"]["token"])
    return None
