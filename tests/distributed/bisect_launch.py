"""The job's launch on trusted GPUs, as torchrun would do it: three ranks of `capsule_job`, healthy.

Usage: bisect_launch.py FOLDER. Their output goes on, rank by rank; the exit code is the first bad one.
"""

from __future__ import annotations

import sys
import tempfile

from tests.ranks import start

if __name__ == "__main__":
    outputs = [tempfile.TemporaryFile("w+") for _ in range(3)]  # noqa: SIM115
    ranks = start("tests.distributed.capsule_job", (sys.argv[1], "healthy"), outputs, gpus=1, env={})
    codes = [rank.wait() for rank in ranks]
    for output in outputs:
        output.seek(0)
        sys.stdout.write(output.read())
    sys.exit(next((code for code in codes if code), 0))
