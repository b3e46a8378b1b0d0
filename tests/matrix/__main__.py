"""`python -m tests.matrix`: the whole table, every layout and configuration, into out/matrix.json.

`--short` runs what `make test` runs; `--layout 6x3` one layout. Exit code 1 when a row is not met, or is met
with its check switched off, or could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.matrix import rows
from tests.matrix.run import run, table_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--config", default="full", help="only those, such as 'bf16 immediate'")
    parser.add_argument("--layout", action="append", choices=list(rows.load()["layouts"]))
    parser.add_argument("--out", type=Path, default=Path("out/matrix.json"))
    given = parser.parse_args()
    layouts = given.layout or list(rows.load()["layouts"])
    document = run(layouts, "short" if given.short else given.config, timeout=7200)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1))
    sys.stdout.write(f"{table_of(document)}\nwritten to {given.out}, seconds: {document['seconds']}\n")
    return 0 if document["ok"] and not document["not_run"] else 1


if __name__ == "__main__":
    sys.exit(main())
