"""What a question means to the person who is asked: the same words in mail and page.

In: an approval. Out: the question, what each answer does, how sure we are. Used by `mails` and the page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .approval import Action, Approval
from .decision_table import ROWS, Contain, Then

SURE = {
    "S1": "Sure that it is no single GPU: more nodes are accused than bad GPUs can explain.",
    "N0": "Sure that it is no GPU: healthy peers compute the same NaN or Inf.",
    "W1": "Strong: its weights differ from a strict majority of replicas that must be equal.",
    "W2": "Open: replicas disagree, and no strict majority says which of them is wrong.",
    "C1": "Strong: a strict majority of independent GPUs computed other bits, all of them the same.",
    "C2": "Good: wrong in both ring comparisons, but nobody arbitrated; two bad GPUs could look the same.",
    "V1": "Strong: it repeats its own wrong answer, and a third GPU sides with the one that replayed.",
    "V2": "Open: asked again, it computed right. An intermittent fault looks the same.",
    "V3": "Open: the GPU that replayed computed wrong, not the one that was checked.",
    "V4": "Open: three GPUs disagree, and no majority says which of them is wrong.",
    "N1": "Open: NaN or Inf on one rank that healthy peers do not reproduce; may be an overflow of a norm.",
    "R1": "Open: only the sum over all ranks is wrong or not finite; nobody is named.",
    "X0": "Unknown: no row of the decision table fits what was seen.",
}  # one sentence a row: how far the evidence carries
CHECKLIST = (
    ("The same step on other nodes goes wrong alike, same seed", "a deterministic bug, not a GPU"),
    ("It follows one node when the job moves", "a strong candidate for silent data corruption"),
    ("It follows the rank, not the node", "software: a hook, or a value that only this rank has"),
    ("Replicas disagree, or a step replayed elsewhere gives other bits", "a strong signal"),
    ("NaN or Inf on one rank before the all-reduce", "a candidate; the first step that fired counts"),
    ("Fleet-wide and gradual", "recipe or optimizer"),
    (
        "Began at a change of data, configuration or library",
        "usually software, but no proof: a correct update once began to use an instruction that one core "
        "got wrong",
    ),
    ("The fault always repeats", "does not exclude a GPU"),
    ("Clean telemetry", "does not exonerate a node"),
    ("A spike of the global loss", "points nowhere; most spikes have cheaper causes, look there first"),
)  # (what is seen, what it says)


@dataclass(frozen=True, slots=True)
class Wording:
    """A question in words; `release` is "" where there is nothing to release beside the answer itself."""

    subject: str  # of the mail
    question: str
    why: str
    sure: str
    approve: str  # labels of the form
    keep: str
    release: str
    if_approve: str  # what then happens
    if_keep: str
    if_release: str
    if_silence: str


def wording(approval: Approval) -> Wording:
    """The words for one approval."""
    words = {Action.REPLACE: _replace, Action.DEEP_CHECK: _deep_check, Action.RELEASE: _release}
    made = words[approval.action](approval, SURE.get(approval.row, ""))
    return _as_drill(made) if approval.synthetic else made


def _as_drill(words: Wording) -> Wording:
    """The same question, and nothing behind it."""
    return replace(
        words,
        why="No job accuses it: the drill's node does not exist, and nothing was touched.",
        sure="",
        if_approve="The drill ends well: a person read the mail and answered. Nothing is replaced.",
        if_keep="The drill ends as rejected. Nothing is done.",
        if_release="The drill ends as rejected. Nothing is done.",
        if_silence="The drill ends as expired, and all approvers are told.",
    )


def _replace(approval: Approval, sure: str) -> Wording:
    node = approval.node
    return Wording(
        subject="review a replacement",
        question=f"Replace node {node}?",
        why=_accused(approval),
        sure=sure,
        approve="Approve: replace the node",
        keep="Reject: do not replace it, keep it cordoned",
        release="Reject: do not replace it, let it work again",
        if_approve=(
            f"HyperPod takes {approval.instance_id} away with all its volumes and brings a new instance "
            f"under a new name, in 20 to 30 minutes or more. {_job_goes_on(approval)}"
        ),
        if_keep="The node stays cordoned and out of the job. Nothing is replaced.",
        if_release="Our cordon is removed, and the job may run on the node again.",
        if_silence="The node stays cordoned, nothing is replaced, and all approvers are told.",
    )


def _deep_check(approval: Approval, sure: str) -> Wording:
    row = ROWS.get(approval.row)
    after = "Its result goes to a person."
    if row is not None and row.then is Then.RELEASE_OR_REPLACE:
        after = "If it passes, the node is released; if it fails, you are asked about a replacement."
    return Wording(
        subject="review a deep health check",
        question=f"Run a deep health check on node {approval.node}?",
        why=_accused(approval),
        sure=sure,
        approve="Approve: run the check; it may itself replace the node",
        keep="Reject: do not run it, keep the node cordoned",
        release="Reject: do not run it, let the node work again",
        if_approve=(
            "HyperPod's deep health check runs on the node, for up to two hours, and may by itself reboot or "
            f"replace it. {after}"
        ),
        if_keep="The node stays cordoned and out of the job. No check is run.",
        if_release="Our cordon is removed, and the job may run on the node again.",
        if_silence="The node stays cordoned, no check is run, and all approvers are told.",
    )


def _release(approval: Approval, sure: str) -> Wording:
    return Wording(
        subject="a job is held, review its release",
        question="Let the held job go?",
        why=f"An alarm names nobody ({_meaning(approval)}), so the job is held and no node is touched.",
        sure=sure,
        approve="Approve: let it go, back to before the alarm",
        keep="Reject: keep it held",
        release="",
        if_approve=f"Its agents stop holding. {_job_goes_on(approval)}",
        if_keep="The job stays held; end it, or move it, by hand.",
        if_release="",
        if_silence="The job stays held, and all approvers are told.",
    )


def _accused(approval: Approval) -> str:
    row = ROWS.get(approval.row)
    moved = ", and the job was moved off it" if row is not None and row.contain is Contain.ISOLATE else ""
    return (
        f"A training job accuses it of silent data corruption: {_meaning(approval)}. It is cordoned{moved}."
    )


def _meaning(approval: Approval) -> str:
    row = ROWS.get(approval.row)
    return f"{row.finding}; {row.meaning}" if row is not None else "see the facts"


def _job_goes_on(approval: Approval) -> str:
    alarm = approval.alarm
    if alarm is None:
        return "Then the job goes on."
    if alarm.resume_from is None:
        return "The job starts from its beginning: no checkpoint before the suspect window is known."
    return f"The job goes on from the checkpoint of step {alarm.resume_from.step}, before the suspect window."
