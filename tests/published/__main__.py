"""`python -m tests.published`: the comparison table; `--write` puts it into docs/detection.md.

Exit code 1 when the port does not do what was published.
"""

from __future__ import annotations

import argparse
import sys

from tests.matrix.markdown import replace_section
from tests.published.comparison import markdown, measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = measure()
    text = markdown(found)
    if given.write:
        replace_section("comparison", text)
    unlike = {name: wrong for name, wrong in found.table.items() if wrong}
    sys.stdout.write(text + "".join(f"not as published: {n}: {w}\n" for n, w in unlike.items()))
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
