"""The wires between handlers and world: every port call is seen, counted, and can be made to fail.

In: a call of a step on one of its ports. Out: the world's answer, or a fault at a chosen call site. A site is
(function, port call, caller), so that moving a line moves no site and a new call is a new one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from lambdas.domain.errors import OutcomeUnknownError, RefusedError, ThrottledError, UnavailableError

from .machine import Killed


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in the code that calls out of the process."""

    function: str  # deployed function
    call: str  # port.method
    caller: str  # function of the step

    def __str__(self) -> str:
        return f"{self.function}:{self.caller}:{self.call}"


class Fault(str, Enum):
    """What can happen to a call; the last one is what an SDK's own retry does after a lost answer."""

    THROTTLED = "throttled"
    SERVER_ERROR = "5xx"
    DENIED = "access denied"
    LOST_BEFORE = "timeout before the effect"
    LOST_AFTER = "timeout after the effect"
    CRASH_AFTER = "crash between effect and record"
    SENT_TWICE = "answer lost, sent again by the SDK"


LASTING = frozenset({Fault.SERVER_ERROR, Fault.DENIED})  # from that call on; the others strike once
UNKNOWABLE = "cluster.replace"  # its adapter says so when no answer came
ONE_ATTEMPT = (
    "cluster.replace",
    "cluster.start_health_check",
    "kubernetes.",
)  # their clients never send twice


@dataclass
class Plan:
    """Which site fails, how, after how many calls that went well, and whether it has struck."""

    site: Site
    fault: Fault
    spared: int = 0
    struck: int = 0

    def strikes(self, site: Site) -> bool:
        if site != self.site:
            return False
        if self.spared:
            self.spared -= 1
            return False
        return self.fault in LASTING or self.struck == 0


def strike(plan: Plan, run: Callable[[], Any]) -> Any:
    """Carry out the fault as the adapters would report it."""
    plan.struck += 1
    where = f"{plan.fault.value} at {plan.site}"
    once = plan.site.call.startswith(ONE_ATTEMPT)
    if plan.fault is Fault.THROTTLED:
        raise ThrottledError(where)
    if plan.fault is Fault.DENIED:
        raise RefusedError(where, "AccessDeniedException")
    if plan.fault is Fault.CRASH_AFTER:
        run()
        raise Killed(where)
    if plan.fault is Fault.SENT_TWICE and not once:
        run()
        return run()
    if plan.fault in (Fault.LOST_AFTER, Fault.SENT_TWICE):
        run()
    raise (OutcomeUnknownError if plan.site.call == UNKNOWABLE else UnavailableError)(where)


class Observer(Protocol):
    def before(self, function: str, incident_id: str, call: str, args: tuple[Any, ...]) -> None: ...
    def after(self, function: str, incident_id: str, call: str, args: tuple[Any, ...], out: Any) -> None: ...


class Wires:
    """All calls of all handlers; one at a time, as each service serialises the writes to a row."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lock = threading.RLock()
        self._here = threading.local()
        self.sites: set[Site] = set()
        self.plans: list[Plan] = []
        self.pause: Callable[[], None] = lambda: None  # before each call, outside the lock

    def enter(self, function: str, incident_id: str = "") -> None:
        """This thread runs this function for this incident now."""
        self._here.function, self._here.incident_id = function, incident_id

    def carry(self, call: str, caller: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        function = getattr(self._here, "function", "test")
        incident_id = getattr(self._here, "incident_id", "")
        site = Site(function, call, caller)
        everything = (*args, *kwargs.values())

        def run() -> Any:
            self._observer.before(function, incident_id, call, everything)
            answer = real(*args, **kwargs)
            self._observer.after(function, incident_id, call, everything, answer)
            return answer

        self.pause()
        with self._lock:
            self.sites.add(site)
            for plan in self.plans:
                if plan.strikes(site):
                    return strike(plan, run)
            return run()


class Wired:
    """One port, with its wire; everything but methods is handed through."""

    def __init__(self, name: str, real: Any, wires: Wires) -> None:
        self._name, self._real, self._wires = name, real, wires

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._real, method)
        if not callable(real):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_name
            return self._wires.carry(f"{self._name}.{method}", caller, real, args, kwargs)

        return call
