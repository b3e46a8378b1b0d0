"""Entry of `cdk synth` and `cdk deploy`; `CDK_OUTDIR=folder python app.py` does without the CLI."""

from __future__ import annotations

import sys

from infra.config import SettingsError
from infra.synth import build, read_context


def main() -> int:
    """Synthesize into CDK_OUTDIR (default cdk.out); 2 when the settings cannot be used."""
    try:
        app, _ = build(read_context())
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    app.synth()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
