"""Launcher: `python -m training_agent.run -- torchrun ...` ends with its workers' exit code.

torchrun answers 1 whatever its workers said. Workers leave their codes in a folder
(`training_agent.exit_codes`); this reads the folder when the launcher has ended, and ends with the most
telling code. SIGTERM and SIGINT go to the launcher. Next: the scheduler, which then knows an alarm (3).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

from .contract import Env, ExitCode
from .errors import ConfigurationError
from .exit_codes import chosen

USAGE = "usage: python -m training_agent.run -- torchrun [options] script.py [arguments]\n"
# An alarm explains why peers vanished, never the other way round.
SIGNIFICANCE = (
    ExitCode.ALARM,
    ExitCode.REPRODUCIBLE,
    ExitCode.REFUSED_NODE,
    ExitCode.CONFIGURATION,
    ExitCode.PEER_LOST,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command after `--` and return the exit code to end with."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command or command[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 2
    try:
        chosen(0)
    except ConfigurationError as e:
        sys.stderr.write(f"{e}\n")
        return int(ExitCode.CONFIGURATION)
    with tempfile.TemporaryDirectory(prefix="sdc-exit-codes-") as folder:
        code = _run(command, {**os.environ, Env.EXIT_CODE_DIR.value: folder})
        # A launcher that ended well (after a restart of its own, say) has the last word.
        ours = recorded(Path(folder))
        return 0 if code == 0 else chosen(most_significant(ours, otherwise=code)) if ours else code


def recorded(folder: Path) -> tuple[int, ...]:
    """Codes that the workers of the launcher's last restart left."""
    by_restart: dict[int, list[int]] = {}
    for path in folder.iterdir():
        restart, _, _ = path.name.partition("-")
        try:
            by_restart.setdefault(int(restart), []).append(int(path.read_text()))
        except ValueError:
            continue  # half a file of a worker that was killed while it wrote
    return tuple(by_restart[max(by_restart)]) if by_restart else ()


def most_significant(codes: Iterable[int], *, otherwise: int) -> int:
    """Pick the code that says most about the cause; `otherwise` when no worker left one."""
    found = set(codes)
    for code in SIGNIFICANCE:
        if code in found:
            return int(code)
    return max(found, default=otherwise)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run to the end; a death by signal becomes 128 + its number, as in a shell."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came before there was a child

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    previous = {s: signal.signal(s, forward) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        child = subprocess.Popen(command, env=environment)
        for number in early:
            child.send_signal(number)
        code = child.wait()
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: no such program. Is torch installed in this environment?\n")
        return 127
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    raise SystemExit(main())
