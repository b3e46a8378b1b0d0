"""AWS as the command line asks it: recorded answers by service and operation; anything else is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from training_agent.cli.aws import Answer, Aws


class FakeAws(Aws):
    """Answers from two tables: client calls, and signed requests."""

    def __init__(
        self,
        calls: Mapping[tuple[str, str], Any] | None = None,
        signed: Mapping[tuple[str, str], Answer] | None = None,
        telemetry: Any = None,
    ) -> None:
        super().__init__("us-east-1")
        self._calls, self._answers, self._telemetry = dict(calls or {}), dict(signed or {}), telemetry
        self.sent: list[tuple[str, str, Any]] = []

    def client(self, service: str) -> Any:
        return _Client(service, self._calls)

    def signed(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Answer:
        path = url.removeprefix("https://api")
        self.sent.append((method, path, body))
        return self._answers[method, path]

    def prometheus(self, base: str, query: str) -> Answer:
        self.sent.append(("GET", base, query))
        return Answer(200, self._telemetry)


class _Client:
    def __init__(self, service: str, calls: Mapping[tuple[str, str], Any]) -> None:
        self._service, self._calls = service, calls

    def get_paginator(self, operation: str) -> Any:
        client = self

        class Paginator:
            def paginate(self, **parameters: Any) -> list[Any]:
                return [getattr(client, operation)(**parameters)]

        return Paginator()

    def __getattr__(self, operation: str) -> Any:
        answer = self._calls[self._service, operation]

        def call(**parameters: Any) -> Any:
            if isinstance(answer, str):
                raise ClientError({"Error": {"Code": answer, "Message": f"{operation}: {answer}"}}, operation)
            return answer(parameters) if callable(answer) else answer

        return call
