"""`make mutants`: is each guarantee held by the test that says so?

In: `mutants.json`, one entry per guarantee (and per threat whose guard is no guarantee's): the guard's exact
text, what takes its place, the test that must then fail. Each guard is disabled in a temporary copy, one at
a time, so that an interrupted run leaves the working tree as it was. Out: exit code 1 when a test survives,
does not end or cannot run, when a guard's text is not there exactly once (the table is stale), or when a
test fails unmutated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.json")
TIMEOUT_S = 600
UNSHRUNK = "SDC_UNSHRUNK"  # tells the model-based test that the first failure will do


@dataclass(frozen=True)
class Mutant:
    guarantee: str
    file: str
    find: str
    replace: str
    test: str


def mutants() -> list[Mutant]:
    return [Mutant(**entry) for entry in json.loads(TABLE.read_text(encoding="utf-8"))]


def stale(mutant: Mutant, root: Path = ROOT) -> str:
    """Why the entry no longer fits the sources, or ""."""
    path = root / mutant.file
    if not path.is_file():
        return f"{mutant.file} is gone"
    count = path.read_text(encoding="utf-8").count(mutant.find)
    return "" if count == 1 else f"its text stands {count} times in {mutant.file}"


def copy_of_sources(folder: Path) -> Path:
    """What git knows of and what is new and not ignored."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def run(folder: Path, tests: list[str]) -> str:
    """ "passed", "failed" (an assertion or an exception of the test itself), or what else came of them."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", UNSHRUNK: "1"}
    try:
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {TIMEOUT_S} s"
    if ended.returncode == 0:
        return "passed"
    printed = ended.stdout.decode(errors="replace")
    if ended.returncode == 1 and re.search(r"^FAILED ", printed, re.M):
        return "failed"
    return f"pytest ended with {ended.returncode}, and no test failed by itself:\n{printed[-2000:]}"


def judged(folder: Path, mutant: Mutant) -> str:
    """Why the guarantee is not held, or ""; the copy is put back whatever happens."""
    path = folder / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        became = run(folder, [mutant.test])
    finally:
        path.write_text(before, encoding="utf-8")
    return {"failed": "", "passed": f"SURVIVED {mutant.test}"}.get(
        became, f"UNCLEAR  {mutant.test}: {became}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="G1 G2 T6 ...: only these")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the unmutated tests first")
    chosen = parser.parse_args()
    table = [m for m in mutants() if not chosen.names or m.guarantee.split()[0] in chosen.names]
    bad = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = copy_of_sources(Path(temporary))
        if not chosen.skip_baseline:
            unmutated = run(folder, sorted({m.test for m in table}))
            if unmutated != "passed":
                raise SystemExit(f"without any mutant the tests have {unmutated}: nothing can be said")
        for mutant in table:
            reason = stale(mutant, folder)
            reason = f"STALE    {reason}" if reason else judged(folder, mutant)
            bad += [f"{mutant.guarantee}: {reason}"] * bool(reason)
            sys.stdout.write(f"{reason.split()[0] if reason else 'killed':8} {mutant.guarantee}\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join([*bad, f"{len(table) - len(bad)} of {len(table)} are held"]) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
