"""SQS to Lambda, as an event source mapping does it; moto calls a failing handler once and loses the message.

In: messages of one queue. Out: batches to one function. What succeeded is deleted. What failed stays
invisible until the queue's visibility timeout ends (scaled), comes again, and after maxReceiveCount goes to
the dead letters (moto moves it). A function that answers with ReportBatchItemFailures fails single messages
only.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from .lambda_runtime import Outcome
from .names import ACCOUNT, REGION, arn
from .plan import QueueMapping
from .timers import Timers

log = logging.getLogger(__name__)
POLL_SECONDS = 0.02


class QueuePump:
    """One mapping, one thread.

    Args:
        client: SQS client.
        visibility_seconds: the queue's visibility timeout, real seconds.
    """

    def __init__(
        self,
        mapping: QueueMapping,
        client: Any,
        invoke: Callable[[str, Any], Outcome],
        timers: Timers,
        *,
        visibility_seconds: float,
    ) -> None:
        self.mapping = mapping
        self._client, self._invoke, self._timers = client, invoke, timers
        self._visibility_seconds = visibility_seconds
        self._url = client.get_queue_url(QueueName=mapping.queue)["QueueUrl"]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"emulator-pump-{mapping.queue}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the batch in hand and stop."""
        self._closed.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                while not self._closed.is_set() and self._has_messages() and self._pump():
                    pass
            except Exception:
                log.exception("the pump of queue %s failed; it goes on", self.mapping.queue)

    def _has_messages(self) -> bool:
        backends = importlib.import_module("moto.sqs.models").sqs_backends
        return any(m.visible for m in list(backends[ACCOUNT][REGION].queues[self.mapping.queue].messages))

    def _pump(self) -> bool:
        batch = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=self.mapping.batch_size,
            MessageSystemAttributeNames=["All"],
        ).get("Messages", [])
        if not batch:
            return False
        outcome = self._invoke(self.mapping.function, {"Records": [self._record(m) for m in batch]})
        failed = self._failed(outcome, [m["MessageId"] for m in batch])
        for message in batch:
            if message["MessageId"] in failed:
                handle = message["ReceiptHandle"]
                self._timers.after(self._visibility_seconds, lambda h=handle: self._show_again(h))  # type: ignore[misc]
            else:
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return True

    def _show_again(self, receipt_handle: str) -> None:
        if not self._closed.is_set():
            self._client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=receipt_handle, VisibilityTimeout=0
            )

    def _failed(self, outcome: Outcome, ids: list[str]) -> set[str]:
        """Ids to be delivered again; an answer that AWS cannot read fails the whole batch."""
        if outcome.failed:
            return set(ids)
        answer = outcome.json()
        if not self.mapping.partial_failures or not answer:
            return set()
        try:
            failed = {f["itemIdentifier"] for f in answer.get("batchItemFailures") or []}
        except (AttributeError, KeyError, TypeError):
            return set(ids)
        return failed if failed <= set(ids) else set(ids)

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": message.get("MessageAttributes", {}),
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": arn("sqs", self.mapping.queue),
            "awsRegion": REGION,
        }


def redrive_attributes(properties: dict[str, Any]) -> dict[str, str]:
    """SQS attributes of a queue of the template that matter locally."""
    attributes = {}
    if "VisibilityTimeout" in properties:
        attributes["VisibilityTimeout"] = str(properties["VisibilityTimeout"])
    if policy := properties.get("RedrivePolicy"):
        attributes["RedrivePolicy"] = json.dumps(policy)
    return attributes
