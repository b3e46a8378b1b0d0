"""The approval topic: one e-mail subscription per approver, one publish each (filtered on `approver`)."""

from __future__ import annotations

from .aws import client, translated


class ApprovalTopic:
    """Implements `ports.Mail`."""

    def __init__(self, topic_arn: str) -> None:
        self._arn = topic_arn

    def approvers(self) -> tuple[str, ...]:
        """Addresses whose subscription is confirmed; a pending one has no ARN yet."""
        found: list[str] = []
        page: dict[str, str] = {}
        while True:
            with translated("ListSubscriptionsByTopic"):
                answer = client("sns").list_subscriptions_by_topic(TopicArn=self._arn, **page)
            found += [
                s["Endpoint"]
                for s in answer["Subscriptions"]
                if s["Protocol"] == "email" and s["SubscriptionArn"].startswith("arn:")
            ]
            if not answer.get("NextToken"):
                return tuple(sorted(set(found)))
            page = {"NextToken": answer["NextToken"]}

    def send(self, approver: str, subject: str, body: str) -> None:
        with translated("Publish"):
            client("sns").publish(
                TopicArn=self._arn,
                Subject=subject,
                Message=body,
                MessageAttributes={"approver": {"DataType": "String", "StringValue": approver}},
            )
