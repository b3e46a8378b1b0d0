"""Where alarms on the pipeline itself go: the operator's own topic, or one that this stack makes.

In: `alarm_topic_arn`, or addresses. Out: `Operators.topic`; CloudWatch and EventBridge may publish on it.
Next: `monitoring.py`. A chat channel listens to the same topic.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_chatbot as chatbot
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from .config import Deployment
from .encryption import Encryption
from .logical_ids import fix

PUBLISHERS = ("cloudwatch.amazonaws.com", "events.amazonaws.com")


class Operators(Construct):
    """One topic, whoever owns it."""

    def __init__(self, scope: Construct, config: Deployment, encryption: Encryption) -> None:
        super().__init__(scope, "Operators")
        self.topic: sns.ITopic
        if config.alarm_topic_arn:
            self.topic = sns.Topic.from_topic_arn(self, "OperatorTopic", config.alarm_topic_arn)
        else:
            self.topic = self._own(config, encryption)
        if config.slack_workspace_id and config.slack_channel_id:
            self._chat(config, config.slack_workspace_id, config.slack_channel_id)

    def _own(self, config: Deployment, encryption: Encryption) -> sns.Topic:
        topic = fix(
            sns.Topic(self, "OperatorTopic", enforce_ssl=True, master_key=encryption.key), "OperatorTopic"
        )
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsOfThisAccount",
                principals=[iam.ServicePrincipal(PUBLISHERS[0])],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}},
            )
        )
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="EventsOfThisAccount",  # EventBridge takes no condition in a topic's policy
                principals=[iam.ServicePrincipal(PUBLISHERS[1])],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
            )
        )
        for address in config.operators or config.approvers:
            topic.add_subscription(subscriptions.EmailSubscription(address))
        output = cdk.CfnOutput(
            self, "OperatorTopicArn", value=topic.topic_arn, description="whose subscribers hear of alarms"
        )
        fix(output, "OperatorTopicArn")
        return topic

    def _chat(self, config: Deployment, workspace: str, channel: str) -> None:
        """A Slack channel by Amazon Q Developer in chat applications; it may read nothing."""
        role = iam.Role(
            self,
            "ChatRole",
            description="Silent data corruption pipeline: the chat channel, without a permission",
            assumed_by=iam.ServicePrincipal("chatbot.amazonaws.com"),
        )
        channel_of_operators = chatbot.CfnSlackChannelConfiguration(
            self,
            "ChatChannel",
            configuration_name=f"training-sdc-{config.cluster_name}",
            iam_role_arn=fix(role, "ChatRole").role_arn,
            slack_workspace_id=workspace,
            slack_channel_id=channel,
            sns_topic_arns=[self.topic.topic_arn],
            guardrail_policies=[f"arn:{cdk.Stack.of(self).partition}:iam::aws:policy/AWSDenyAll"],
        )
        fix(channel_of_operators, "ChatChannel")
