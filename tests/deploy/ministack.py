"""A local AWS that runs CloudFormation: ministack, in an environment of its own.

In: where its Python is, and what its functions shall see. Out: a process that listens on loopback until
closed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

ACCOUNT = "000000000000"
LOOPBACK = "127.0.0.1"
UP_SECONDS = 60.0


class Ministack:
    """Up while the `with` block runs."""

    def __init__(self, python: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._python = python.absolute()  # it runs in `folder`; resolved it would leave its environment
        self._folder, self._environment = folder, environment
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://{LOOPBACK}:{self.port}"

    def endpoints(self) -> dict[str, str]:
        """For clients of it."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ENDPOINT_URL_S3": self.url}

    def __enter__(self) -> Ministack:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": LOOPBACK,
            "MINISTACK_HOST": LOOPBACK,
            "LAMBDA_EXECUTOR": "local",
            "SFN_WAIT_SCALE": "0.01",
            **self._environment,
        }
        self._log = (self._folder / "ministack.log").open("wb")
        self._process = subprocess.Popen(
            [str(self._python), "-m", "ministack"],
            env=environment, cwd=self._folder, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        end = time.monotonic() + UP_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(f"ministack did not come up; see {self._folder / 'ministack.log'}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
