"""Where the user's code keeps what it counts, carries along or draws: found, copied, put in, put back.

Comes in: the wrapped module, the loss function, states of communication hooks. Goes out: values that a replay
elsewhere needs; a block after which everything is as it was before. Next: `guard` runs whatever is no step
inside such blocks, `_settings` has replays made with a rank's own values.

Looked at: attributes of the model's modules and of objects in them; of the loss function what it is bound to,
its closure, the objects that it names among its module's globals, and those globals that it sets itself; of
modules that are found there also the buffers; Python's and numpy's random state. Torch's own things, ours,
and what those objects hold in turn are left alone.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ._generators import everywhere, state_of
from ._kept import ABSENT, Gone, KeptValues, Mark, copied, large_in, print_of, thawed
from ._large import LargeTensors
from ._startup import Setup
from ._walk import modules

_TORCHS = frozenset(vars(nn.Module()))
_LEFT_ALONE = {*sys.stdlib_module_names, "numpy", "torch", "training_agent"} - {"types", "argparse"}
_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch._dynamo")  # modules with a life of their own
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"  # whose states are a program's
_CACHES: Any = parametrize
_DEPTH = 3  # functions that functions name


class _Table:
    """Names and values that belong to one thing."""

    def __init__(self, values: dict[str, Any], only: frozenset[str] | None = None) -> None:
        self._values, self._only = values, only

    def items(self) -> list[tuple[str, Any]]:
        values = list(self._values.items())
        if self._only is None:
            return [(name, v) for name, v in values if name not in _TORCHS and isinstance(name, str)]
        return [(name, v) for name, v in values if name in self._only]

    def get(self, name: str) -> Any:
        return self._values.get(name, ABSENT)

    def put(self, name: str, value: Any) -> None:
        """ABSENT takes the name away."""
        if value is not ABSENT:
            self._values[name] = value
        else:
            self._values.pop(name, None)


class _Generators(_Table):
    """The generators that the process shares: always there, only their states change."""

    def __init__(self) -> None:
        super().__init__(everywhere(), frozenset(("python", "numpy")))

    def put(self, name: str, value: Any) -> None:
        """Nothing to do: see `thawed`."""


class _Cells(_Table):
    """Variables of a closure."""

    def __init__(self, function: types.FunctionType) -> None:
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        self._cells = dict(zip(names, cells, strict=True))

    def items(self) -> list[tuple[str, Any]]:
        return [(name, value) for name in self._cells if (value := self.get(name)) is not ABSENT]

    def get(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except (KeyError, ValueError):  # not set yet
            return ABSENT

    def put(self, name: str, value: Any) -> None:
        if value is not ABSENT and self.get(name) is not value:
            self._cells[name].cell_contents = value


class _Slots(_Table):
    """Attributes of an object that has no dictionary."""

    def __init__(self, owner: Any) -> None:
        every = (getattr(kind, "__slots__", ()) for kind in type(owner).__mro__)
        self._owner = owner
        self._names = [n for names in every for n in ((names,) if isinstance(names, str) else names)]

    def items(self) -> list[tuple[str, Any]]:
        return [(name, value) for name in self._names if (value := self.get(name)) is not ABSENT]

    def get(self, name: str) -> Any:
        return getattr(self._owner, name, ABSENT)

    def put(self, name: str, value: Any) -> None:
        if value is ABSENT:
            object.__delattr__(self._owner, name)
        elif self.get(name) is not value:
            object.__setattr__(self._owner, name, value)


class Surroundings:
    """Those of one training loop. Nothing is cached, since models change."""

    def __init__(self, module: nn.Module, beside: Sequence[Any]) -> None:
        self._module, self._beside = module, tuple(beside)
        self._begun: KeptValues = {}
        self.large = LargeTensors()
        self.drawn: set[tuple[str, str]] = set()  # generators that a discarded computation has used

    def kept(self) -> KeptValues:
        """Copies of what can be shipped."""
        found = {}
        for place, table in self._tables().items():
            for name, value in table.items():
                if (one := copied(value)) is not ABSENT:
                    found[place, name] = one
        return found

    def put(self, values: KeptValues) -> None:
        """Put these values in their places."""
        tables = self._tables()
        for (place, name), value in values.items():
            now = tables[place].get(name) if place in tables else value
            if value is Gone.GONE:  # a class may have a default for it
                if now is not ABSENT and now is not value:
                    tables[place].put(name, ABSENT)
            # What is equal stays: a compiler looks at what is new.
            elif now is not value and print_of(copied(now)) != print_of(value):
                tables[place].put(name, thawed(value, now))

    def lacking(self, keys: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of which this rank has the place and not the name."""
        tables = self._tables()
        return {
            (place, name) for place, name in keys if place in tables and tables[place].get(name) is ABSENT
        }

    @contextmanager
    def beginning(self, kept: KeptValues | None) -> Iterator[None]:
        """Inside the block computations begin where this rank's own step began, if that is known."""
        before, self._begun = self._begun, kept or {}
        try:
            yield
        finally:
            self._begun = before

    @contextmanager
    def unchanged(self, values: KeptValues | None = None) -> Iterator[None]:
        """A block, with these `values` in their places, after which everything is what it was before.

        Weights that `parametrize.cached()` keeps are those of another graph, on either side.
        """
        tables = self._tables()
        before = {place: {n: Mark(v) for n, v in table.items()} for place, table in tables.items()}
        cached, _CACHES._cache = _CACHES._cache, {}
        try:
            self.put({**self._begun, **(values or {})})
            with self.large.watched(_large(tables)):
                yield
        finally:
            _CACHES._cache = cached
            for place, table in tables.items():
                marks = before[place]
                self.drawn |= {(place, name) for name, mark in marks.items() if mark.drawn()}
                for name, value in table.items():
                    if name not in marks and not isinstance(value, nn.Module):
                        table.put(name, ABSENT)
                for name, mark in marks.items():
                    value = mark.restore()
                    if table.get(name) is not value:
                        table.put(name, value)

    def _tables(self) -> dict[str, _Table]:
        walk = _Walk()
        walk.module(self._module, "model", buffers=False)  # they travel with each capture
        for number, value in enumerate(self._beside):
            walk.reach(value, f"beside {number}")
        return walk.tables


