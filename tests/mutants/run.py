"""`make mutants`: is each guarantee held by the test that says so?

In: `mutants.json`, one entry per guarantee: the guard's exact text, what takes its place, the test that must
then fail. Each guard is disabled in a copy of the tracked files, one at a time. Out: exit code 1 when a test
survives, when a guard's text is not there exactly once (the table is stale), or when a test fails unmutated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.json")
TIMEOUT_S = 600


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


def passes(folder: Path, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S)
    if run.returncode not in (0, 1):  # nothing collected, or pytest itself failed: that proves nothing
        raise SystemExit(
            f"{' '.join(tests)}: pytest ended with {run.returncode}\n{run.stdout.decode()[-2000:]}"
        )
    return run.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="G1 G2 ...: only these")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the unmutated tests first")
    chosen = parser.parse_args()
    table = [m for m in mutants() if not chosen.names or m.guarantee.split()[0] in chosen.names]
    bad = [f"STALE    {m.guarantee}: {reason}" for m in table if (reason := stale(m))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = copy_of_sources(Path(temporary))
        if not chosen.skip_baseline and not passes(folder, sorted({m.test for m in table})):
            raise SystemExit("the tests fail without any mutant: nothing can be said")
        for mutant in table:
            if stale(mutant):
                continue
            path = folder / mutant.file
            before = path.read_text(encoding="utf-8")
            path.write_text(before.replace(mutant.find, mutant.replace), encoding="utf-8")
            survived = passes(folder, [mutant.test])
            path.write_text(before, encoding="utf-8")
            sys.stdout.write(f"{'SURVIVED' if survived else 'killed  '} {mutant.guarantee}\n")
            sys.stdout.flush()
            bad += [f"SURVIVED {mutant.guarantee}: {mutant.test}"] if survived else []
    sys.stdout.write("\n".join([*bad, f"{len(table) - len(bad)} of {len(table)} guarantees are held"]) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
