"""Capsules: what they hold, that a stranger's runs no code, and that writing one delays nobody."""

from __future__ import annotations

import json
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.patience import PATIENCE_S
from training_agent.capsule import container, record
from training_agent.capsule.choice import chosen
from training_agent.capsule.container import MAGIC, from_bytes, to_bytes
from training_agent.capsule.content import load
from training_agent.capsule.recompute import Answer, Outcome, replay
from training_agent.capsule.subject import build
from training_agent.cli import computing
from training_agent.cli.app import main
from training_agent.contract import Contest, Finding, FindingKind, Vote
from training_agent.errors import CapsuleError

from .capsules import CPU, PLACE, in_another_way, sealed, write, wrong

MODEL = "tests.unit.agent.capsules:build"


@dataclass
class UsersBatch:
    x: torch.Tensor


class Bomb:
    """Its pickle calls a function."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of a stranger ran')",)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "x"], 3: (float("inf"), -0.0), "t": torch.arange(6.0).view(2, 3).t()},
        [
            torch.empty(0, 3),
            torch.randn(3, 1).expand(3, 5),
            torch.bfloat16,
            torch.randn(2, requires_grad=True),
        ],
        {"x": torch.arange(5, dtype=torch.int8)[1:], "y": ()},
    ],
)
def test_a_value_comes_back_with_its_bits_strides_and_types(value: Any) -> None:
    back = from_bytes(to_bytes(value), CPU)
    assert repr(back) == repr(value)
    tensors, again = (torch.utils._pytree.tree_leaves(v) for v in (value, back))
    for tensor, other in zip(tensors, again, strict=True):
        if isinstance(tensor, torch.Tensor):
            assert (tensor.stride(), tensor.dtype) == (other.stride(), other.dtype)
            assert tensor.data_ptr() % 64 == other.data_ptr() % 64 or not tensor.numel()


@pytest.mark.parametrize(
    "value", [UsersBatch(torch.ones(1)), {"x": {1, 2}}, [torch.ones(2).to_sparse()], Bomb()]
)
def test_what_a_capsule_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CapsuleError, match="a capsule holds numbers, strings"):
        to_bytes(value)


def test_a_strangers_pickle_runs_no_code(tmp_path: Path) -> None:
    for name, content in (("a", pickle.dumps(Bomb())), ("b", MAGIC + pickle.dumps(Bomb()))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CapsuleError, match="cannot be used"):
            load(tmp_path / name, CPU)


def test_a_damaged_capsule_is_refused_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    capsule = sealed(tmp_path)
    assert capsule is not None
    chance = random.Random(5)
    header = len(MAGIC) + 8 + int.from_bytes(capsule.data[len(MAGIC) : len(MAGIC) + 8], "little")
    path = tmp_path / "damaged"
    for _ in range(300):
        data = bytearray(capsule.data)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(header)] = chance.randrange(256)
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            load(path, CPU)
        except CapsuleError as e:
            assert str(path) in str(e)


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": 1 << 40},
        {"nbytes": 1 << 40},
        {"shape": [1 << 40], "stride": [1]},
        {"shape": [4], "stride": [1 << 50]},
        {"shape": [-1], "stride": [1]},
        {"misalignment": 64},
        {"dtype": "Tensor"},
        {"requires_grad": 1},
    ],
    ids=str,
)
def test_a_tensor_that_reaches_outside_of_its_file_is_refused(changed: dict[str, Any]) -> None:
    data = to_bytes([torch.arange(4.0)])
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    header = json.loads(data[len(MAGIC) + 8 :][:length])
    header["tensors"][0].update(changed)
    forged = json.dumps(header).encode()
    with pytest.raises(CapsuleError, match=r"a tensor|is no size|KeyError"):
        from_bytes(MAGIC + len(forged).to_bytes(8, "little") + forged + bytes(256), CPU)


def test_tensors_that_lie_on_each_other_are_refused_before_they_fill_the_memory() -> None:
    data = to_bytes([torch.arange(4.0)])
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    header = json.loads(data[len(MAGIC) + 8 :][:length])
    header["tensors"] *= 1000
    forged = json.dumps(header).encode()
    with pytest.raises(CapsuleError, match="together they are larger than the file"):
        from_bytes(MAGIC + len(forged).to_bytes(8, "little") + forged + bytes(256), CPU)


def test_more_than_a_header_may_have_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(CapsuleError, match="1000 are read"):
        to_bytes(["word"] * 1000)


@pytest.mark.parametrize("threads", ["1000000", "9" * 5000])
def test_a_stranger_does_not_choose_how_many_threads_are_started(tmp_path: Path, threads: str) -> None:
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    loaded = load(Path(capsule.ref.path), CPU)
    loaded.facts.environment["threads"] = threads
    with pytest.raises(CapsuleError, match="at most 1024 are started"):
        replay(loaded, build(MODEL, CPU), 1)


def outcome_of(
    folder: Path, spoil: Callable[[torch.nn.Module], None] = lambda model: None, **how: Any
) -> Outcome:
    capsule = sealed(folder, **how)
    assert capsule is not None
    write(capsule)
    subject = build(MODEL, CPU)
    spoil(subject.model)
    return replay(load(Path(capsule.ref.path), CPU), subject, 2)


def test_the_same_micro_batch_with_the_same_weights_gives_the_expected_bits(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    assert outcome.answer is Answer.EQUAL, outcome.why
    assert [(r.equal, r.observed_by) for r in outcome.repeats] == [(True, (0, 1))] * 2


def test_a_wrong_layer_gives_other_bits_and_says_where(tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        model[2].register_forward_hook(lambda _m, _a, out: out * 1.001)

    outcome = outcome_of(tmp_path, spoil)
    assert outcome.answer is Answer.DIFFERENT
    assert [(r.equal, r.observed_by) for r in outcome.repeats] == [(False, (3,))] * 2
    assert {"loss", "0.weight"} <= set(outcome.repeats[0].differs_in)


def test_a_model_that_is_built_in_another_way_accuses_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcome_of(tmp_path, in_another_way)
    assert outcome.answer is Answer.UNDECIDED
    assert outcome.why.startswith("nobody in the job got these bits: check --model, --checkpoint")
    assert {"loss", "0.weight"} <= set(outcome.repeats[0].differs_in)
    (capsule,) = (tmp_path / "capsules").iterdir()
    monkeypatch.setenv("NODE_NAME", PLACE.node)
    receipt = ["--incident", "3f1c9a0b7d2e4685", "--receipt", str(tmp_path / "receipt.json")]
    other = "tests.unit.agent.capsules:build_in_another_way"
    assert main(["replay", str(capsule), "--model", other, "--repeat", "2", *receipt]) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "Undecided: nobody in the job got these bits" in shown
    assert "computed wrong" not in shown and not (tmp_path / "receipt.json").exists()


class WrongProducts(TorchDispatchMode):
    """A GPU whose products are wrong: below all code, as hardware is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 1.001 if "mm" in str(func) else found


