"""How a worker's exit code gets past torchrun, which itself answers 1 whatever its workers said.

`record` leaves the code in the folder that `training_agent.run` passed by environment variable; `install`
makes an uncaught `AgentError` end the process with its own code. Next: `training_agent.run` reads the folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from .contract import Env, ExitCode
from .errors import AgentError, ConfigurationError, SdcAlarm
from .shared_files import write_atomic

_installed = threading.Event()
# Asked when an error that is not ours ends the process: raises SdcAlarm where that error has a cause.
witnesses: list[Callable[[], None]] = []


def chosen(code: int, environ: Mapping[str, str] = os.environ) -> int:
    """What `SDC_EXIT_CODES` ("3=13 5=15") makes of a code.

    Raises:
        ConfigurationError: it is no list of pairs, a first one is no code of ours, a second not 1 to 255.
    """
    text = environ.get(Env.EXIT_CODES, "")
    pairs = {left: right for left, _, right in (pair.partition("=") for pair in text.split())}
    known = {str(int(c)) for c in ExitCode}
    good = all(k in known and v.isdecimal() and 0 < int(v) < 256 for k, v in pairs.items())
    if not good or len(pairs) != len(text.split()):
        raise ConfigurationError(
            f'{Env.EXIT_CODES.value}={text!r}: write pairs such as "3=13 5=15"; left one of '
            f"{', '.join(sorted(known, key=int))}, each once, right 1 to 255."
        )
    return int(pairs.get(str(int(code)), code))


def record(code: int) -> None:
    """Leave this worker's exit code, our own, for the launcher wrapper; without a wrapper do nothing."""
    folder = os.environ.get(Env.EXIT_CODE_DIR)
    if not folder:
        return
    name = f"{os.environ.get(Env.RESTART_COUNT, '0')}-{os.environ.get(Env.RANK, '0')}-{os.getpid()}"
    try:
        write_atomic(Path(folder) / name, str(int(code)).encode())
    except OSError as e:
        sys.stderr.write(f"sdc: exit code {code} could not be left in {folder}: {e}\n")


def install() -> None:
    """Map an uncaught AgentError to its exit code, in this process, from now on; once is enough.

    The previous hook still prints the traceback. The process then ends at once (`os._exit`): interpreter
    shutdown would answer 1, and could hang in a process group whose peers are gone.
    """
    if _installed.is_set():
        return
    _installed.set()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        found = error if isinstance(error, AgentError) else _explained(error)
        if found is None:
            return
        if found is not error:
            previous(type(found), found, found.__traceback__)
        leave(found.exit_code)

    sys.excepthook = hook


def _explained(error: BaseException) -> SdcAlarm | None:
    """The alarm behind an error of the loop, if a witness raises one."""
    for look in tuple(witnesses) if isinstance(error, Exception) else ():
        try:
            look()
        except SdcAlarm as alarm:
            return alarm
        except Exception as e:  # noqa: BLE001 - the loop's own error is what ends the process then
            sys.stderr.write(f"sdc: the last step could not be judged: {type(e).__name__}: {e}\n")
    return None


def leave(code: int) -> None:
    """Record the code, flush what was printed and end this process with it."""
    record(code)
    # torch's own hook collects what ours prints, to put the rank before each line; it never gets to print it
    collected = getattr(sys.stderr, "getvalue", None)
    if collected is not None and sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.__stderr__.write(collected())
            sys.__stderr__.flush()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a closed pipe must not change the exit code
    with contextlib.suppress(ConfigurationError):  # refused by the settings before anything else
        code = chosen(code)
    os._exit(int(code))
