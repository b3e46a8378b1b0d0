"""Writes lambdas/requirements.txt: `python -m infra.lock`, after requirements/dev.txt has changed.

In: `lambdas/requirements.in` and the lock of the tests, requirements/dev.txt. Out: the part of that lock
which the functions need, with the same versions and hashes: what the tests run is what is deployed. Next:
`bundling.py`.
"""

from __future__ import annotations

import re
from importlib.metadata import requires

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .bundling import REQUIREMENTS, ROOT

DIRECT = REQUIREMENTS.with_suffix(".in")
TESTED = ROOT / "requirements" / "dev.txt"
ENTRY = (
    r"^(?P<pin>(?P<name>[\w.-]+)(?:\[[^]]*\])?==[^\s;]+)(?: ; (?P<marker>[^\\]+))? \\\n"
    r"(?P<hashes>(?:    .*\n)+)"
)
LAMBDA = {  # the environment that the markers of dependencies are judged for
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


class LockError(LookupError):
    """A package of the functions is missing in the lock of the tests."""


def locked() -> str:
    """The text that lambdas/requirements.txt must have. The environment of the tests must be installed.

    Raises
    ------
    LockError
        When a needed package is not in requirements/dev.txt.
    """
    entries: dict[str, str] = {}
    for match in re.finditer(ENTRY, TESTED.read_text(), re.M):
        if match["marker"] is None or Marker(match["marker"]).evaluate(dict(LAMBDA)):
            # Without its marker: pip would judge that for the machine which bundles.
            entries[canonicalize_name(match["name"])] = f"{match['pin']} \\\n{match['hashes']}"
    needed = _closure()
    if missing := sorted(needed - entries.keys()):
        raise LockError(f"{', '.join(missing)}: not in {TESTED.relative_to(ROOT)}; lock that one first")
    return "".join(entries[name] for name in sorted(needed))


def _closure() -> set[str]:
    """Canonical names of the direct requirements and all that they need at run time on Lambda."""
    lines = (line.strip() for line in DIRECT.read_text().splitlines())
    waiting = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if canonicalize_name(wanted.name) in found:
            continue
        found.add(canonicalize_name(wanted.name))
        for line in requires(wanted.name) or ():
            next_one = Requirement(line)
            extras = {"", *wanted.extras}
            if next_one.marker is None or any(
                next_one.marker.evaluate({**LAMBDA, "extra": e}) for e in extras
            ):
                waiting.append(next_one)
    return found


if __name__ == "__main__":
    REQUIREMENTS.write_text(locked())
