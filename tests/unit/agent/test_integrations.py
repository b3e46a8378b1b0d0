"""The callbacks for training libraries, as far as they need no library; `make examples` runs the rest."""

from __future__ import annotations

import importlib
import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.integrations.__main__ import ALL, FAULT_STEP, HEALTHY, HIT, SEEN, Ended, wrong_with
from training_agent._refusals import unwrapped_optimizer
from training_agent.errors import CheckpointError, ConfigurationError
from training_agent.integrations import _library
from training_agent.integrations._guarding import Guarding
from training_agent.integrations._refused import refuse_huggingface, refuse_lightning
from training_agent.integrations._sealed import SealedCheckpoints
from training_agent.settings import AgentSettings

SETTINGS = AgentSettings.from_env({}, node="hyperpod-i-1")


def hugging_trainer(**changed: Any) -> Any:
    arguments = {"parallel_mode": "distributed", "optim": "adamw_torch", "auto_find_batch_size": False}
    arguments |= {k: v for k, v in changed.items() if k in arguments}
    rest = {k: v for k, v in changed.items() if k not in arguments}
    return SimpleNamespace(args=SimpleNamespace(**arguments), **{"_save_checkpoint": print, **rest})


def named(name: str, **members: Any) -> Any:
    return type(name, (), members)()


def lightning_trainer(
    strategy: str = "DDPStrategy", *callbacks: str, io: str = "TorchIO", **members: Any
) -> Any:
    made = named(strategy, checkpoint_io=named(io), **members)
    return SimpleNamespace(strategy=made, callbacks=[named(c) for c in callbacks])


AUTOMATIC = SimpleNamespace(automatic_optimization=True)


def test_a_trainer_under_ddp_is_accepted() -> None:
    refuse_huggingface(hugging_trainer())
    refuse_lightning(lightning_trainer("DDPStrategy", "ModelCheckpoint"), AUTOMATIC)


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        (hugging_trainer(is_deepspeed_enabled=True), "DeepSpeed"),
        (hugging_trainer(is_fsdp_enabled=True), "FSDP"),
        (hugging_trainer(is_tp_enabled=True), "tensor parallelism"),
        (hugging_trainer(parallel_mode="not_distributed"), "DataParallel"),
        (hugging_trainer(parallel_mode="not_parallel"), "torchrun"),
        (hugging_trainer(auto_find_batch_size=True), "auto_find_batch_size"),
        (hugging_trainer(optim="galore_adamw_layerwise"), "steps inside the backward"),
        (hugging_trainer(optim="adalomo"), "steps inside the backward"),
        (hugging_trainer(_save_checkpoint=None), "transformers 5.24"),
    ],
)
def test_what_a_hugging_face_trainer_cannot_keep_comparable_is_refused_by_name(
    trainer: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        refuse_huggingface(trainer)


@pytest.mark.parametrize(
    ("trainer", "module", "says"),
    [
        (lightning_trainer("FSDPStrategy"), AUTOMATIC, "FSDPStrategy.*strategy='ddp'"),
        (lightning_trainer("DeepSpeedStrategy"), AUTOMATIC, "DeepSpeedStrategy.*strategy='ddp'"),
        (lightning_trainer("SingleDeviceStrategy"), AUTOMATIC, "SingleDeviceStrategy.*torchrun"),
        (lightning_trainer(_start_method="fork"), AUTOMATIC, "torchrun"),
        (lightning_trainer(io="AsyncCheckpointIO"), AUTOMATIC, "AsyncCheckpointIO"),
        (lightning_trainer("DDPStrategy", "WeightAveraging"), AUTOMATIC, "WeightAveraging"),
        (lightning_trainer("DDPStrategy", "LearningRateFinder"), AUTOMATIC, "a job of its own"),
        (lightning_trainer("DDPStrategy", "TerminateOnNaN"), AUTOMATIC, "leave the callback out"),
        (lightning_trainer(), SimpleNamespace(automatic_optimization=False), "manual optimization"),
    ],
)
def test_what_a_lightning_trainer_cannot_keep_comparable_is_refused_by_name(
    trainer: Any, module: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        refuse_lightning(trainer, module)


@pytest.mark.parametrize("policy", ["retry", "skip", "nonsense"])
def test_a_policy_that_drops_steps_is_refused_where_a_library_counts_them(policy: str) -> None:
    with pytest.raises(ConfigurationError, match="counts a dropped step as done"):
        Guarding(SETTINGS, None, policy, adopt=False)


def test_a_save_of_a_callback_that_no_trainer_was_given_says_so(tmp_path: Path) -> None:
    guarding = Guarding(SETTINGS, None, "stop", adopt=False)
    with pytest.raises(ConfigurationError, match="not given to the trainer"):
        guarding.save(SealedCheckpoints(tmp_path), tmp_path / "checkpoint-1", lambda: None)


def test_a_library_s_checkpoint_with_a_damaged_record_is_passed_over_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SealedCheckpoints(tmp_path)
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").write_bytes(b"weights")
        store.seal(tmp_path / f"checkpoint-{step}", step, 2, {})
    (damaged,) = tmp_path.glob("checkpoint-20?*")
    damaged.write_text("{")
    assert store.resume() == tmp_path / "checkpoint-10"
    (line,) = capsys.readouterr().out.splitlines()
    assert "goes on from step 10 and passes over" in line and "checkpoint-20" in line


def test_importing_the_package_needs_no_library() -> None:
    importlib.import_module("training_agent.integrations")


def test_a_missing_library_is_named_with_its_remedy() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no-such-library.*pip install 'training-agent\[lightning\]'"
    ):
        _library.load("no-such-library", "no_such_library", "1.0", "lightning")


def test_a_library_that_is_older_than_what_is_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"torch {metadata.version('torch').split('+')[0]}.*999.0"):
        _library.load("torch", "torch", "999.0", "lightning")


