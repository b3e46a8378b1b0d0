"""Moto's server as the local AWS endpoint, in this process, on loopback. In: nothing. Out: `endpoint_url`.

One at a time: moto's state, like an AWS account, is one per process. Everything it would tell the terminal or
inherit from the developer's own AWS configuration is shut off while it runs and put back afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from moto.core.config import default_user_config
from moto.moto_api._internal.models import moto_api_backend
from moto.server import ThreadedMotoServer

from . import moto_patches
from .names import ACCESS_KEY, LOOPBACK, REGION, SECRET_KEY

QUIET = {  # each request, each failed state with its whole environment; a crash inside moto still shows
    "werkzeug": logging.ERROR,
    "moto": logging.ERROR,
    "moto.stepfunctions": logging.CRITICAL,
}


class MotoServer:
    """The running server; `close` frees the port and puts the environment back."""

    _running = False

    def __init__(self, *, wait_scale: float) -> None:
        if MotoServer._running:
            raise RuntimeError(
                "a local cloud runs in this process already: close it first, or add a stack to it"
            )
        moto_patches.install(wait_scale)
        default_user_config["lambda"] = {"use_docker": False}
        default_user_config["stepfunctions"] = {"execute_state_machine": True}
        self._levels = {name: logging.getLogger(name).level for name in QUIET}
        for name, level in QUIET.items():
            logging.getLogger(name).setLevel(level)
        self._server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.endpoint_url = f"http://{LOOPBACK}:{self.port}"
        # The interpreter of state machines reads MOTO_PORT when it calls back; nothing has run so far.
        self._saved = _set({**hermetic(), "MOTO_PORT": str(self.port)})
        MotoServer._running = True

    def environment(self) -> dict[str, str]:
        """What a process needs to use this server through plain boto3."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            **hermetic(),
        }

    def close(self) -> None:
        """Stop serving, forget all state."""
        moto_patches.close_clients()
        listener = self._server._server
        self._server.stop()
        if listener is not None:
            listener.server_close()  # moto leaves the listening socket open
        moto_api_backend.reset()
        _set(self._saved)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        MotoServer._running = False


def hermetic() -> dict[str, str]:
    """Variables that keep the developer's own AWS files and proxies out."""
    return {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": f"{LOOPBACK},localhost",
    }


def _set(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set (None: unset) variables of this process; returns what stood there."""
    saved: dict[str, str | None] = {k: os.environ.get(k) for k in [*values, "AWS_PROFILE"]}
    os.environ.pop("AWS_PROFILE", None)
    for key, value in values.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    return saved
