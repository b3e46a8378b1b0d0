"""Which buffers take part in a comparison, and what a changed copy says; one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from training_agent._manifest import _changed_state, state_rows
from training_agent._masters import master_weights, still_held
from training_agent._statistics import Statistics
from training_agent._steady_buffers import Apart, SteadyBuffers, judged, looks_like_a_flip
from training_agent._trail import raw
from training_agent.digest import digest

TABLE = 10000.0 ** (-torch.arange(32) / 37)


class Holder(nn.Module):
    """A weight, a norm, and some buffers."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("table", TABLE.clone())
        self.register_buffer("alias", self.table)
        self.register_buffer("weight", self.layer.weight.data)
        self.register_buffer("absent", None)
        with torch.inference_mode():
            self.register_buffer("inferred", torch.ones(3))
        self.register_buffer("meta", torch.empty(3, device="meta"))
        self.register_buffer("parameter", nn.Parameter(torch.ones(3)))


def begun() -> tuple[Holder, SteadyBuffers]:
    module = Holder()
    steady = SteadyBuffers(module)
    steady.begin(0)
    return module, steady


def watched(steady: SteadyBuffers) -> list[str]:
    names = steady.names()
    return [n for n, w in zip(names, steady.written(names), strict=True) if not w]


def test_only_plain_buffers_with_a_counter_and_memory_of_their_own_take_part() -> None:
    _, steady = begun()
    assert watched(steady) == ["table"]  # neither statistics nor what is a weight, has no counter or no bytes


@pytest.mark.parametrize(
    "write",
    [
        lambda m: m.table.add_(1),
        lambda m: setattr(m, "table", m.table.clone()),
        lambda m: m.table.resize_(8),
        lambda m: m.register_buffer("table", None),
    ],
    ids=["in place", "replaced", "resized", "removed"],
)
def test_whoever_writes_a_buffer_takes_it_out(write: object) -> None:
    module, steady = begun()
    module._buffers.pop("alias")
    write(module)  # type: ignore[operator]
    assert "table" not in watched(steady)


def test_what_ddps_broadcast_writes_is_nobodys_write_and_all_else_is() -> None:
    module, steady = begun()
    steady.before_broadcast()
    module.table.copy_(TABLE)
    steady.after_broadcast()
    assert watched(steady) == ["table"]
    module.table.copy_(TABLE)
    steady.before_broadcast()
    steady.after_broadcast()
    assert watched(steady) == []


def test_a_forward_of_the_module_alone_hides_no_write() -> None:
    module, steady = begun()
    module.table.copy_(TABLE)
    steady.after_broadcast()
    assert watched(steady) == []


def test_nothing_is_learned_before_a_step_was_trained_or_twice() -> None:
    _, steady = begun()
    assert [steady.may_learn(step) for step in (0, 1)] == [False, True]
    steady.learned = True
    assert not steady.may_learn(2)
    assert not SteadyBuffers(Holder()).may_learn(5)  # training has not begun


def test_one_changed_copy_is_suspect_all_alike_and_several_are_not() -> None:
    known = {"a": "x", "b": "x", "c": "x", "d": "x"}
    votes = {"a": ["x", "y", "x"], "b": ["y", "y", "y"], "c": ["y", "x", "y"], "d": ["y", "z", "w"]}
    assert judged(known, votes) == Apart({"a": 1}, ("b",), ("c", "d"))


def flip(tensor: Tensor, at: int, *bits: int) -> Tensor:
    changed = tensor.clone()
    words = changed.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    for bit in bits:
        words[at] ^= -(1 << 31) if bit == 31 and tensor.element_size() == 4 else 1 << bit
    return changed


@pytest.mark.parametrize("bit", [*range(5, 32)])
def test_each_single_bit_above_the_last_quarter_of_the_mantissa_is_a_flip(bit: int) -> None:
    assert looks_like_a_flip(flip(TABLE, 7, bit), TABLE)


def test_a_flip_is_seen_in_doubles_and_in_complex_numbers() -> None:
    assert looks_like_a_flip(flip(TABLE.double() / 3, 7, 40), TABLE.double() / 3)
    turned = torch.polar(torch.ones(32), TABLE)
    wrong = torch.view_as_complex(flip(torch.view_as_real(turned).reshape(-1), 9, 20).view(32, 2))
    assert looks_like_a_flip(wrong, turned)


