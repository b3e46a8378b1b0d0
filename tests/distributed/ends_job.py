"""A rank that ends in the way it is told, after having said how its interpreter looks."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys

HOW = sys.argv[1]

about = f"{__name__} {sys.argv[1:]} {os.environ['RANK']} {os.environ['SAID']} hash {hash('rank')}"
sys.stdout.write(f"{about}\nrandom {random.random()}\n")
sys.stdout.flush()
atexit.register(sys.stdout.write, "handler ran\n")

if HOW == "hook":
    sys.excepthook = lambda *_: os._exit(7)
if HOW == "code":
    sys.exit(3)
if HOW == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if HOW in ("hook", "error"):
    raise RuntimeError("my own end")
