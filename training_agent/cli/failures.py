"""What can go wrong on the command line, and what the process then ends with.

CliError
|-- NotFoundError    there is no such incident, node or file                          exit code 3
|-- CannotAskError   no credentials, no network, no permission, unknown deployment    exit code 4
`-- RefusedError     the pipeline said no: nothing was changed by this command        exit code 5

Beside them: 0 done, 1 the answer is no (a check of `doctor` or `preflight` failed, a replay differs, a drill
did not come through), 2 a mistake in the arguments, 130 interrupted. A replay or a bisect that decides
nothing ends with 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `sdc`."""

    DONE = 0
    NO = 1
    USAGE = 2
    NOT_FOUND = 3
    CANNOT_ASK = 4
    REFUSED = 5
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command; `remedy` says what to do next, `details` are lines between the two."""

    code = Exit.CANNOT_ASK

    def __init__(self, message: str, remedy: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.details = tuple(details)


class NotFoundError(CliError):
    """What was asked for does not exist."""

    code = Exit.NOT_FOUND


class CannotAskError(CliError):
    """AWS or the pipeline could not be asked."""


class RefusedError(CliError):
    """The pipeline was asked and said no."""

    code = Exit.REFUSED
