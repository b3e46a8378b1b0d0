"""The stack, as a table of contents. One stack guards one HyperPod cluster."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from .approvals import Approvals
from .cluster_events import ClusterEvents
from .config import Deployment
from .dashboard import Dashboard
from .eks_access import EksAccess
from .encryption import Encryption
from .functions import FunctionFactory, deployed, steps
from .monitoring import Monitoring
from .operator_side import OperatorSide
from .operators import Operators
from .places import places
from .reviewed import acknowledge
from .schedules import Schedules
from .storage import Storage
from .training_side import TrainingSide
from .triggers import Triggers
from .workflow import IncidentWorkflow


class TrainingSdcStack(cdk.Stack):
    """From the alarm on the bus to a healthy cluster."""

    def __init__(self, scope: Construct, config: Deployment) -> None:
        super().__init__(
            scope,
            config.stack,
            description=f"Silent data corruption on cluster {config.cluster_name}: alarm to recovery",
            env=cdk.Environment(account=config.account, region=config.region),  # the cluster's: nowhere else
        )
        # What the pipeline knows, hears and whom it asks.
        encryption = Encryption(self, config)
        storage = Storage(self, encryption)
        triggers = Triggers(self, config, encryption)
        cluster_events = ClusterEvents(self, config, encryption)
        approvals = Approvals(self, config, encryption)

        # What it does: one function per step, and the order of the steps.
        known = places(self, config, storage, triggers, cluster_events, approvals)
        factory = FunctionFactory(self, config, cluster_events.inlet.dead_letters)
        functions = {step: factory.make(name, known) for step, name in steps(config).items()}
        workflow = IncidentWorkflow(self, config, functions)

        # How events and humans get in.
        known = known.with_workflow(workflow.machine, functions["resume"])
        entrances = {
            name: factory.make(name, known) for name in deployed(config) if name not in steps(config).values()
        }
        triggers.feed(triggers.alarms, "Alarm", entrances["ingest"])
        triggers.feed(triggers.registrations, "Registration", entrances["register"])
        approvals.serve(entrances["approval_show"], entrances["approval_decide"])
        if "approval_api" in entrances:
            approvals.serve_signed(entrances["approval_api"])
        schedules = Schedules(self, cluster_events.inlet.dead_letters)
        if "reconcile" in entrances:
            triggers.feed(cluster_events.inlet, "ClusterEvent", entrances["reconcile"])
            schedules.reconcile(entrances["reconcile"])
        if "drill" in entrances:
            schedules.drill(entrances["drill"], enabled=config.drill_enabled)

        # Who else is let in, and who watches.
        EksAccess(self, config, factory.roles)
        TrainingSide(self, storage, triggers)
        OperatorSide(self, config, known, entrances.get("drill"))
        operators = Operators(self, config, encryption)
        monitoring = Monitoring(self, config, operators, workflow.machine, triggers, cluster_events)
        if "reconcile" in entrances:
            monitoring.of_the_reconciler()
        cluster_events.listen_to_alarms(monitoring.of_the_agent)
        cluster_events.listen_to_executions(workflow.machine)
        Dashboard(
            self,
            config,
            workflow.machine,
            [entrances["ingest"], entrances["register"]],
            [inlet.dead_letters for inlet in (triggers.alarms, triggers.registrations, cluster_events.inlet)],
            monitoring.alarms,
        )
        acknowledge(self, config, factory.roles)
