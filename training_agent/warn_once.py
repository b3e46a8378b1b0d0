"""One warning per cause and process: missing credentials meet the hold, the publisher and the metrics alike.

In: who warns, of what kind of failure. Out: one log line, the first time.
"""

from __future__ import annotations

import threading

from .log_line import log_line

_lock = threading.Lock()
_said: set[str] = set()


def warn_once(cause: BaseException | str, message: str) -> None:
    """Say `message` unless this process has warned of `cause` before.

    Parameters
    ----------
    cause: a word, or the error, whose innermost kind counts: "NoCredentialsError", whoever met it.
    """
    key = cause if isinstance(cause, str) else type(_innermost(cause)).__name__
    with _lock:
        if key in _said:
            return
        _said.add(key)
    log_line("warning", message=message)


def forget() -> None:
    """Warn anew; for tests, which play several processes in one."""
    with _lock:
        _said.clear()


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