def surroundings(setup: Setup) -> Surroundings:
    """Those of what `attach` was given."""
    hooks = [value for pair in getattr(setup.outer, "_comm_hooks", []) for value in pair]
    return Surroundings(setup.module, (setup.compute_loss, *hooks))  # a discarded pass runs those as well


class _Walk:
    """Visits everything once; what has the same way to it has the same place on every rank."""

    def __init__(self) -> None:
        self.tables: dict[str, _Table] = {"process": _Generators()}
        self._seen: set[int] = set()

    def module(self, module: nn.Module, place: str, *, buffers: bool) -> None:
        """Its layers, and the objects in their attributes."""
        for number, layer in enumerate(modules(module)):
            if not self._new(layer) or type(layer).__module__.startswith(_WRAPPERS):
                continue
            here = f"{place} {number}"
            self.tables[here] = own = _Table(vars(layer))
            if isinstance(layer._modules, dict):  # a forward may take turns with its parts
                self.tables[f"{here} parts"] = _Table(layer._modules, frozenset(layer._modules))
            if buffers and isinstance(layer._buffers, dict):
                self.tables[f"{here} buffers"] = _Table(layer._buffers, frozenset(layer._buffers))
            for name, value in own.items():
                self._object(value, f"{here}.{name}")

    def reach(self, value: Any, place: str, depth: int = _DEPTH) -> None:
        """Whatever a loss function is, and what it refers to."""
        if isinstance(value, nn.Module):
            self.module(value, place, buffers=True)
        elif isinstance(value, functools.partial):
            for number, one in enumerate((value.func, *value.args, *value.keywords.values())):
                self.reach(one, f"{place} {number}", depth)
        elif isinstance(value, types.MethodType):
            self.reach(value.__self__, f"{place} self", depth)
            self.reach(value.__func__, place, depth)
        elif isinstance(value, types.FunctionType):
            if depth and _library(value) not in _LEFT_ALONE and self._new(value):
                self._function(value, place, depth - 1)
        elif self._object(value, place):
            for name, inner in self.tables[place].items():
                if isinstance(inner, nn.Module):
                    self.module(inner, f"{place}.{name}", buffers=True)
            self.reach(vars(type(value)).get("__call__"), f"{place}()", depth)  # it may count in its globals

    def _function(self, function: types.FunctionType, place: str, depth: int) -> None:
        closed = _Cells(function)
        self.tables[f"{place} closure"] = closed
        used, stored = _names(function.__code__)
        world = function.__globals__
        self.tables[f"{place} globals"] = _Table(world, stored)
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        named = [(name, world.get(name)) for name in used]
        for name, value in (*closed.items(), *named, *((f"={i}", v) for i, v in enumerate(given))):
            self.reach(value, f"{place}.{name}", depth)

    def _object(self, value: Any, place: str) -> bool:
        """Whether it is somebody's object with attributes, and new; then it has a table."""
        attributes, slots = hasattr(value, "__dict__"), hasattr(type(value), "__slots__")
        if isinstance(value, _NO_OBJECTS) or not (attributes or slots):
            return False
        left_alone = _library(type(value)) in _LEFT_ALONE and not type(value).__module__.startswith(_HOOKS)
        if left_alone or state_of(value) is not None or not self._new(value):
            return False
        self.tables[place] = _Table(vars(value)) if attributes else _Slots(value)
        return True

    def _new(self, value: Any) -> bool:
        known = id(value) in self._seen
        self._seen.add(id(value))
        return not known


_NO_OBJECTS = (nn.Module, Optimizer, Tensor, type, types.ModuleType, types.FunctionType, types.MethodType,
               types.BuiltinFunctionType, functools.partial)  # fmt: skip


def _library(thing: Any) -> str:
    """The package that a class or function comes from."""
    return str(thing.__module__ or "").partition(".")[0]


def _large(tables: dict[str, _Table]) -> dict[str, Tensor]:
    """Each tensor that is too large to be copied, once, by a name that people can find it under."""
    found: dict[int, tuple[str, Tensor]] = {}
    for place, table in tables.items():
        for name, value in table.items():
            for title, tensor in large_in(value, name).items():
                found.setdefault(id(tensor), (f"{title} of {place}", tensor))
    return dict(found.values())


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names that it uses, and globals that it sets; functions inside it included."""
    used, stored = dict.fromkeys(code.co_names), set[str]()
    stored |= {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            more, sets = _names(constant)
            used |= dict.fromkeys(more)
            stored |= sets
    return tuple(used), frozenset(stored)
