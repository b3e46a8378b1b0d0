"""`sdc replay CAPSULE`: computes the micro-batch of an alarm again, here, and says equal or different.

In: a capsule, a checkpoint, the user's model. Out: the answer, on request a receipt for the pipeline and a
reference for other GPUs. The work is done by `training_agent.capsule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract import ContractError, Env, Place, encode, to_plain
from ..errors import AgentError, CapsuleError
from ..settings import AgentSettings
from .failures import CannotAskError, CliError, Exit, NotFoundError
from .incident_id import checked
from .screen import Screen

if TYPE_CHECKING:
    from ..capsule.content import Capsule
    from ..capsule.recompute import Outcome, Reference


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command."""

    capsule: Path
    model: str
    checkpoint: Path | None = None
    repeat: int = 10
    device: str | None = None
    reference: Path | None = None
    save_reference: Path | None = None
    incident: str | None = None
    receipt: Path | None = None
    publish: bool = False


class UsageError(CliError):
    """Options that do not go together."""

    code = Exit.USAGE


def replay(screen: Screen, wanted: Wanted, environ: Mapping[str, str], client: Callable[[str], Any]) -> Exit:
    """Compute it, say what came out; 0 equal, 1 different, 4 undecided.

    Raises:
        NotFoundError: there is no such file, or the incident's id is none.
        CannotAskError: it cannot be computed here, or the receipt could not be delivered.
        UsageError: a receipt without an incident, or a number of repeats below one.
    """
    _require(wanted)
    try:
        capsule, outcome = _compute(screen, wanted)
        receipt = _receipt(capsule, outcome, wanted, environ)
    except (AgentError, ContractError, OSError, ImportError) as e:
        raise CannotAskError(str(e), "Run it in the training image, with the job's own model.") from e
    except SystemExit as e:  # whatever it asked for: codes 0 and 1 are answers of this command
        raise CannotAskError(
            f"the code behind --model {wanted.model} ended the process (sys.exit({e.code!r})).",
            "Name a function that returns the model; a script's own start belongs under __main__.",
        ) from None
    code = _CODES[outcome.answer.value]
    if outcome.reference is not None and wanted.save_reference is not None:
        from ..capsule.recompute import reference_text

        _write(wanted.save_reference, reference_text(outcome.reference))
    if receipt is not None and wanted.receipt is not None:
        _write(wanted.receipt, encode(receipt))
    delivered = _publish(receipt, wanted, environ, client)
    screen.document(
        {
            "answer": outcome.answer.value,
            "why": outcome.why,
            "capsule": {"sha256": capsule.sha256, **to_plain(capsule.facts), "weights": None},
            "expected": outcome.expected,
            "repeats": [asdict(r) for r in outcome.repeats],
            "receipt": None if receipt is None else to_plain(receipt),
            "delivered": delivered,
        }
    )
    _tell(screen, capsule, outcome)
    if receipt is not None:
        screen.line(f"Receipt: {'passed' if receipt.passed else 'computed wrong again'}.")
    elif wanted.incident:
        screen.line("No receipt: an undecided replay is no evidence.", style="bold red")
    if delivered:
        screen.line("Delivered to the pipeline.")
    return code


_CODES = {"equal": Exit.DONE, "different": Exit.NO, "undecided": Exit.CANNOT_ASK}


def _require(wanted: Wanted) -> None:
    """What can be known before the work."""
    if wanted.repeat < 1:
        raise UsageError(f"--repeat {wanted.repeat}: give a number from 1 on.", "sdc replay --help")
    if (wanted.receipt or wanted.publish) and not wanted.incident:
        raise UsageError("A receipt belongs to an incident.", "--incident ID, as the mail shows it")
    if wanted.incident:
        checked(wanted.incident)
    if not wanted.capsule.is_file():
        raise NotFoundError(f"There is no capsule {wanted.capsule}.", "Alarms list theirs as `capsules`.")
    for path in filter(None, (wanted.save_reference, wanted.receipt)):
        if not path.parent.is_dir():
            raise NotFoundError(
                f"There is no folder {path.parent} to write {path.name} into.", "Make it first."
            )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as e:
        raise CannotAskError(f"{path} cannot be written: {e}.", "Give another place.") from e


