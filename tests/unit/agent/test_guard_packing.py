"""A packed value comes back with the same contents and the same layout in memory: bits depend on both."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from training_agent._packing import pack, unpack

CPU = torch.device("cpu")
BASE = torch.arange(48, dtype=torch.float32).view(6, 8)


def round_trip(value: object) -> object:
    return unpack(pack(value, CPU), CPU)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE[:, :-1],
        BASE[1:],
        BASE.t(),
        BASE[:, 3],
        torch.randn(3, 1).expand(3, 5),
        torch.randn(()),
        torch.empty(0, 3),
        torch.randn(5).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, requires_grad=True),
        torch.arange(5, dtype=torch.int8)[1:],
        torch.randn(64, dtype=torch.float64),
    ],
    ids=lambda t: f"{t.dtype}-{tuple(t.shape)}-{t.stride()}".replace("torch.", ""),
)
def test_a_tensor_comes_back_bit_for_bit(tensor: Tensor) -> None:
    back = round_trip((torch.zeros(3, dtype=torch.int8), tensor))[1]
    assert torch.equal(back, tensor)
    assert (back.dtype, back.requires_grad) == (tensor.dtype, tensor.requires_grad)


@pytest.mark.parametrize("tensor", [BASE, BASE[:, :-1], BASE[1:], BASE.t(), torch.randn(3, 1).expand(3, 5)])
def test_strides_and_alignment_are_kept_because_kernels_are_chosen_by_them(tensor: Tensor) -> None:
    back = round_trip(tensor)
    assert isinstance(back, Tensor)
    assert back.stride() == tensor.stride()
    assert back.data_ptr() % 64 == tensor.data_ptr() % 64


def test_overlapping_elements_come_back_contiguous() -> None:
    windows = torch.arange(12).unfold(0, 4, 2)
    assert torch.equal(round_trip(windows), windows)


@dataclass
class Batch:
    tokens: Tensor
    label: str


def test_tensors_inside_any_object_travel_as_bytes_and_shared_ones_stay_shared() -> None:
    parcel = pack({"batch": Batch(BASE, "a"), "again": BASE, "n": [1, None, "x"]}, CPU)
    assert BASE.numpy().tobytes() not in parcel.header
    assert parcel.payload.numel() == BASE.numel() * 4
    back = unpack(parcel, CPU)
    assert back["batch"].label == "a"
    assert back["batch"].tokens is back["again"]
    assert back["n"] == [1, None, "x"]


def test_a_received_tensor_has_memory_of_its_own() -> None:
    parcel = pack(BASE, CPU)
    first, second = unpack(parcel, CPU), unpack(parcel, CPU)
    first.zero_()
    assert torch.equal(second, BASE)


def test_what_cannot_be_pickled_is_said() -> None:
    with pytest.raises((AttributeError, TypeError)):
        pack({"generator": (i for i in range(3))}, CPU)
