"""What a report does not say, by what the run's schedule had switched on. Pure.

In: `Figures`, None where a run has none. Out: sentences for `page`.
"""

from __future__ import annotations

from .run import Figures

RECORD = "A check that passed is a record of that step; it does not prove that a saved state is clean."
ONE_OFF = "A one-off finite fault on a step that was not audited is not seen by replays"
IN_BLOCK = "; layer audits see one in the block that they compare of a step"
REDUCTION_OFF = "A finite fault inside the all-reduce that is the same on all ranks is not seen."
REDUCTION_ON = (
    "A finite fault inside the all-reduce that is the same on all ranks is seen by a checksum only, from "
    "1e-6 of a float32 gradient's norm on; the checksum names nobody."
)
REDUCTION_UNKNOWN = (
    "A finite fault inside the all-reduce that is the same on all ranks is not seen without "
    "Schedule(reduction=True), and this run's records do not say whether that was on."
)
OTHER_KERNELS = (
    "Audits run deterministic kernels: a fault that only the kernels of other steps show is not seen."
)
COUNTS = (
    "Counts follow the state from checkpoint to checkpoint: steps after the last one are in none of them."
)
SWITCHED_OFF = {
    "strict": "Steps that were saved were not audited for that (strict=False): a checkpoint may hold updates "
    "that no audit has passed.",
    "check_on_checkpoint": "Weights were not compared for a save (check_on_checkpoint=False): a checkpoint "
    "may hold weights that differ between ranks.",
    "optimizer_state": "The optimizer's state was not compared (optimizer_state=False): a checkpoint may "
    "hold moments that differ between ranks.",
}


def limits(figures: Figures | None) -> tuple[str, ...]:
    """In the order in which they are read."""
    plan = figures.schedule if figures is not None else {}
    forced = figures is not None and 0 < figures.audits == figures.audits_forced
    layered = figures is not None and figures.layers is not None
    known = plan.get("reduction")
    reduction = REDUCTION_UNKNOWN if known is None else REDUCTION_ON if known else REDUCTION_OFF
    off = [text for switch, text in SWITCHED_OFF.items() if plan.get(switch) is False]
    kernels = [] if forced else [OTHER_KERNELS]
    return (RECORD, ONE_OFF + IN_BLOCK * layered + ".", reduction, *kernels, *off, COUNTS)