def averaged(table: Tensor) -> Tensor:
    changed = table.clone()
    changed[7] = 0.9 * changed[7] + 0.1 * 0.777
    return changed


COUNTS = torch.arange(32.0)
PROGRAMS = {
    "a counter": (COUNTS, COUNTS + torch.eye(32)[2]),
    "a scale doubled": (torch.full((32,), 512.0), torch.full((32,), 512.0) + 512 * torch.eye(32)[3]),
    "an average": (TABLE, averaged(TABLE)),
    "the last bits of an average that stands still": (TABLE, flip(TABLE, 7, 0)),
    "two elements": (TABLE, flip(flip(TABLE, 7, 20), 8, 20)),
    "two bits": (TABLE, flip(TABLE, 7, 20, 21)),
    "all elements": (TABLE, TABLE * 2),
    "a flag": (torch.ones(32), torch.ones(32) - torch.eye(32)[1]),
    "integers": (torch.arange(64), torch.arange(64) + torch.eye(64, dtype=torch.int64)[4]),
    "a mask": (torch.ones(32, dtype=torch.bool), torch.arange(32) != 5),
    "half a number": (TABLE.bfloat16(), flip(TABLE.bfloat16(), 7, 5)),
    "one number": (TABLE[7:8], flip(TABLE, 7, 20)[7:8]),
    "nothing": (TABLE, TABLE.clone()),
    "another shape": (TABLE, TABLE[:16]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_programs_write_does_not_look_like_a_flip(name: str) -> None:
    before, after = PROGRAMS[name]
    assert not looks_like_a_flip(after, before)


# -- running statistics, master weights, a manifest's state ---------------------------------------------


class OwnForward(nn.BatchNorm1d):
    """As timm's norms with an activation: torch's statistics, and a buffer of the user's."""

    def __init__(self) -> None:
        super().__init__(3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class Users(nn.Module):
    """A buffer that the user's own forward may write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("histogram", torch.zeros(8))
        self.norm, self.own = nn.BatchNorm1d(3), OwnForward()


def test_statistics_are_those_of_torchs_layers_and_of_its_norms_subclasses() -> None:
    module = Users()
    norms = [*module.norm.buffers(), *list(module.own.buffers())[:3]]
    assert [id(t) for t in Statistics(module).now()] == [id(t) for t in norms]
    assert Statistics(module, compared=False).now() == []
    before = Statistics(module).settings()
    module.own.momentum = 0.3
    assert Statistics(module).settings() != before


@pytest.mark.filterwarnings("ignore")  # scripting is deprecated, and still found in models
def test_a_scripted_module_has_neither_statistics_nor_steady_buffers() -> None:
    scripted = nn.Sequential(torch.jit.script(nn.BatchNorm1d(3)), nn.BatchNorm1d(3))
    steady = SteadyBuffers(scripted)
    steady.begin(0)
    assert len(Statistics(scripted).now()) == 3
    assert watched(steady) == []


def test_masters_must_hold_the_models_values_in_its_order() -> None:
    model = nn.Linear(3, 2).bfloat16()
    named = dict(model.named_parameters())
    copies = [nn.Parameter(p.detach().float()) for p in named.values()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    masters = master_weights([optimizer], named)
    assert list(masters) == ["master weight of weight", "master weight of bias"]
    assert still_held(masters, [torch.optim.SGD(copies[:1], lr=0.1)]) == {next(iter(masters)): copies[0]}
    assert master_weights([torch.optim.SGD(copies[::-1], lr=0.1)], named) == {}
    copies[0].data += 1
    assert master_weights([optimizer], named) == {}
    assert master_weights([torch.optim.SGD(model.parameters(), lr=0.1)], named) == {}


def test_state_is_compared_with_its_manifest_by_name_and_only_in_the_same_type() -> None:
    state = {"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.int64)}
    rows = "0" * 48 + "".join(map(raw, digest(list(state.values()))))  # a weight's row comes first
    saved = state_rows(state, rows)
    assert (_changed_state(saved, state), state_rows(state, "")) == ([], {})
    assert _changed_state(saved, {"a": torch.ones(3) + 1, "c": torch.ones(1)}) == ["a"]
    assert _changed_state(saved, {"a": torch.ones(3).half()}) == []