def test_the_optimizer_inside_a_library_wrapper_is_the_one_that_is_hooked() -> None:
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    class Wrapper(torch.optim.SGD):
        __module__ = "accelerate.optimizer"
        optimizer = inner

    class Own(torch.optim.SGD):
        optimizer = inner

    assert unwrapped_optimizer(Wrapper([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) is inner
    own = Own([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert unwrapped_optimizer(own) is own  # its own step may do more


# -- checkpoints of a library ---------------------------------------------------------------------------


def saved(store: SealedCheckpoints, name: str, step: int) -> Path:
    """A folder as transformers writes it, or a file as Lightning does."""
    path = store.folder / name
    if name.endswith(".ckpt"):
        path.write_bytes(b"state %d" % step)
    else:
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "model.safetensors").write_bytes(b"weights %d" % step)
        (path / "rng_state_0.pth").write_bytes(b"rng")
    store.seal(path, step, 2, {"step": step})
    return path


NAMES = pytest.mark.parametrize("name", ["checkpoint-{}", "epoch=0-step={}.ckpt"])


@NAMES
def test_the_newest_by_number_is_resumed(tmp_path: Path, name: str) -> None:
    store = SealedCheckpoints(tmp_path)
    assert store.resume() is None
    for step in (900, 10000):
        saved(store, name.format(step), step)
    assert store.resume() == tmp_path / name.format(10000)
    assert store.manifest(tmp_path / name.format(900)) == {"step": 900}


@NAMES
def test_a_save_that_was_interrupted_is_never_resumed(tmp_path: Path, name: str) -> None:
    store = SealedCheckpoints(tmp_path)
    good = saved(store, name.format(8), 8)
    again = saved(store, name.format(12), 12)
    store.unseal(again)  # killed while it was written once more
    assert store.resume() == good
    assert store.unknown(again)
    with pytest.raises(CheckpointError, match="adopt=True"):
        store.manifest(again)


@NAMES
def test_doubtful_ones_are_moved_where_no_library_looks_and_never_resumed(tmp_path: Path, name: str) -> None:
    store = SealedCheckpoints(tmp_path)
    good = saved(store, name.format(8), 8)
    saved(store, name.format(12), 12)
    (aside,) = store.mark_doubtful(9)
    assert aside.name == f"doubtful-1-{name.format(12)}"
    assert aside.exists()
    assert [c.path for c in store.list() if c.doubtful and c.complete] == [aside]
    assert store.newest(before=100) is not None and store.resume() == good
    assert store.mark_doubtful(9) == ()
    with pytest.raises(CheckpointError, match="suspect window"):
        store.manifest(aside)


@NAMES
def test_only_doubtful_ones_left_is_a_question_to_a_human(tmp_path: Path, name: str) -> None:
    store = SealedCheckpoints(tmp_path)
    saved(store, name.format(12), 12)
    store.mark_doubtful(1)
    with pytest.raises(CheckpointError, match="Ask a human"):
        store.resume()


@NAMES
def test_a_changed_file_is_not_resumed(tmp_path: Path, name: str) -> None:
    store = SealedCheckpoints(tmp_path)
    path = saved(store, name.format(12), 12)
    file = path / "inner" / "model.safetensors" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[:-1] + b"!")  # the same length
    with pytest.raises(CheckpointError, match="SHA-256"):
        store.resume()
    file.write_bytes(b"short")
    assert store.resume() is None


def test_records_of_checkpoints_that_the_library_deleted_go(tmp_path: Path) -> None:
    store = SealedCheckpoints(tmp_path)
    saved(store, "a.ckpt", 4).unlink()
    saved(store, "b.ckpt", 8)
    assert [p.name for p in tmp_path.glob("*.sdc.json")] == ["b.ckpt.sdc.json"]


def test_a_save_that_wrote_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Nothing was written"):
        SealedCheckpoints(tmp_path).seal(tmp_path / "checkpoint-4", 4, 2, {})


# -- what `make examples` demands -----------------------------------------------------------------------


def alarm_line(named: list[int], **changed: Any) -> str:
    alarm = {
        "step": SEEN,
        "suspect_window": [HEALTHY + 1, SEEN],
        "resume_from": {"step": HEALTHY},
        "findings": [{"place": {"rank": rank}} for rank in named],
        **changed,
    }
    return "[rank0] " + json.dumps({"sdc": "alarm", "alarm": alarm}, separators=(",", ":"))


def test_an_example_passes_only_if_it_was_silent_resumed_and_named_the_rank_that_was_hit() -> None:
    healthy = Ended(0, "trained")
    assert HEALTHY < FAULT_STEP <= SEEN <= ALL
    assert wrong_with(healthy, Ended(3, alarm_line([HIT]))) is None
    assert "names [2]" in str(wrong_with(healthy, Ended(3, alarm_line([2]))))
    assert "code 0" in str(wrong_with(healthy, Ended(0, "trained")))
    assert "code 1" in str(wrong_with(healthy, Ended(1, alarm_line([HIT]))))
    assert "to resume from None" in str(wrong_with(healthy, Ended(3, alarm_line([HIT], resume_from=None))))
    assert "alarmed" in str(wrong_with(Ended(0, alarm_line([HIT])), Ended(3, alarm_line([HIT]))))
    assert "ended with code 4" in str(wrong_with(Ended(4, ""), None))
