"""One DynamoDB table: plain Python in and out, consistent reads, conditional writes that say who won."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

from .aws import client, code_of, translated

Item = dict[str, Any]
_serialize, _deserialize = TypeSerializer().serialize, TypeDeserializer().deserialize


class Table:
    """Thin wrapper of one table; expressions are DynamoDB's own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, key: Item, *, attributes: tuple[str, ...] = ()) -> Item | None:
        """Read strongly consistent; with `attributes` nothing else leaves the table."""
        extra: Item = {}
        if attributes:
            names = {f"#a{i}": a for i, a in enumerate(attributes)}
            extra = {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
        with translated(f"read of {self.name}"):
            answer = client("dynamodb").get_item(
                TableName=self.name, Key=to_wire(key), ConsistentRead=True, **extra
            )
        return from_wire(answer["Item"]) if "Item" in answer else None

    def put(
        self, item: Item, condition: str = "", values: Item | None = None, names: Item | None = None
    ) -> bool:
        """Write; False when the condition did not hold."""
        return _won(
            f"write to {self.name}",
            lambda: client("dynamodb").put_item(
                TableName=self.name, Item=to_wire(item), **_expressions(condition, values, names)
            ),
        )

    def update(
        self, key: Item, update: str, values: Item, condition: str = "", names: Item | None = None
    ) -> bool:
        """Update; False when the condition did not hold."""
        return _won(
            f"update of {self.name}",
            lambda: client("dynamodb").update_item(
                TableName=self.name,
                Key=to_wire(key),
                UpdateExpression=update,
                **_expressions(condition, values, names),
            ),
        )

    def delete(self, key: Item, condition: str = "", values: Item | None = None) -> bool:
        """Delete; False when the condition did not hold."""
        return _won(
            f"delete in {self.name}",
            lambda: client("dynamodb").delete_item(
                TableName=self.name, Key=to_wire(key), **_expressions(condition, values, None)
            ),
        )

    def query(self, condition: str, values: Item) -> list[Item]:
        """All pages of one partition, strongly consistent, in the order of the sort key."""
        items: list[Item] = []
        start: Item = {}
        while True:
            with translated(f"query of {self.name}"):
                answer = client("dynamodb").query(
                    TableName=self.name, ConsistentRead=True, **_expressions("", values, None),
                    KeyConditionExpression=condition, **start,
                )  # fmt: skip
            items += [from_wire(i) for i in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return items
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def transact_put(self, puts: list[tuple[Item, str, Item]]) -> bool:
        """Write all of (item, condition, values), or none; False when a condition did not hold."""
        entries = [
            {"Put": {"TableName": self.name, "Item": to_wire(item), **_expressions(condition, values, None)}}
            for item, condition, values in puts
        ]
        return _won(
            f"transaction on {self.name}",
            lambda: client("dynamodb").transact_write_items(TransactItems=entries),
        )


def to_wire(item: Item) -> Item:
    """DynamoDB's attribute values; None is left out."""
    return {k: _serialize(v) for k, v in item.items() if v is not None}


def from_wire(item: Item) -> Item:
    return {k: _plain(_deserialize(v)) for k, v in item.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _expressions(condition: str, values: Item | None, names: Item | None) -> Item:
    out: Item = {}
    if condition:
        out["ConditionExpression"] = condition
    if values:
        out["ExpressionAttributeValues"] = {k: _serialize(v) for k, v in values.items()}
    if names:
        out["ExpressionAttributeNames"] = names
    return out


def _won(action: str, call: Any) -> bool:
    with translated(action):
        try:
            call()
        except ClientError as e:
            if code_of(e) == "ConditionalCheckFailedException":
                return False
            reasons = [r.get("Code") for r in e.response.get("CancellationReasons", [])]
            if code_of(e) == "TransactionCanceledException" and "ConditionalCheckFailed" in reasons:
                return False
            raise
    return True
