"""The rows of the published table under the ported design: does the reference do what was published?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.matrix import judge
from tests.matrix.job import MatrixJob
from tests.matrix.rows import Case, Config
from tests.published.design import PublishedGuard
from training_agent import Schedule

# Not in the published table, or of a kind that only ours has: a comm hook of its own, no loss function.
LEFT_OUT = {
    "NaN inside the all-reduce": "the design itself holds the comm-hook slot that the injection needs",
    "loss x1.7 without compute_loss": "the design always replays the loss function",
    "weight gradient, forward-only audits": "forward-only audits are not ported",
    "bit 3, forward-only audits": "forward-only audits are not ported",
    "one column x1.1, forward-only audits": "forward-only audits are not ported",
    "no fault, forward-only audits": "forward-only audits are not ported",
}
# Where the published answer is another one than ours.
PUBLISHED = {
    "NaN in the data": {"named": ["victim"]},
    "weight bit 22, check not forced": {"check": "replay"},
}


class PublishedJob(MatrixJob):
    """The matrix's job with the published guard in it."""

    def _attach(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        loss_of: Callable[..., Tensor] | None,
        schedule: Schedule,
        more: dict[str, Any],
    ) -> PublishedGuard:
        assert loss_of is not None
        per_node = self.layout["ranks"] // self.layout["nodes"]
        return PublishedGuard(ddp, optimizer, loss_of, self.batch, schedule, per_node)


def cases(table: dict[str, Any], layout: str, *, short: bool = False) -> Iterator[Case]:
    """Every row that the published table has; few for the short form."""
    for row in table["rows"]:
        if row["name"] not in LEFT_OUT and (row.get("short") or not short):
            yield Case(row, Config(layout, "bf16", "immediate", "fixed"), blinded=False)


def problems(case: Case, table: dict[str, Any], ranks: list[dict[str, Any]]) -> list[str]:
    """Check, step and names as published; the agent's finer vocabulary is not asked for."""
    expect = {**case.row["expect"], **PUBLISHED.get(case.row["name"], {})}
    layout = table["layouts"][case.config.layout]
    alarms = [r["alarm"] and json.loads(r["alarm"]) for r in ranks]
    wrong = [r["error"] for r in ranks if r["error"]]
    if any(a != alarms[0] for a in alarms):
        wrong.append("the ranks' alarms differ")
    found = alarms[0] or {"check": None, "step": None, "findings": []}
    shift = judge.shift_of(case, table)
    names = sorted(judge.oracle.rank_of(role, layout, shift) for role in expect.get("named", []))
    seen = sorted({f["rank"] for f in found["findings"] if f["rank"] is not None})
    if (found["check"], found["step"], seen) != (expect["check"], expect.get("step"), names):
        wrong.append(
            f"{found['check']} at {found['step']} names {seen}, published: {expect['check']}, {names}"
        )
    return wrong