def test_against_a_reference_a_gpu_is_wrong_only_with_the_same_operations(tmp_path: Path) -> None:
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    loaded = load(Path(capsule.ref.path), CPU)
    subject = build(MODEL, CPU)
    with torch.no_grad():
        subject.model[0].weight += 1  # an older checkpoint
    reference = replay(loaded, subject, 1, keep=True).reference
    assert reference is not None and replay(loaded, subject, 1, reference).answer is Answer.EQUAL
    with WrongProducts():
        for _ in range(10):  # wherever the allocator puts its tensors
            outcome = replay(loaded, subject, 1, reference)
            assert outcome.answer is Answer.DIFFERENT, outcome.why
        older = replay(loaded, subject, 2, replace(reference, operations=""))
    assert older.answer is Answer.UNDECIDED and "of the same model" in older.why
    constant = torch.tensor(1.001)  # no buffer, no parameter: a value from outside
    hook = subject.model[0].register_forward_hook(lambda _m, _a, out: out * constant)
    reference = replay(loaded, subject, 1, keep=True).reference
    assert reference is not None and replay(loaded, subject, 1, reference).answer is Answer.EQUAL
    constant.fill_(1.002)
    assert replay(loaded, subject, 1, reference).answer is Answer.UNDECIDED
    hook.remove()
    in_another_way(subject.model)
    outcome = replay(loaded, subject, 2, reference)
    assert (outcome.answer, outcome.repeats[0].equal) == (Answer.UNDECIDED, False), outcome.why
    assert "made of other operations than these" in outcome.why


def test_one_repeat_with_known_bits_is_enough_for_different(tmp_path: Path) -> None:
    count = iter(range(10))

    def now_and_then(model: Any) -> None:
        model[2].register_forward_hook(lambda _m, _a, out: out * (1.001 if next(count) % 2 else 1))

    outcome = outcome_of(tmp_path, now_and_then)
    assert sorted(r.equal or False for r in outcome.repeats) == [False, True]
    assert outcome.answer is Answer.DIFFERENT


@pytest.mark.parametrize("of_job", [True, False], ids=["deterministic", "default"])
def test_it_is_computed_with_the_kernels_of_the_jobs_replays(of_job: bool, tmp_path: Path) -> None:
    seen = []

    def watch(model: Any) -> None:
        model[2].register_forward_pre_hook(
            lambda *_: seen.append(torch.are_deterministic_algorithms_enabled())
        )

    outcome = outcome_of(tmp_path, watch, deterministic_job=of_job)
    assert outcome.answer is Answer.EQUAL and seen == [of_job] * 2


