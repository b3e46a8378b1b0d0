"""`python -m tests.matrix`: the whole table, every layout and configuration, into out/matrix.json.

`--short` runs what `make test` runs; `--layout 6x3` one layout; `--config "bf16 immediate"` those whose label
has it. Raw results stand in out/matrix/ as each configuration ends; `--resume` goes on where an interrupted
run stopped, `--judge` runs nothing and judges what stands there again. Exit code 1 when a row is not met, or
is met with its check switched off, or could not be run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from tests.matrix import rows
from tests.matrix.markdown import replace_section
from tests.matrix.run import markdown, run, table_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--config", default="full", help="only those, such as 'bf16 immediate'")
    parser.add_argument("--layout", action="append", choices=list(rows.load()["layouts"]))
    parser.add_argument("--resume", action="store_true", help="keep the configurations that are done")
    parser.add_argument("--judge", action="store_true", help="run nothing, judge what is there again")
    parser.add_argument("--write", action="store_true", help="the counts into docs/detection.md")
    parser.add_argument("--out", type=Path, default=Path("out/matrix.json"))
    given = parser.parse_args()
    layouts = given.layout or list(rows.load()["layouts"])
    raw = given.out.with_suffix("")
    if not (given.resume or given.judge):
        shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True, exist_ok=True)
    form = "short" if given.short else given.config
    document = run(layouts, form, 7200, raw, resume=given.resume, only_judge=given.judge)
    given.out.write_text(json.dumps(document, indent=1))
    if given.write:
        replace_section("matrix", markdown(document))
    seconds = f"{sum(document['seconds'].values()):.0f} s in {len(document['seconds'])} configurations"
    sys.stdout.write(f"{table_of(document)}\nwritten to {given.out}; {seconds}\n")
    return 0 if document["ok"] and not document["not_run"] else 1


if __name__ == "__main__":
    sys.exit(main())
