"""How exactly float32 products are computed: one value of torch's switches for it, old or new.

Comes in: the switches. Goes out: the switches, changed. Next: `_capture` ships them with a micro-batch,
`determinism` compares them between ranks.

From torch 2.9 on each backend has a switch of its own. Where one of them was set, torch refuses to say what
its old switch for all of them stands at.
"""

from __future__ import annotations

from typing import Any

import torch

Precision = str | tuple[tuple[str, str], ...]  # of the old switch; by name of the new ones, the widest first
_NAMES = (
    *("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"),
    *("mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
)


def allowed() -> Precision:
    """As they are: by the old switch where torch answers, since setting a new one would silence it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple((name, switch.fp32_precision) for name, switch in _switches().items())


def allow(wanted: Precision) -> None:
    """Set them."""
    if isinstance(wanted, str):
        torch.set_float32_matmul_precision(wanted)
        return
    switches = _switches()
    for name, value in wanted:
        if name in switches and switches[name].fp32_precision != value:
            switches[name].fp32_precision = value


def of_each() -> dict[str, str]:
    """What every backend does, for a comparison between ranks."""
    found = {name or "all": str(switch.fp32_precision) for name, switch in _switches().items()}
    if found:
        return found
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {"cuda.matmul": f"TF32 {cuda.allow_tf32}", "cudnn": f"TF32 {cudnn.allow_tf32}"}


def _switches() -> dict[str, Any]:
    """The new ones; none before torch 2.9."""
    found: dict[str, Any] = {}
    for name in _NAMES:
        switch: Any = torch.backends
        for part in name.split(".") if name else ():
            switch = getattr(switch, part, None)
        try:
            if isinstance(switch.fp32_precision, str):
                found[name] = switch
        except AttributeError:
            continue
    return found
