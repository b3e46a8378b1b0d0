"""Runs one command: its screen, its errors, its exit code. Used by `app` and `computing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .failures import CliError, Exit
from .screen import Screen

Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def run(as_json: bool, act: Callable[[Screen], Exit]) -> None:
    """Do it and leave with its code."""
    screen = Screen(as_json=as_json)
    try:
        code = act(screen)
    except CliError as e:
        screen.error(e)
        code = e.code
    raise typer.Exit(int(code))
