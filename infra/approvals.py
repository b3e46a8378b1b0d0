"""The human's side: one topic that mails approvers, one HTTP API that serves the page behind the link.

In: addresses of approvers. Out: `Approvals` (topic, API), then `serve` connects the page's two functions and
`serve_signed` the route for signed requests. GET, HEAD and POST of the page are public because a mailed link
is: its secret is the authority, and GET changes nothing. Every other route asks IAM.
"""

from __future__ import annotations

import json

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk.aws_apigatewayv2_authorizers import HttpIamAuthorizer
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from .config import Deployment
from .encryption import Encryption
from .log_groups import log_group, vended
from .logical_ids import fix

APPROVER_ATTRIBUTE = "approver"  # message attribute: one publish for each approver, each gets only its own
PATH = "/review/{secret}"
GET, HEAD, POST = apigateway.HttpMethod.GET, apigateway.HttpMethod.HEAD, apigateway.HttpMethod.POST

SIGNED = (
    ("/incidents", GET),
    ("/incidents/{incident_id}", GET),
    ("/incidents/{incident_id}/decision", POST),
    ("/incidents/{incident_id}/release", POST),
    ("/breaker", POST),
)


class Approvals(Construct):
    """Topic, subscriptions and the review API."""

    def __init__(self, scope: Construct, config: Deployment, encryption: Encryption) -> None:
        super().__init__(scope, "Approvals")
        self.topic = fix(
            sns.Topic(self, "ApprovalTopic", enforce_ssl=True, master_key=encryption.key), "ApprovalTopic"
        )
        for address in config.approvers:
            only_its_own = sns.SubscriptionFilter.string_filter(allowlist=[address])
            self.topic.add_subscription(
                subscriptions.EmailSubscription(address, filter_policy={APPROVER_ATTRIBUTE: only_its_own})
            )
        self.api = fix(
            apigateway.HttpApi(
                self,
                "ReviewApi",
                description="Review page of silent data corruption incidents; only the mailed link opens it",
                create_default_stage=False,
            ),
            "ReviewApi",
        )
        self._stage(config)

    @property
    def url(self) -> str:
        """Where the page is served; a link is `{url}/review/{secret}`."""
        return self.api.api_endpoint

    def serve(self, show: lambda_.Function, decide: lambda_.Function) -> None:
        """GET and HEAD show, POST decides; there is no other public route."""
        for name, function, methods in (("Show", show, [GET, HEAD]), ("Decide", decide, [POST])):
            self.api.add_routes(path=PATH, methods=methods, integration=HttpLambdaIntegration(name, function))

    def serve_signed(self, function: lambda_.Function) -> None:
        """The same decision for a caller whom IAM knows; who called is recorded."""
        integration = HttpLambdaIntegration("Signed", function)
        for path, method in SIGNED:
            self.api.add_routes(
                path=path, methods=[method], integration=integration, authorizer=HttpIamAuthorizer()
            )
        arns = [
            cdk.Stack.of(self)
            .format_arn(
                service="execute-api",
                resource=self.api.api_id,
                resource_name=f"$default/{method.value}{path}",
            )
            .replace("{incident_id}", "*")
            for path, method in SIGNED
        ]
        document = iam.PolicyDocument(
            statements=[iam.PolicyStatement(actions=["execute-api:Invoke"], resources=arns)]
        )
        policy = iam.ManagedPolicy(
            self,
            "SignedApproverPolicy",
            description="For people who decide by signed requests, and for nobody else",
            document=document,
        )
        fix(policy, "SignedApproverPolicy")

    def _stage(self, config: Deployment) -> None:
        access_log = log_group(self, "ReviewAccessLog", config, vended("apis", config))
        apigateway.CfnStage(
            self,
            "ReviewStage",
            api_id=self.api.api_id,
            stage_name="$default",
            auto_deploy=True,
            default_route_settings=apigateway.CfnStage.RouteSettingsProperty(
                throttling_burst_limit=20, throttling_rate_limit=10
            ),
            access_log_settings=apigateway.CfnStage.AccessLogSettingsProperty(
                destination_arn=access_log.log_group_arn, format=ACCESS_LOG_FORMAT
            ),
        )


# Neither the path nor the query: the path holds the link's secret. The route key says which route it was.
ACCESS_LOG_FORMAT = json.dumps(
    {
        name: f"$context.{name}"
        for name in (
            "requestId",
            "requestTime",
            "routeKey",
            "status",
            "responseLength",
            "integrationErrorMessage",
        )
    }
)
