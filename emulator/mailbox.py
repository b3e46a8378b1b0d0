"""The approvers' mailbox: e-mail subscriptions of the template, confirmed. In: SNS publishes that a
subscription's filter policy lets through. Out: `Mail` values, in order of arrival, and a way to wait for
one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import overload


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail as SNS sends it; `body` is the message unchanged."""

    to: str
    subject: str
    body: str
    time: datetime
    topic_arn: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


class SubjectError(ValueError):
    """SNS refuses this subject."""


def check_subject(subject: str) -> None:
    """SNS's rule: ASCII, under 100 characters, one line, begins with a letter, number or punctuation mark.

    Raises:
        SubjectError: it breaks the rule.
    """
    if not subject.isascii() or not subject.isprintable() or len(subject) >= 100 or subject[:1].isspace():
        raise SubjectError(f"Invalid parameter: Subject {subject!r}")


class Mailbox(Sequence[Mail]):
    """All mails so far; grows while the cloud runs."""

    def __init__(self) -> None:
        self._mails: list[Mail] = []
        self._arrived = threading.Condition()

    @overload
    def __getitem__(self, index: int) -> Mail: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mail]: ...
    def __getitem__(self, index: int | slice) -> Mail | Sequence[Mail]:
        return self._mails[index]

    def __len__(self) -> int:
        return len(self._mails)

    def __iter__(self) -> Iterator[Mail]:
        return iter(list(self._mails))

    def deliver(
        self, to: str, subject: str | None, body: str, topic_arn: str, attributes: Mapping[str, str]
    ) -> None:
        """Put a mail in; SNS's own subject stands in for a missing one."""
        mail = Mail(
            to=to,
            subject=subject or "AWS Notification Message",
            body=body,
            time=datetime.now(timezone.utc),
            topic_arn=topic_arn,
            attributes=dict(attributes),
        )
        with self._arrived:
            self._mails.append(mail)
            self._arrived.notify_all()

    def wait_for(self, predicate: Callable[[Mail], bool] = lambda _: True, timeout: float = 30.0) -> Mail:
        """First mail, old or new, that satisfies `predicate`.

        Raises:
            TimeoutError: none came within `timeout` seconds; the text lists the subjects that did.
        """
        end = time.monotonic() + timeout
        seen = 0
        with self._arrived:
            while True:
                for mail in self._mails[seen:]:
                    if predicate(mail):
                        return mail
                seen = len(self._mails)
                left = end - time.monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    if len(self._mails) > seen:
                        continue
                    subjects = [m.subject for m in self._mails]
                    raise TimeoutError(f"no such mail within {timeout:g} s; {len(subjects)} came: {subjects}")
