"""Errors that a training engineer can meet.

AgentError
|-- ConfigurationError   refused before the first update; says what to change     exit code 4
|-- SdcAlarm             a check fired; the step was not applied                   exit code 3
|-- RefusedNodeError     hold_timeout ended on a quarantined node                  exit code 5
|-- ReproducibleError    the same step fails on other nodes: not hardware           exit code 6
|-- PeerLostError        a peer vanished inside a check                            exit code 130
|-- CheckpointError      no checkpoint can be trusted, or one is damaged           exit code 4
`-- CapsuleError         a batch that no capsule can hold, or a file that is none   exit code 4
"""

from __future__ import annotations

from .contract import Alarm, ExitCode

_LONGEST = 300  # characters; torch lists all its backends in 20,000


def in_short(error: BaseException) -> str:
    """Kind and first line of an error that is none of ours, for notes, alarms and manifests."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST]


class AgentError(Exception):
    """Base of all errors of the agent; `exit_code` is what the worker process ends with."""

    exit_code: ExitCode = ExitCode.CONFIGURATION


class ConfigurationError(AgentError):
    """The set-up cannot be guarded. Raised on every rank alike, before the first update."""


class SdcAlarm(AgentError):
    """A check fired. Raised on every rank; weights, optimizer state and RNG are those before the step."""

    exit_code = ExitCode.ALARM

    def __init__(self, alarm: Alarm, message: str) -> None:
        super().__init__(message)
        self.alarm = alarm


class RefusedNodeError(AgentError):
    """The hold ended by its timeout while a rank still stood on a quarantined node or GPU."""

    exit_code = ExitCode.REFUSED_NODE


class ReproducibleError(AgentError):
    """The same step failed on different nodes over several starts; a person looks before the next one."""

    exit_code = ExitCode.REPRODUCIBLE


class PeerLostError(AgentError):
    """A collective of a check failed because a peer vanished; nobody is accused for that."""

    exit_code = ExitCode.PEER_LOST


class CheckpointError(AgentError):
    """A checkpoint is incomplete or damaged, or none from before the suspect window is left."""


class CapsuleError(AgentError):
    """A value that a repro capsule cannot hold, or a file that is none; the text says which and why."""
