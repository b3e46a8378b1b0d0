"""What optimizers keep beside the weights: moments and counters, by name, for the comparison at a save.

Comes in: the guarded optimizers and the names of their parameters. Goes out: named tensors, in an order that
is the same on every rank, and a word that differs when the ranks do not keep the same entries. Next:
`_examine` compares them with the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._readable import readable
from .checks.sharded import is_sharded


def state_tensors(optimizers: Sequence[Optimizer], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of the optimizers' state, such as "optimizer state exp_avg of head.weight".

    What lies in lists and dicts in there (preconditioners) is found as well. Numbers that are no tensors
    (counters of old optimizers) are left out, and so is what belongs to none of `parameters`, which are those
    of the model and the tensors that optimizers hold for them.
    """
    found: dict[str, Tensor] = {}
    names = {id(p): name for name, p in parameters.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                if id(p) not in names or not isinstance(state, Mapping):
                    continue
                for key, value in _sorted(state):
                    kept = _inside(value, f"{STATE}{key}")
                    found |= {f"{name} of {names[id(p)]}": tensor for name, tensor in kept}
    return found


def _inside(value: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one entry, with where they lie."""
    if isinstance(value, Tensor) and (is_sharded(value) or readable(value)):
        yield name, value
    elif isinstance(value, Tensor):  # one that wraps others, as 8-bit moments do, says which
        attributes, _ = getattr(value, "__tensor_flatten__", lambda: ((), None))()
        for attribute in attributes:
            yield from _inside(getattr(value, attribute), f"{name}.{attribute}")
    elif isinstance(value, (list, tuple)):
        for i, member in enumerate(value):
            yield from _inside(member, f"{name}[{i}]")
    elif isinstance(value, Mapping):
        for key, member in _sorted(value):
            yield from _inside(member, f"{name}[{key!r}]")


def _sorted(entries: Mapping[object, object]) -> list[tuple[object, object]]:
    return sorted(entries.items(), key=lambda entry: str(entry[0]))


def of_unknown_optimizers(optimizers: Sequence[Optimizer], names: Iterable[str]) -> frozenset[str]:
    """Of the names that `state_tensors` gives, those of which nobody says that replicas share them.

    Torch's own optimizers compute what they keep from weights and reduced gradients alone. Any other may
    count what its rank has seen, or keep the moments of some weights on one rank.
    """
    torchs = all(str(type(o).step.__module__).partition(".")[0] == "torch" for o in optimizers)
    known = tuple(f"{STATE}{key} of " for key in _TORCHS) if torchs else ()
    return frozenset(name for name in names if name.startswith(STATE) and not name.startswith(known))


STATE = "optimizer state "
_TORCHS = (
    *("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "sum", "square_avg"),
    *("acc_delta", "grad_avg", "mu_product", "prev", "step_size", "mu", "eta", "ax", "row_var", "col_var"),
    "variance",
)


def layout_word(tensors: Mapping[str, Tensor]) -> Tensor:
    """One int64 word over names, dtypes and shapes: ranks may only compare what both keep."""
    text = repr([(name, str(t.dtype), tuple(t.shape)) for name, t in tensors.items()])
    word = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return torch.tensor([word], dtype=torch.int64, device="cpu")
