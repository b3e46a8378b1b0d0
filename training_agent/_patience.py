"""File work that may hang: a shared file system without its server answers nobody, and nothing interrupts it.

In: an act. Out: its result, or `TimeoutError`; the act then goes on by itself. Used where an alarm has other
ways out, or other ranks wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FILES_S = 10.0  # for one act of an alarm; a pod's grace period (60 s) has room for all of them


def within(seconds: float, act: Callable[[], T]) -> T:
    """Call `act` on a thread of its own and wait at most `seconds` for it.

    Raises
    ------
    TimeoutError: it had not returned.
    Exception: whatever `act` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as e:  # noqa: BLE001 - handed to the caller below
            errors.append(e)

    thread = threading.Thread(target=run, name="sdc-files", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads for this process: better to risk the wait than not to write
        return act()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"not done after {seconds:g} s; does the file system answer?")
    return results[0]