def test_what_a_compiler_computed_is_compared_with_nothing(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, compiled=True).answer is Answer.UNDECIDED


def test_a_difference_under_another_environment_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    subject = build(MODEL, CPU)
    loaded = load(Path(capsule.ref.path), CPU)
    assert replay(loaded, subject, 1).answer is Answer.EQUAL  # equal bits need no excuse
    subject.model[2].register_forward_hook(lambda _m, _a, out: out * 1.001)
    outcome = replay(loaded, subject, 1)
    assert outcome.answer is Answer.UNDECIDED
    assert "CUBLAS_WORKSPACE_CONFIG is :4096:8, was :16:8" in outcome.why


def test_its_size_is_bounded_and_it_can_be_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sealed(tmp_path)
    assert whole is not None
    without = sealed(tmp_path, capsule_bytes=whole.ref.nbytes - 1)
    assert without is not None and without.ref.nbytes < whole.ref.nbytes  # a checkpoint has the weights
    assert sealed(tmp_path, capsule_bytes=100) is None
    assert "SDC_CAPSULE_MB allows 100" in capsys.readouterr().out
    assert sealed(tmp_path, capsule_bytes=0) is None


def test_a_batch_that_it_cannot_hold_is_said_and_the_alarm_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sealed(tmp_path, UsersBatch(torch.ones(1))) is None
    assert (
        "There is no repro capsule of this step: value['capture']['args'][0] is a" in capsys.readouterr().out
    )


def test_a_disk_that_hangs_delays_nobody_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers, ended = threading.Event(), list[bool]()
    monkeypatch.setattr(record, "write_atomic", lambda path, data: ended.append(answers.wait(PATIENCE_S)))
    capsule = sealed(tmp_path)
    assert capsule is not None
    record.write_all([(Path(capsule.ref.path), capsule.data)], timedelta(milliseconds=50))
    assert not ended, "it was waited for"
    answers.set()
    assert "was not written within" in capsys.readouterr().out
    assert not Path(capsule.ref.path).exists()


def test_one_capsule_for_each_named_rank_and_its_own_micro_batch_first() -> None:
    def contest(target: int, wrong: int) -> Contest:
        votes = tuple(Vote(r, "bad" if r == wrong else "good", "arbiter") for r in range(4))
        return Contest(target, 9, votes, "good", None)

    def named(*ranks: int) -> list[Finding]:
        return [Finding(FindingKind.CULPRIT, rank=r) for r in ranks]

    contests = [contest(0, 3), contest(2, 1), contest(3, 3)]
    assert chosen(named(3), contests) == (3,)
    assert chosen(named(1), contests) == (2,)  # it replayed rank 2's wrong
    assert chosen(named(1, 3), contests) == (2, 3)
    assert chosen([Finding(FindingKind.PAIR)], contests) == (0,)
    assert chosen(named(1), []) == ()


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none"), "--model", MODEL]) == 3
    (tmp_path / "text").write_text("hello")
    assert main(["replay", str(tmp_path / "text"), "--model", MODEL]) == 4
    assert main(["replay", str(tmp_path / "text"), "--model", MODEL, "--publish"]) == 2
    assert main(["replay", str(tmp_path / "text"), "--model", MODEL, "--incident", "abc"]) == 3
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    assert main(["replay", capsule.ref.path, "--model", "nowhere:build"]) == 4
    assert "nowhere:build cannot be found" in capsys.readouterr().err
    assert main(["replay", capsule.ref.path, "--model", MODEL, "--repeat", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Equal: 1 of 1 repeats are equal to the majority of the job's ranks." in " ".join(shown.split())
    assert wrong(load(Path(capsule.ref.path), CPU).capture) not in shown


def fails() -> NoReturn:
    raise RuntimeError("out of memory")


def ends() -> NoReturn:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("fails", "fails failed: RuntimeError: out of memory ("),
        ("ends", "ends ended the process (sys.exit(0))"),
    ],
)
def test_code_that_fails_or_leaves_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    """Python's own exit codes are "equal" and "different" here."""
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    assert main(["replay", capsule.ref.path, "--model", f"{__name__}:{model}"]) == 4
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_error_of_the_command_itself_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(computing, "run_replay", broken)
    assert main(["replay", "capsule", "--model", MODEL]) == 4
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save-reference", "--receipt"])
def test_an_answer_that_cannot_be_kept_is_said_before_it_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "capsule").write_text("hello")
    place = ["--incident", "0123456789abcdef", option, str(tmp_path / "nowhere" / "file")]
    assert main(["replay", str(tmp_path / "capsule"), "--model", MODEL, *place]) == 3
    assert "There is no folder" in capsys.readouterr().err
