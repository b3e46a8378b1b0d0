"""Every backend against the specification, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.agent.digest_backends import (
    IN_INTERPRETER,
    NAMES,
    REAL_WIDTHS,
    Backend,
    backend_of,
    check,
    of_dtype,
    random_bytes,
    raw_bytes,
    unsigned,
)
from training_agent import _digest_backends
from training_agent._evidence import Depth, Evidence
from training_agent.digest import (
    BLOCK,
    DIGEST_VERSION,
    KNOWN_ANSWER,
    KNOWN_INPUT,
    SPLIT_WORDS,
    digest,
    key_block,
    reference_digest,
)

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BIT_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.complex32]
SIZES = [0, 1, 2, 3, 5, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param)


def test_version_one_is_pinned() -> None:
    """Manifests and alarms carry the version: other words need another number."""
    assert DIGEST_VERSION == 1
    assert key_block()[:2] == (4256627204, 4078953250)
    assert reference_digest(b"") == (0, 0, 0x8D4482AB6DD6C67E)
    assert reference_digest(KNOWN_INPUT) == KNOWN_ANSWER


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", FLOATS + EIGHT_BIT_FLOATS + INTEGERS + OTHERS, ids=str)
def test_equals_the_reference_for_every_dtype_and_size(backend: Backend, dtype: torch.dtype) -> None:
    check(backend, [of_dtype(dtype, size) for size in SIZES])


@pytest.mark.parametrize("tile", [1, 3])
def test_any_tile_size_gives_the_same_bits(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training_agent._digest_portable._TILE_BLOCKS", {"cpu": tile})
    check(backend_of("portable"), [random_bytes(4 * (size * BLOCK + 7), seed=size) for size in range(5)])


def test_layouts_that_are_not_plain_memory(backend: Backend) -> None:
    x = of_dtype(torch.float32, 60).view(6, 10)
    odd = random_bytes(401)
    check(
        backend,
        [
            x.t(),
            x[:, ::3],
            x[1:, 2:],
            x[0].expand(7, 10),
            x.view(1, 6, 1, 10).to(memory_format=torch.channels_last),
            odd[1:],
            odd[3:400],
            odd[1:201].view(torch.uint8),
            odd[2:202].view(torch.bfloat16),
            x[0, 0],
            torch.nn.Parameter(x.clone()),
        ],
    )
    z = of_dtype(torch.complex64, 9)
    for lazy in (z.conj(), torch._neg_view(x), z.conj().imag):
        plain = lazy.resolve_conj().resolve_neg()
        assert unsigned(backend([lazy], SPLIT_WORDS)) == [reference_digest(raw_bytes(plain))]


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*beta state", "ignore:.*prototype stage")
def test_what_has_no_bytes_is_refused_by_its_kind_and_costs_no_backend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A fallback would stay for the rest of the process, and a read of address 0 ends it."""
    digest([torch.ones(3)])
    capsys.readouterr()
    square, given_back = torch.eye(3), torch.ones(3)
    given_back.untyped_storage().resize_(0)
    for name, tensor in {
        "sparse_coo": square.to_sparse(),
        "sparse_csr": square.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([square[0], square[1, :2]], layout=torch.jagged),
        "on meta": square.to("meta"),
        "on cpu": given_back,
    }.items():
        with pytest.raises(TypeError, match=f"tensor 1 of 2 has no bytes.*{name}"):
            digest([square, tensor])
    with pytest.raises(TypeError, match="has no bytes"):
        torch.func.grad(lambda x: (digest([x]), x.sum())[1])(square)
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_of_a_quantized_tensor_the_integers_are_read(backend: Backend) -> None:
    x = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 0, torch.qint8)
    assert torch.equal(backend([x], SPLIT_WORDS), backend([x.int_repr()], SPLIT_WORDS))


def test_no_tensors() -> None:
    assert digest([]).shape == (0, 3)


def test_shape_is_not_part_of_it_but_length_is() -> None:
    x = torch.zeros(12)
    assert torch.equal(digest([x]), digest([x.view(3, 4)]))
    assert not torch.equal(digest([x]), digest([torch.zeros(13)]))
    zeros = unsigned(digest([torch.zeros(n, dtype=torch.uint8) for n in range(9)]))
    assert len(set(zeros)) == 9


def test_same_bits_inside_autograd_inference_and_deterministic_mode() -> None:
    x = torch.randn(BLOCK + 3, requires_grad=True)
    plain = digest([x])
    assert not plain.requires_grad
    with torch.inference_mode():
        assert torch.equal(digest([x]), plain)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(digest([x]), plain)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("limit", [8, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_split_tensors_equal_the_reference(backend: Backend, limit: int) -> None:
    sizes = [0, 3, 32, 33, 4 * BLOCK, 16 * BLOCK + 9]
    if limit == 8:  # thousands of pieces are too many for an interpreter
        sizes = [0, 3, 32, 33, 70, 257]
    tensors = [random_bytes(size, seed=size) for size in sizes]
    check(backend, tensors, limit)


def test_small_tensors_share_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of biases must not cost hundreds of passes."""
    import training_agent._digest_portable as portable

    calls: list[int] = []
    original: Any = portable._add_tails
    monkeypatch.setattr(
        portable, "_add_tails", lambda out, tails: (calls.append(len(tails)), original(out, tails))
    )
    check(backend_of("portable"), [random_bytes(40 + n, seed=n) for n in range(100)])
    assert len(calls) == 2 and sum(calls) == 100


def short(table: torch.Tensor) -> str:
    return Evidence(Depth.BITS, table, len(table), 8).short()


def test_the_short_form_of_evidence_is_hex_and_tells_tables_apart() -> None:
    a, b = digest([torch.zeros(3)]), digest([torch.ones(3)])
    assert len(short(a)) == 16 and int(short(a), 16) >= 0
    assert short(a) == short(a.clone())
    assert short(a) != short(b)
    assert short(torch.cat([a, b])) != short(torch.cat([b, a]))


def test_one_element_with_a_stride_is_digested_like_any_other() -> None:
    one = torch.arange(3)[::3]
    assert torch.equal(digest([one]), digest([one.clone()]))
    assert torch.equal(
        digest([torch.arange(6).reshape(2, 3)[:1, :1].t()]), digest([torch.zeros(1, 1).long()])
    )


def test_memory_that_is_full_costs_no_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be there again at the next step; the portable code would be used for the rest of the process."""

    def full(*_: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(_digest_backends, "_chosen", {"cpu": full})
    with pytest.raises(torch.cuda.OutOfMemoryError):
        digest([torch.ones(3)])
    assert _digest_backends._chosen == {"cpu": full}
    assert capsys.readouterr().out == ""


if IN_INTERPRETER:

    def test_the_widths_of_the_real_triton_launch_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
        backend_of("triton")  # widens them
        from training_agent import _digest_triton

        for name, width in REAL_WIDTHS.items():
            monkeypatch.setattr(_digest_triton, name, width)
        _digest_triton.check(torch.device("cpu"))
