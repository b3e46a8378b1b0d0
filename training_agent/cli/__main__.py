"""`python -m training_agent.cli`, and the entry point `sdc`."""

from __future__ import annotations

import sys

LIBRARIES = ("typer", "rich", "jinja2", "markupsafe", "boto3", "botocore", "urllib3")  # of the extras


def main() -> int:
    """Run `sdc`; without its libraries say how to get them."""
    try:
        from .app import main as run
    except ModuleNotFoundError as e:
        if e.name is None or e.name.split(".")[0] not in LIBRARIES:
            raise
        sys.stderr.write(
            f"sdc needs {e.name}, which the training image does not: pip install 'training-agent[aws,cli]'\n"
        )
        return 4
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