def _compute(screen: Screen, wanted: Wanted) -> tuple[Capsule, Outcome]:
    import torch

    from ..capsule.content import load
    from ..capsule.recompute import replay as compute
    from ..capsule.subject import build, load_weights, put_weights

    capsule = load(wanted.capsule, torch.device("cpu"))
    try:
        device = torch.device(wanted.device or capsule.facts.device)
    except RuntimeError as e:
        raise CapsuleError(f"there is no such device: {str(e).splitlines()[0]}") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise CapsuleError("it was made on a GPU, and torch sees none here")
        capsule = load(wanted.capsule, device)
    with screen.progress(f"computing the micro-batch of rank {capsule.facts.micro_batch_of}"):
        subject = build(wanted.model, device)
        if wanted.checkpoint is not None:
            load_weights(subject, wanted.checkpoint)
        elif capsule.state is not None:
            put_weights(subject, capsule.state, str(wanted.capsule))
        keep = wanted.save_reference is not None
        return capsule, compute(capsule, subject, wanted.repeat, _reference(wanted), keep=keep)


def _reference(wanted: Wanted) -> Reference | None:
    from ..capsule.recompute import reference_of

    if wanted.reference is None:
        return None
    try:
        return reference_of(wanted.reference.read_text())
    except ValueError as e:  # ContractError is one
        raise CapsuleError(f"{wanted.reference} is no reference: {e}") from None


def _receipt(capsule: Capsule, outcome: Outcome, wanted: Wanted, environ: Mapping[str, str]) -> Any:
    from ..capsule.receipt import receipt_of

    if not wanted.incident:
        return None
    return receipt_of(capsule, outcome, wanted.incident, _place(environ), _cluster(capsule, environ))


def _place(environ: Mapping[str, str]) -> Place:
    return AgentSettings.from_env({**environ, Env.EVENT_BUS: ""}).place(0, 0)


def _cluster(capsule: Capsule, environ: Mapping[str, str]) -> str:
    return environ.get(Env.CLUSTER) or capsule.facts.cluster


def _publish(receipt: Any, wanted: Wanted, environ: Mapping[str, str], client: Callable[[str], Any]) -> bool:
    if receipt is None or not wanted.publish:
        return False
    from ..capsule.receipt import publish

    bus = environ.get(Env.EVENT_BUS)
    remedy = "The receipt can be published later: --receipt FILE keeps it."
    if not bus:
        raise CannotAskError(f"{Env.EVENT_BUS.value} is not set, so the receipt has nowhere to go.", remedy)
    try:
        refused = publish(receipt, client("events"), bus)
    except Exception as e:  # boto3 raises many kinds; all mean that it was not taken
        raise CannotAskError(f"The receipt could not be published: {type(e).__name__}: {e}", remedy) from e
    if refused:
        raise CannotAskError(f"The receipt was not taken: {refused}.", remedy)
    return True


def _ranks(ranks: tuple[int, ...]) -> str:
    """Few, so that the last column keeps room: `--json` has all of them."""
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"as rank {', '.join(map(str, ranks[:3]))}{more}" if ranks else "-"


def _tell(screen: Screen, capsule: Capsule, outcome: Outcome) -> None:
    facts = capsule.facts
    named = ", ".join(f"rank {p.rank} on {p.node}" for p in facts.named) or "nobody"
    screen.line(f"Step {facts.step} of job {facts.job.name}: check {facts.check}, named: {named}.")
    screen.line(f"Micro-batch of rank {facts.micro_batch_of}, compared: {facts.compared}.")
    rows = [
        (
            str(n),
            r.result,
            {None: "-", True: "equal", False: "different"}[r.equal],
            _ranks(r.observed_by),
            ", ".join(r.differs_in[:3]) + (", ..." if len(r.differs_in) > 3 else ""),
        )
        for n, r in enumerate(outcome.repeats, 1)
    ]
    screen.table(("REPEAT", "RESULT", "EXPECTED", "OBSERVED", "DIFFERS FROM THE RANK'S OWN IN"), rows)
    screen.line()
    style = "" if outcome.answer.value == "equal" else "bold red"
    screen.line(f"{outcome.answer.value.capitalize()}: {outcome.why}.", style=style)
