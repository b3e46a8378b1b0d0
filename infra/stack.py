"""The stack, as a table of contents. One stack guards one HyperPod cluster."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from .approvals import Approvals
from .config import Deployment
from .eks_access import EksAccess
from .functions import WORKFLOW_STEPS, FunctionFactory
from .monitoring import Monitoring
from .places import places
from .reviewed import acknowledge
from .storage import Storage
from .training_side import TrainingSide
from .triggers import Triggers
from .workflow import IncidentWorkflow


class TrainingSdcStack(cdk.Stack):
    """From the alarm on the bus to a healthy cluster."""

    def __init__(self, scope: Construct, config: Deployment) -> None:
        super().__init__(
            scope,
            config.stack_name,
            description=f"Silent data corruption on cluster {config.cluster_name}: alarm to recovery",
        )
        # What the pipeline knows, hears and whom it asks.
        storage = Storage(self)
        triggers = Triggers(self, config)
        approvals = Approvals(self, config)

        # What it does: one function per step, and the order of the steps.
        known = places(self, config, storage, triggers, approvals)
        factory = FunctionFactory(self, config)
        steps = {name: factory.make(name, known) for name in WORKFLOW_STEPS}
        workflow = IncidentWorkflow(self, config, steps)

        # How events and humans get in.
        known = known.with_workflow(workflow.machine.state_machine_arn)
        entrances = {
            name: factory.make(name, known)
            for name in ("ingest", "register", "approval_show", "approval_decide")
        }
        triggers.feed(triggers.alarms, "Alarm", entrances["ingest"])
        triggers.feed(triggers.registrations, "Registration", entrances["register"])
        approvals.serve(entrances["approval_show"], entrances["approval_decide"])

        # Who else is let in, and who watches.
        EksAccess(self, config, factory.roles)
        TrainingSide(self, storage, triggers)
        Monitoring(self, config, workflow.machine, triggers)
        acknowledge(self)
