"""What this rank's own accelerator raises: no sign of a lost peer, and nothing that a slower code would cure.

Comes in: nothing. Goes out: kinds of errors. Next: `_comm` and `_digest_backends` let them through.
"""

from __future__ import annotations

import torch


def own_errors() -> tuple[type[BaseException], ...]:
    """Memory that is full, and kernels that failed; torch 2.4 has neither name of it under `torch`."""
    found = [getattr(torch, name, None) for name in ("OutOfMemoryError", "AcceleratorError")]
    return tuple(e for e in (*found, torch.cuda.OutOfMemoryError) if e is not None)
