"""Tensors of the agent lie where it says, whatever `torch.set_default_device` of the job would choose."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torch.utils._device import _device_constructors

import training_agent

FOLDER = Path(training_agent.__file__).parent
MADE = {function.__name__ for function in _device_constructors()}


def without_a_device(source: str) -> Iterator[int]:
    """Lines of calls such as `torch.zeros(3)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            placed = any(keyword.arg == "device" for keyword in node.keywords)
            if of_torch and node.func.attr in MADE and not placed:
                yield node.lineno


def test_every_tensor_that_the_agent_makes_says_on_which_device() -> None:
    assert {"tensor", "zeros", "arange", "empty", "full"} <= MADE
    found = [
        f"{path.relative_to(FOLDER)}:{line}"
        for path in sorted(FOLDER.rglob("*.py"))
        for line in without_a_device(path.read_text())
    ]
    assert found == []
