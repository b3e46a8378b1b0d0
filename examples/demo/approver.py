"""Plays the approver: reads the mail, opens the link, reads the page, decides with the typed value.

Comes in: a mail from the mailbox. Goes out: one POST like a browser's, and the page as it was read.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser

LINK = re.compile(r"^\s*(https?://\S+/review/\S+)\s*$", re.MULTILINE)
TIMEOUT_SECONDS = 30


def review_link(body: str) -> str | None:
    """Return the link of a mail, which stands on a line of its own, or None."""
    found = LINK.search(body)
    return found.group(1) if found else None


@dataclass
class Page(HTMLParser):
    """The text and the form of a review page."""

    html: str
    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._unseen = False
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self._unseen = tag in ("style", "title")
        if tag == "form":
            self.action = given.get("action", "")
        elif tag in ("input", "select", "textarea", "button") and "name" in given:
            self.fields.setdefault(given["name"], given.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        self._unseen = False

    def handle_data(self, data: str) -> None:
        if not self._unseen:  # style sheets are no words of the page
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(link: str) -> Page:
    """Open the link as a browser does."""
    with urllib.request.urlopen(link, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http on loopback
        return Page(answer.read().decode())


def approve(link: str, page: Page, instance_id: str, reason: str) -> str:
    """Send the form of `page` with the typed value for `instance_id`; returns the answer's text.

    Raises RuntimeError when the page does not show that instance: nobody approves what is not shown.
    """
    if instance_id not in page.text:
        raise RuntimeError(f"the review page does not show {instance_id}: not approved")
    form = {**page.fields, "decision": "approve", "typed": instance_id[-6:], "reason": reason}
    target = urllib.parse.urljoin(link, page.action or link)
    origin = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(target))
    request = urllib.request.Request(  # noqa: S310 - http on loopback
        target,
        data=urllib.parse.urlencode(form).encode(),
        headers={"Content-Type": "application/x-www-form-urlencoded", "Origin": origin},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            return Page(answer.read().decode()).text
    except urllib.error.HTTPError as e:
        raise RuntimeError(f"the decision was refused ({e.code}): {Page(e.read().decode()).text}") from None
