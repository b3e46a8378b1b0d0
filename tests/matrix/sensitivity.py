"""Flips every bit at every place and counts what the checks see: `python -m tests.matrix.sensitivity`.

Comes in: the matrix's decoder. Goes out: per place and check how many flips were seen, had no effect or were
missed; Markdown for `docs/detection.md`. One process: what two ranks would compare is computed twice.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from examples.llama import micro_batch
from tests.matrix.job import MODEL, Decoder
from tests.matrix.markdown import replace_section
from training_agent.digest import digest
from training_agent.faults import Flip, Lanes, Shape, Spot, corrupted

SEEDS = 20
COMPUTED = ("forward output", "input gradient", "weight gradient")
Shapes = Callable[[int, int], tuple[int, Shape]]  # of a bit and a seed: the bit to count, and the shape
CHECKS = ("deterministic audit", "forward-only audit", "loss bits alone", "non-finite", "weight check")


@dataclass(frozen=True, slots=True)
class Computed:
    """What one rank computed: loss, outputs, gradients."""

    loss: Tensor
    output: Tensor
    gradients: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    place: str
    dtype: str
    shapes: Shapes
    bits: int


@dataclass(slots=True)
class Count:
    """Outcomes of one row of the table."""

    flips: int = 0
    harmless: int = 0  # not one bit of loss, output or gradients changed
    seen: Counter[str] = field(default_factory=Counter)
    missed_bits: Counter[int] = field(default_factory=Counter)  # harmful ones that no check saw


class Bench:
    """The decoder, one batch, and a place to strike."""

    def __init__(self, dtype: str) -> None:
        torch.manual_seed(3)
        self.model, self.bf16 = Decoder(MODEL), dtype == "bf16"
        self.layer: nn.Linear = self.model.blocks[1].feed_forward.down
        self.tokens = micro_batch(MODEL, 1, 5, 0)
        self.gain = torch.ones(self.tokens.shape[0], self.tokens.shape[1] - 1, 1)

    def compute(self, place: str, shape: Shape | None, spot: Spot) -> Computed:
        """Forward and backward, wrong at `place`."""
        hooks = [] if shape is None else self._strike(place, shape, spot)
        self.model.zero_grad()
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
                output = self.model(self.tokens[:, :-1], self.gain)
            loss = F.cross_entropy(output.float().flatten(0, 1), self.tokens[:, 1:].flatten())
            loss.backward()
        finally:
            for hook in hooks:
                hook.remove()
        gradients = tuple(p.grad.clone() for p in self.model.parameters() if p.grad is not None)
        return Computed(loss.detach(), output.detach(), gradients)

    def _strike(self, place: str, shape: Shape, spot: Spot) -> list[Any]:
        return strike(self.layer, place, lambda tensor: spoiled(tensor, shape, spot))


def spoiled(tensor: Tensor, shape: Shape, spot: Spot) -> Tensor:
    """The tensor with wrong bits; the gradient path stays."""
    bits = corrupted(tensor, shape, spot)
    assert bits is not None
    out = tensor.clone()
    out.data.copy_(bits)
    return out


def strike(layer: nn.Linear, place: str, wrong: Callable[[Tensor], Tensor]) -> list[Any]:
    """Hooks through which a place of the computation goes wrong."""
    if place == "forward output":
        return [layer.register_forward_hook(lambda _m, _a, out: wrong(out))]
    if place == "weight gradient":
        return [layer.weight.register_hook(wrong)]

    def on_input(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        alias = args[0].view_as(args[0])
        alias.register_hook(wrong)
        return (alias,)

    return [layer.register_forward_pre_hook(on_input)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """What the agent compares: digests."""
    return torch.equal(digest(a), digest(b))


def judge_computed(count: Count, bit: int, healthy: Computed, hit: Computed) -> None:
    """One flip during forward or backward."""
    count.flips += 1
    pairs = [
        (healthy.loss, hit.loss),
        (healthy.output, hit.output),
        *zip(healthy.gradients, hit.gradients, strict=True),
    ]
    if all(torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8)) for a, b in pairs):
        count.harmless += 1
        return
    loss, output = same([healthy.loss], [hit.loss]), same([healthy.output], [hit.output])
    if not (loss and output and same(list(healthy.gradients), list(hit.gradients))):
        count.seen["deterministic audit"] += 1
    else:
        count.missed_bits[bit] += 1
    if not (loss and output):
        count.seen["forward-only audit"] += 1
    if not loss:
        count.seen["loss bits alone"] += 1
    if not all(bool(torch.isfinite(torch.linalg.vector_norm(g.float()))) for g in hit.gradients):
        count.seen["non-finite"] += 1


def computed_place(place: str, dtype: str, shapes: Shapes, bits: int, seeds: int) -> Count:
    """All bits and seeds at one place of the computation."""
    bench, count = Bench(dtype), Count()
    healthy = bench.compute(place, None, Spot())
    for bit in range(bits):
        for seed in range(seeds):
            position, shape = shapes(bit, seed)
            judge_computed(count, position, healthy, bench.compute(place, shape, Spot(seed)))
    return count


class Store:
    """Two updates of the decoder, wrong in what is stored or reduced."""

    def __init__(self, place: str) -> None:
        self.place = place
        bench = Bench("fp32")
        self.gradients = bench.compute("", None, Spot()).gradients
        self.weights = [p.detach().clone() for p in bench.model.parameters()]
        self.struck = [p is bench.layer.weight for p in bench.model.parameters()].index(True)

    def updated(self, shape: Shape | None, spot: Spot) -> tuple[list[Tensor], bool]:
        """The weights after the second update, and whether check 1 let it happen."""
        leaves = [nn.Parameter(w.clone()) for w in self.weights]
        optimizer = torch.optim.AdamW(leaves, lr=3e-3)
        self._update(leaves, optimizer, None)
        if self.place == "optimizer state":
            self._overwrite(optimizer.state[leaves[self.struck]]["exp_avg"], shape, spot)
        wrong = None
        if self.place == "reduced gradient" and shape is not None:
            wrong = corrupted(self.gradients[self.struck], shape, spot)
        finite = wrong is None or bool(torch.isfinite(torch.linalg.vector_norm(wrong)))
        if finite:
            self._update(leaves, optimizer, wrong)
        if self.place == "weights":
            self._overwrite(leaves[self.struck].data, shape, spot)
        return [leaf.detach() for leaf in leaves], finite

    def _update(
        self, leaves: list[nn.Parameter], optimizer: torch.optim.Optimizer, wrong: Tensor | None
    ) -> None:
        for i, leaf in enumerate(leaves):
            leaf.grad = (self.gradients[i] if wrong is None or i != self.struck else wrong).clone()
        optimizer.step()

    def _overwrite(self, stored: Tensor, shape: Shape | None, spot: Spot) -> None:
        bits = None if shape is None else corrupted(stored, shape, spot)
        if bits is not None:
            stored.copy_(bits)


def stored_place(place: str, shapes: Shapes, seeds: int) -> Count:
    """Weights, a moment of one replica, or the reduced gradient of all, followed by one more update."""
    store, count = Store(place), Count()
    healthy, _ = store.updated(None, Spot())
    for bit in range(32):
        for seed in range(seeds):
            position, shape = shapes(bit, seed)
            weights, finite = store.updated(shape, Spot(seed))
            pairs = zip(healthy, weights, strict=True)
            count.flips += 1
            if not finite:
                count.seen["non-finite"] += 1
            elif all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs):
                count.harmless += 1
            elif place != "reduced gradient" and not same(healthy, weights):
                count.seen["weight check"] += 1
            else:
                count.missed_bits[position] += 1
    return count


def single(bit: int, _seed: int) -> tuple[int, Shape]:
    """That bit of one element."""
    return bit, Flip((bit,))


def several(width: int) -> Shapes:
    """That bit and one or two others of the same element."""

    def shape(bit: int, seed: int) -> tuple[int, Shape]:
        others = [(bit + 1 + (7 * seed + 3 * k) % (width - 1)) % width for k in range(1 + seed % 2)]
        return bit, Flip(tuple({bit, *others}))

    return shape


def lanes(bit: int, seed: int) -> tuple[int, Shape]:
    """That bit of 4 to 32 adjacent elements."""
    return bit, Lanes((4, 8, 16, 32)[seed % 4], bit)


def table_rows() -> Iterator[Row]:
    """Every row of the table."""
    for name, kind in (
        ("one bit", None),
        ("two or three bits", several),
        ("one bit in 4 to 32 lanes", lanes),
    ):
        for place in COMPUTED:
            for dtype in ("fp32", "bf16"):
                bits = 16 if dtype == "bf16" and place != "weight gradient" else 32
                shapes = single if kind is None else several(bits) if kind is several else lanes
                yield Row(f"{name}, {place}, {dtype}", place, dtype, shapes, bits)
        for place in ("weights", "optimizer state", "reduced gradient"):
            shapes = single if kind is None else several(32) if kind is several else lanes
            yield Row(f"{name}, {place}, fp32", place, "fp32", shapes, 32)


def rows(seeds: int) -> Iterator[tuple[str, Count]]:
    """Every row with what was counted."""
    for row in table_rows():
        if row.place in COMPUTED:
            yield row.name, computed_place(row.place, row.dtype, row.shapes, row.bits, seeds)
        else:
            yield row.name, stored_place(row.place, row.shapes, seeds)


def table(seeds: int) -> str:
    """Markdown."""
    lines = [
        "| fault | flips | no effect | " + " | ".join(CHECKS) + " | missed by all | missed bits |",
        "|---|---|---|" + "---|" * (len(CHECKS) + 2),
    ]
    for name, count in rows(seeds):
        sys.stderr.write(f"- {name}: {count.flips} flips\n")
        missed = sum(count.missed_bits.values())
        bits = _ranges(sorted(count.missed_bits)) or "-"
        seen = " | ".join(str(count.seen[check]) for check in CHECKS)
        lines.append(f"| {name} | {count.flips} | {count.harmless} | {seen} | {missed} | {bits} |")
    return "\n".join(lines) + "\n"


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true", help="into docs/detection.md")
    parser.add_argument("--sample", type=int, metavar="FLIPS", help="through real guards instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.sample:
        from tests.matrix import sensitivity_job

        differing = sensitivity_job.differing(given.sample, given.seeds, timeout=3600)
        sys.stdout.write("\n".join([*differing, f"{given.sample} flips, {len(differing)} other verdicts\n"]))
        return int(bool(differing))
    text = table(given.seeds)
    if given.write:
        replace_section("sensitivity", text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
