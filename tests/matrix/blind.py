"""Switches a check off from outside, to prove that a row is caught by that check and by nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from training_agent.checks.weights import Divergence


def _nothing_nonfinite(_norms: Any, device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64, device=device)


BLINDFOLDS = {
    "replay": ("training_agent._evidence.Evidence.agrees", lambda *_: True),
    "weights": ("training_agent._examine.compare_replicas", lambda *_, **__: Divergence()),
    "nonfinite": ("training_agent.checks.nonfinite._any_nonfinite", _nothing_nonfinite),
    "file": ("training_agent._ledger.LoadedManifest.compare", lambda *_: None),
}


@contextmanager
def blinded(checks: Iterable[str]) -> Iterator[None]:
    """Run a block without these checks; AttributeError when there is nothing of that name to blind."""
    with ExitStack() as stack:
        for check in checks:
            stack.enter_context(mock.patch(*BLINDFOLDS[check]))
        yield
