"""Each rank reads its share of the reduced gradient; together they read all of it, once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from training_agent.checks.nonfinite import GradientNorms, Share, slices_of

CPU = torch.device("cpu")
NAN = float("nan")


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("sizes", [(5,), (0, 3, 0, 1), (1, 1, 1), (100, 7, 1000, 3), ()])
def test_shares_cover_each_element_once_and_are_of_one_size(sizes: tuple[int, ...], ranks: int) -> None:
    shares = [slices_of(sizes, Share(part, ranks)) for part in range(ranks)]
    seen = [(s.tensor, i) for share in shares for s in share for i in range(s.start, s.stop)]
    assert seen == [(index, i) for index, size in enumerate(sizes) for i in range(size)]
    amounts = [sum(s.stop - s.start for s in share) for share in shares]
    assert max(amounts) - min(amounts) <= 1


def test_a_share_of_a_large_model_is_one_run_of_parameters() -> None:
    sizes = [4096 * 4096] * 1000
    assert len(slices_of(sizes, Share(9000, 16384))) == 1
    assert len(slices_of(sizes, Share(1, 4))) == 250


def _flags(parameter: nn.Parameter, factors: Tensor, ranks: int) -> list[int]:
    """What each rank's read of the reduced gradient says, lazily named, so that nothing else is read."""
    flags = []
    for part in range(ranks):
        parameter.grad = None
        norms = GradientNorms([parameter], lambda: True, share=Share(part, ranks))
        (parameter * factors).sum().backward()
        flags.append(int(norms.reduced_nonfinite(CPU)))
        norms.remove()
    return flags


@pytest.mark.parametrize("value", [NAN, float("inf"), 1e25])
@pytest.mark.parametrize(("spot", "reader"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (11, 2)])
def test_a_bad_element_anywhere_is_seen_by_the_rank_that_reads_it(
    value: float, spot: int, reader: int
) -> None:
    factors = torch.ones(3, 4)
    factors.view(-1)[spot] = value
    assert _flags(nn.Parameter(torch.ones(3, 4)), factors, 3) == [int(r == reader) for r in range(3)]


def test_a_gradient_whose_elements_do_not_lie_in_order_is_read_whole() -> None:
    parameter = nn.Parameter(torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
    factors = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    factors[1, 2, 3, 3] = NAN
    assert _flags(parameter, factors, 2) == [1, 1]


def test_what_a_dying_loop_left_is_read_whole_so_that_all_ranks_answer_alike() -> None:
    parameter = nn.Parameter(torch.ones(4))
    norms = GradientNorms([parameter], lambda: True, share=Share(0, 2))
    (parameter * torch.tensor([1.0, 1.0, 1.0, NAN])).sum().backward()
    assert int(norms.reduced_nonfinite(CPU)) == 0, "it lies in the other share"
    assert norms.left_nonfinite()
    parameter.grad = None
    assert not norms.left_nonfinite()
