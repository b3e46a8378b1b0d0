"""Unit tests open no network sockets; the few that talk to a server of their own say `enable_socket`."""

from __future__ import annotations

import pytest
from pytest_socket import disable_socket


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("enable_socket") is None:
        disable_socket(allow_unix_socket=True)
