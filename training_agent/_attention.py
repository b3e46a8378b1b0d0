"""Which attention kernels torch may choose from, as one value.

Comes in: torch's switches. Goes out: the switches, changed. Next: `determinism` narrows them, `_capture`
ships them with a micro-batch.

Which of the allowed ones takes a call follows from its device, dtype and shapes alone: flash before the
memory-efficient one before the math kernel, which takes whatever the others cannot.
"""

from __future__ import annotations

from typing import Any

import torch

Attention = tuple[bool, bool, bool, bool]  # flash, memory-efficient, math, cuDNN
_NAMES = ("flash", "memory-efficient", "math", "cuDNN")
_CUDA: Any = torch.backends.cuda  # the switches hold for every device


def allowed() -> Attention:
    """As they are."""
    return (
        _CUDA.flash_sdp_enabled(),
        _CUDA.mem_efficient_sdp_enabled(),
        _CUDA.math_sdp_enabled(),
        _CUDA.cudnn_sdp_enabled(),
    )


def names(attention: Attention) -> list[str]:
    """For people."""
    return [name for name, on in zip(_NAMES, attention, strict=True) if on]


def allow(attention: Attention) -> None:
    """Set them."""
    _CUDA.enable_flash_sdp(attention[0])
    _CUDA.enable_mem_efficient_sdp(attention[1])
    _CUDA.enable_math_sdp(attention[2])
    _CUDA.enable_cudnn_sdp(attention[3])


def reproducible(own: Attention) -> Attention:
    """Those of the user's that have a deterministic backward: all but cuDNN's; without any, all of those."""
    flash, efficient, math, _ = own
    return (flash, efficient, math, False) if flash or efficient or math else (True, True, True, False)
