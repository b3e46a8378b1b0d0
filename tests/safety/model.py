"""The model: a plant that people, HyperPod, AWS and chance act on in any order; the rules of cases.md R4.

Each rule is one thing that can happen. After each of them the judge must have nothing to say, and one
instance must have at most one open incident. At the end everybody goes home and time passes: whatever is open
then must have ended, or an alarm must say that it did not.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lambdas.domain.policy import Control
from lambdas.domain.times import stamp
from tests.events import builder
from training_agent.contract import Alarm, Finding, FindingKind, Mode, SecondConfirmation, Verdict

from .asl import Definition
from .fleet import JobRun
from .plant import Plant
from .wires import Fault, Plan, Site

JOBS, NODES = 2, 3
RANKS = NODES * builder.GPUS_PER_NODE
SLA = timedelta(days=4)  # a day of deep checks, an approval, a day of waiting for the slot, the job's return
GAPS = [timedelta(minutes=m) for m in (1, 5, 45, 125, 600)]
KINDS = ("culprit", "quorum", "weights", "persistent", "transient", "replayer", "unclear", "nonfinite",
         "reduced", "software", "divergent", "nobody")  # fmt: skip

ranks = st.integers(0, RANKS - 1)
jobs = st.integers(0, JOBS - 1)
picks = st.integers(0, 50)


def finding(kind: str, rank: int, job: JobRun) -> Finding:
    """A finding of a kind on a rank of a job."""
    seats = job.seats
    if kind in ("culprit", "quorum"):
        return builder.culprit(rank, seats, majority=kind == "culprit")
    if kind == "weights":
        return builder.weights(rank, seats)
    if kind == "replayer":
        return builder.pair(rank, Verdict.REPLAYER, seats, SecondConfirmation.REPEATS)
    if kind == "nonfinite":
        return Finding(FindingKind.NONFINITE, rank=rank, place=seats[rank], reproduced=False)
    if kind == "reduced":
        return Finding(FindingKind.REDUCED)
    if kind == "divergent":
        return Finding(FindingKind.WEIGHTS, involved=seats[rank : rank + 3])
    if kind == "nobody":
        return Finding(FindingKind.PAIR, verdict=Verdict.UNATTRIBUTABLE, involved=seats[rank : rank + 2])
    if kind == "software":
        return Finding(FindingKind.SOFTWARE, involved=seats[:2])
    verdict = {"persistent": Verdict.PERSISTENT, "transient": Verdict.TRANSIENT}
    return builder.pair(rank, verdict.get(kind, Verdict.UNATTRIBUTABLE), seats)


class PipelineModel(RuleBasedStateMachine):
    """One plant per example."""

    def __init__(self, definition: Definition, sites: list[Site]) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.plant = Plant(self.patched, definition, jobs=JOBS, nodes=NODES)
        self.sites = sites
        self.sent: list[Alarm] = []
        self.step = 30

    def teardown(self) -> None:
        try:
            self.go_home()
        finally:
            self.patched.undo()

    def go_home(self) -> None:
        """Faults and switches end, nobody answers any more; I6 is judged."""
        self.plant.wires.plans.clear()
        self.plant.world.controls.control = Control(None, kill_switch=False)
        self.plant.advance(SLA)
        self.plant.clockwork("reconcile")  # ends what its execution left behind
        assert self.plant.violations() == []
        for incident in self.plant.open_incidents():
            alarmed = self.plant.dead_letters
            assert alarmed, f"I6: {incident.id} is {incident.state.value} after {SLA} and nobody is alarmed"

    # events
    @initialize(by_label=st.booleans())
    def first(self, by_label: bool) -> None:
        if by_label:
            self.plant.replaces_by_label()
        self.deliver("culprit", 2, 0)

    @rule(kind=st.sampled_from(KINDS), rank=ranks, job=jobs)
    def deliver(self, kind: str, rank: int, job: int) -> None:
        self.step += 10
        run = self.plant.jobs[job]
        alarm = self.plant.alarm_of(finding(kind, rank, run), job=run, step=self.step)
        self.sent.append(alarm)
        self.plant.alarm(alarm)
        self.plant.pump()

    @rule(pick=picks)
    def duplicate(self, pick: int) -> None:
        self.plant.alarm(self.sent[pick % len(self.sent)], deliveries=2)
        self.plant.pump()

    @rule(rank=ranks, hours=st.sampled_from([2, 30]))
    def late(self, rank: int, hours: int) -> None:
        opened = self.plant.alarm(
            self.plant.alarm_of(
                finding("culprit", rank, self.plant.jobs[0]),
                step=7,
                time=stamp(self.plant.world.clock.at - timedelta(hours=hours)),
            )
        )
        assert not opened, "a late alarm opened an incident"

    @rule(pick=picks, passed=st.booleans())
    @precondition(lambda self: self.plant.open_incidents())
    def audited(self, pick: int, passed: bool) -> None:
        opened = self.plant.open_incidents()
        self.plant.audit_result(opened[pick % len(opened)], passed=passed)
        self.plant.pump()

    @rule(pick=picks)
    @precondition(lambda self: any(i.state.terminal for i in self.plant.world.incidents.rows.values()))
    def execution_redriven(self, pick: int) -> None:
        ended = [i.id for i in self.plant.world.incidents.rows.values() if i.state.terminal]
        self.plant.redrive(ended[pick % len(ended)])

    @rule(job=jobs)
    def job_returns(self, job: int) -> None:
        self.plant.job_returns(self.plant.jobs[job])
        self.plant.pump()

    # people
    @rule(pick=picks, decision=st.sampled_from(["approve", "approve", "keep", "release"]))
    @precondition(lambda self: self.plant.waiting())
    def answer(self, pick: int, decision: str) -> None:
        waiting = self.plant.waiting()
        self.plant.human(waiting[pick % len(waiting)], decision)
        self.plant.pump()

    @rule(pick=picks, decision=st.sampled_from(["approve", "keep", "release"]))
    @precondition(lambda self: self.plant.waiting())
    def signed_answer(self, pick: int, decision: str) -> None:
        waiting = self.plant.waiting()
        self.plant.signed(waiting[pick % len(waiting)], decision)
        self.plant.pump()

    @rule(pick=picks, mail=st.integers(0, 3), decision=st.sampled_from(["approve", "keep"]))
    @precondition(lambda self: self.plant.waiting())
    def answers_an_older_mail(self, pick: int, mail: int, decision: str) -> None:
        """The person consents to the question of the mail that he has read."""
        waiting = self.plant.waiting()
        self.plant.signed(waiting[pick % len(waiting)], decision, mail)
        self.plant.pump()

    @rule(pick=picks)
    @precondition(lambda self: self.plant.waiting())
    def signs_without_a_question(self, pick: int) -> None:
        waiting = self.plant.waiting()
        assert self.plant.signed_without_a_question(waiting[pick % len(waiting)], "approve") != 200
        self.plant.pump()

    @rule(pick=picks)
    @precondition(lambda self: self.plant.world.incidents.rows)
    def answer_late(self, pick: int) -> None:
        rows = list(self.plant.world.incidents.rows)
        self.plant.human(rows[pick % len(rows)], "approve")
        self.plant.pump()

    @rule(pick=picks)
    @precondition(lambda self: self.plant.waiting())
    def scanner(self, pick: int) -> None:
        waiting = self.plant.waiting()
        self.plant.scan(waiting[pick % len(waiting)])

    @rule(pick=picks, on=st.booleans())
    def human_cordons(self, pick: int, on: bool) -> None:
        self.plant.cordon_by_hand(self._instance(pick), on=on)

    @rule(pick=picks)
    def human_reboots(self, pick: int) -> None:
        instance = self._instance(pick)
        members = self.plant.world.cluster.members
        members[instance] = replace(members[instance], launch_time=stamp(self.plant.world.clock.at))

    @rule(pick=picks)
    @precondition(lambda self: len(self.plant.world.cluster.members) > NODES)
    def node_vanishes(self, pick: int) -> None:
        self.plant.vanish(self._instance(pick))

    # HyperPod and AWS
    @rule(pick=picks)
    def hyperpod_replaces_by_itself(self, pick: int) -> None:
        self.plant.swap(self._instance(pick))

    @rule(ends=st.sampled_from(["pass", "fail", "stuck", "never", "superseded"]))
    def checks_will(self, ends: str) -> None:
        self.plant.world.cluster.check_ends = ends  # type: ignore[attr-defined]

    @rule(recovery=st.sampled_from(["None", "Automatic"]))
    def node_recovery(self, recovery: str) -> None:
        facts = self.plant.world.cluster.facts
        self.plant.world.cluster.facts = replace(facts, node_recovery=recovery)

    @rule(on=st.booleans())
    def karpenter_manages_the_group(self, on: bool) -> None:
        facts = self.plant.world.cluster.facts
        self.plant.world.cluster.facts = replace(facts, karpenter=on)

    @rule(pick=st.integers(0, 1000), fault=st.sampled_from([f for f in Fault if f is not Fault.CRASH_AFTER]))
    def api_fault(self, pick: int, fault: Fault) -> None:
        self.plant.wires.plans = [Plan(self.sites[pick % len(self.sites)], fault)]

    @rule(pick=st.integers(0, 1000))
    def handler_killed(self, pick: int) -> None:
        self.plant.wires.plans = [Plan(self.sites[pick % len(self.sites)], Fault.CRASH_AFTER)]

    @rule()
    def api_recovers(self) -> None:
        self.plant.wires.plans.clear()

    # operators and time
    @rule()
    def reconciler(self) -> None:
        self.plant.clockwork("reconcile")
        self.plant.pump()

    @rule(pick=picks)
    @precondition(lambda self: any(i.state.terminal for i in self.plant.world.incidents.rows.values()))
    def operator_releases(self, pick: int) -> None:
        ended = [i.id for i in self.plant.world.incidents.rows.values() if i.state.terminal]
        self.plant.operator_releases(ended[pick % len(ended)])

    @rule()
    def drill(self) -> None:
        self.plant.clockwork("drill")
        self.plant.pump()

    @rule(on=st.booleans())
    def kill_switch(self, on: bool) -> None:
        controls = self.plant.world.controls
        controls.control = replace(controls.control, kill_switch=on)

    @rule(mode=st.sampled_from([Mode.OBSERVE, Mode.CONTAIN, None]))
    def mode(self, mode: Mode | None) -> None:
        controls = self.plant.world.controls
        controls.control = replace(controls.control, mode=mode)

    @rule(gap=st.sampled_from(GAPS))
    def time_passes(self, gap: timedelta) -> None:
        self.plant.advance(gap)

    @rule(minutes=st.sampled_from([-10, 10]))
    def clock_jumps(self, minutes: int) -> None:
        self.plant.world.clock.at += timedelta(minutes=minutes)

    # judgement
    @invariant()
    def nothing_wrong_happened(self) -> None:
        assert self.plant.violations() == []

    @invariant()
    def one_open_incident_per_instance(self) -> None:
        assert self.plant.shared_instances() == []

    def _instance(self, pick: int) -> str:
        members = sorted(self.plant.world.cluster.members)
        return members[pick % len(members)]
