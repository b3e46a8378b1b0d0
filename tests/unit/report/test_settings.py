"""What the job manifest says, and what happens when it says too little."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from training_agent.errors import ConfigurationError
from training_agent.settings import AgentSettings, Worker, gpu_uuids

FULL = {
    "NODE_NAME": "hyperpod-i-0123456789abcdef0",
    "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    "POD_NAME": "llama-worker-0",
    "POD_UID": "uid-0",
    "POD_NAMESPACE": "team",
    "SDC_CLUSTER": "demo",
    "SDC_JOB_NAME": "llama",
    "SDC_JOB_UID": "job-1",
    "SDC_ATTEMPT": "3",
    "SDC_SHARED_DIR": "/fsx/llama",
    "SDC_EVENT_BUS": "sdc-bus",
    "SDC_QUARANTINE_TABLE": "quarantine",
    "SDC_HOLD_TIMEOUT_SECONDS": "90",
    "SDC_TERMINATION_LOG": "/tmp/end",
}


def test_a_full_manifest_is_read() -> None:
    settings = AgentSettings.from_env(FULL)
    assert (settings.job.uid, settings.job.attempt, settings.job.namespace) == ("job-1", 3, "team")
    assert settings.shared_dir == Path("/fsx/llama")
    assert settings.hold_timeout == timedelta(seconds=90)
    assert settings.termination_log == Path("/tmp/end")
    place = settings.place(rank=5, local_rank=1)
    assert (place.instance_id, place.gpu_uuid, place.pod_uid) == ("i-0123456789abcdef0", "GPU-b", "uid-0")


def test_a_missing_node_name_names_both_remedies() -> None:
    with pytest.raises(ConfigurationError, match=r"NODE_NAME.*node=") as caught:
        AgentSettings.from_env({})
    assert caught.value.exit_code == 4
    assert AgentSettings.from_env({}, node="desk").node == "desk"


def test_a_bus_without_an_identity_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SDC_CLUSTER and SDC_JOB_UID"):
        AgentSettings.from_env({"NODE_NAME": "n", "SDC_EVENT_BUS": "bus"})


@pytest.mark.parametrize("name", ["SDC_ATTEMPT", "SDC_HOLD_TIMEOUT_SECONDS"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_number_that_is_none_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        AgentSettings.from_env({**FULL, name: value})


def test_a_restart_inside_the_same_pod_is_a_new_attempt() -> None:
    """HyperPod's operator restarts the processes; the pod's own variables stay as they are."""
    pod = {k: v for k, v in FULL.items() if k != "SDC_ATTEMPT"}
    counted = [AgentSettings.from_env({**pod, "JOB_RESTART_COUNT": str(n)}).job.attempt for n in range(3)]
    assert counted == [1, 2, 3]
    assert AgentSettings.from_env(pod).job.attempt == 1


def test_who_says_the_attempt_is_believed_before_the_operator() -> None:
    assert AgentSettings.from_env({**FULL, "JOB_RESTART_COUNT": "7"}).job.attempt == 3


def test_torchruns_own_count_is_no_attempt() -> None:
    """Each node's torchrun counts alone; under HyperPod the same name holds the common count."""
    pod = {k: v for k, v in FULL.items() if k != "SDC_ATTEMPT"}
    assert AgentSettings.from_env({**pod, "TORCHELASTIC_RESTART_COUNT": "2"}).job.attempt == 1


@pytest.mark.parametrize("value", ["-1", "two"])
def test_a_restart_count_that_is_none_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigurationError, match="JOB_RESTART_COUNT"):
        AgentSettings.from_env({**FULL, "JOB_RESTART_COUNT": value})


def test_a_node_name_that_is_not_hyperpods_has_no_instance() -> None:
    assert AgentSettings.from_env({"NODE_NAME": "ip-10-0-0-1"}).place(0, 0).instance_id is None


def test_a_gpu_beyond_the_list_is_unknown_rather_than_another_one() -> None:
    assert AgentSettings.from_env(FULL).place(rank=2, local_rank=2).gpu_uuid is None


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("1,0", ("GPU-b", "GPU-a")),
        ("GPU-b", ("GPU-b",)),
        ("7", ()),
        ("MIG-x", ()),
    ],
)
def test_cuda_visible_devices_picks_from_the_nodes_gpus(chosen: str, expected: tuple[str, ...]) -> None:
    assert gpu_uuids({**FULL, "CUDA_VISIBLE_DEVICES": chosen}) == expected


def test_an_abbreviated_uuid_that_fits_two_gpus_is_unknown() -> None:
    assert (
        gpu_uuids({"NVIDIA_VISIBLE_DEVICES": "GPU-a1,GPU-a2", "CUDA_VISIBLE_DEVICES": "GPU-a2,GPU-a"}) == ()
    )


def test_nvidia_smi_is_asked_when_the_device_plugin_lists_no_uuids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-x\necho GPU-y\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu_uuids({"NVIDIA_VISIBLE_DEVICES": "all"}) == ("GPU-x", "GPU-y")


def test_a_broken_nvidia_smi_means_unknown_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu_uuids({}) == ()


def test_without_torchrun_this_is_rank_0_of_1() -> None:
    assert Worker.from_env({}) == Worker(0, 0, 1)
    assert Worker.from_env({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6"}) == Worker(5, 1, 6)
