"""What a node tells at the start: small enough for an event in a job of any size, with what runs there."""

from __future__ import annotations

from dataclasses import replace

from training_agent._alarm import versions, what_runs
from training_agent.contract import MAX_DETAIL_BYTES, DetailType, NodeRegistration, decode, encode
from training_agent.report.event_bus import Event
from training_agent.settings import AgentSettings

from .builders import a_place, a_registration

RANKS, GPUS = 16_384, 8


def test_16384_ranks_register_in_2048_events_each_a_tenth_of_what_fits() -> None:
    for node in (0, 1234, RANKS // GPUS - 1):
        places = tuple(
            replace(
                a_place(rank, GPUS),
                gpu_uuid=f"GPU-{rank:08d}-0000-4000-8000-{rank:012d}",
                pod_name=f"a-job-with-a-rather-long-name-worker-{node}",
                pod_uid=f"{node:08d}-0000-4000-8000-000000000000",
            )
            for rank in range(node * GPUS, (node + 1) * GPUS)
        )
        told = replace(a_registration(), places=places, node=places[0].node, world_size=RANKS, nodes=2048)
        event = Event(DetailType.NODE_REGISTERED, encode(told))
        assert event.fits and len(event.detail) < MAX_DETAIL_BYTES / 10
        assert decode(NodeRegistration, event.detail) == told


def test_a_registration_tells_image_and_libraries_and_ranks_may_differ_in_them() -> None:
    assert AgentSettings.from_env({"NODE_NAME": "n", "SDC_IMAGE": "repo/train:7"}).image == "repo/train:7"
    told = what_runs("repo/train:7")
    assert told["image"] == "repo/train:7" and {"training-agent", "boto3"} <= set(told)
    assert "image" not in what_runs(None)
    assert not set(told) & set(versions())  # those must be equal on all ranks for replays to match
