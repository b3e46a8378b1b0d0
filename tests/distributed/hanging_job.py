"""Rank 1 never ends."""

from __future__ import annotations

import os
import time

if __name__ == "__main__" and os.environ["RANK"] == "1":
    os.write(1, b"I hang\n")
    time.sleep(600)
