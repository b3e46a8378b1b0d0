"""Loads a training library for its callback, or says how to get it. Next: `huggingface`, `lightning`."""

from __future__ import annotations

import re
from importlib import import_module, metadata
from types import ModuleType

from ..errors import ConfigurationError


def load(package: str, module: str, least: str, extra: str) -> ModuleType:
    """Import `module` of `package`.

    Parameters
    ----------
    package: its name on the package index.
    module: what to import of it.
    least: the oldest version whose training loop is known here.
    extra: of this project, that brings it.

    Raises
    ------
    ConfigurationError: missing, or older.
    """
    remedy = f"pip install 'training-agent[{extra}]' brings a version that is."
    try:
        found = metadata.version(package)
        loaded = import_module(module)
    except ImportError as e:
        raise ConfigurationError(f"{package} cannot be imported ({e}); {remedy}") from e
    if _numbers(found) < _numbers(least):
        raise ConfigurationError(
            f"{package} {found} is not known to this callback, {least} is the oldest; {remedy} Or keep it "
            "and write the loop yourself with training_agent.attach(...)."
        )
    return loaded


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])
