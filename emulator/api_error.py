"""An AWS error response of the local cloud: code and message, in the shape of the service that was called."""

from __future__ import annotations

from moto.core.errors import COMMON_ERROR_CODES
from moto.core.exceptions import ServiceException

# Any service may answer these and no model lists them; moto warns about codes that it does not find.
COMMON_ERROR_CODES += [
    "AccessDeniedException",
    "InternalFailure",
    "ServiceUnavailable",
    "ThrottlingException",
]


class ApiError(ServiceException):
    """Raise it inside an operation that moto serves.

    A class of our own: moto looks a class of its own up in the service model of the package it lives in, and
    `moto.core` is no service.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
