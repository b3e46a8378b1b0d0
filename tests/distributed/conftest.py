"""Starts real gloo processes, one launch for all scenarios of a layout: starting six ranks takes seconds."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from tests.matrix.launch import launch as start_and_wait
from tests.ranks import Process, start
from training_agent.contract import Alarm, ExitCode, decode

RANKS = 6
Results = list[dict[str, Any]]  # per rank


def launch(
    module: str, ranks: int, *args: str, timeout: float = 240, stopped: int | None = None, **env: str
) -> list[tuple[int, str]]:
    """Run `module` as `ranks` processes; exit code and output of each.

    Where some have not ended in time all are killed, and the test fails with their names and last outputs.
    Rank `stopped` is not waited for: it sends itself SIGSTOP.
    """
    outputs = [tempfile.TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115
    processes = start(module, args, outputs, gpus=2, env=env)
    waited = [p for rank, p in enumerate(processes) if rank != stopped]
    try:
        late = _still_running(waited, time.monotonic() + timeout)
    finally:
        for p in processes:
            p.kill()
            p.wait()
        ended = [(p.returncode, _content(out)) for p, out in zip(processes, outputs, strict=True)]
    if late:
        ranks = [rank for rank, p in enumerate(processes) if p in late]
        last = "\n".join(
            f"-- rank {rank}, last output --\n{text[-800:]}" for rank, (_, text) in enumerate(ended)
        )
        pytest.fail(
            f"{module}: ranks {ranks} had not ended after {timeout:g} s and were killed.\n{last}",
            pytrace=False,
        )
    return ended


def runs_of(
    module: str, ranks: int, out: Path, *args: str, timeout: float = 500
) -> tuple[dict[str, Results], list[tuple[int, str]]]:
    """Launch a worker that writes OUT/RANK.json: each run by name, an entry per rank; how ranks ended."""
    ended = launch(module, ranks, str(out), *args, timeout=timeout)
    assert [code for code, _ in ended] == [0] * ranks, "\n".join(text[-1500:] for _, text in ended)
    by_rank = [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [results[name] for results in by_rank] for name in by_rank[0]}, ended


def _still_running(processes: list[Process], deadline: float) -> list[Process]:
    """Wait for all of them together; those that run on at the deadline."""
    for p in processes:
        with suppress(subprocess.TimeoutExpired):
            p.wait(timeout=max(0.0, deadline - time.monotonic()))
    return [p for p in processes if p.poll() is None]


def _content(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Results of a scenario of `scenarios`, one entry per rank."""
    runs, _ = runs_of("tests.distributed.worker", RANKS, tmp_path_factory.mktemp("six-ranks"), timeout=240)
    return runs.__getitem__


@pytest.fixture(scope="session")
def accused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]]]:
    """A job whose GPU 1 was found out: its folder, and how its three ranks ended."""
    folder = tmp_path_factory.mktemp("accused")
    return folder, launch("tests.distributed.capsule_job", 3, str(folder), "faulty", timeout=120)


@pytest.fixture(scope="session")
def shared(accused: tuple[Path, list[tuple[int, str]]]) -> Path:
    """The folder of `accused`, after its alarm."""
    folder, ended = accused
    assert [code for code, _ in ended] == [ExitCode.ALARM] * 3, ended[0][1][-3000:]
    return folder


@pytest.fixture(scope="session")
def alarm(shared: Path) -> Alarm:
    """The one in its spool."""
    (file,) = (shared / "spool").glob("*.json")
    return decode(Alarm, file.read_bytes())


@pytest.fixture(scope="session")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What `cost_worker` counted, by number of ranks and rank."""
    found = {}
    for ranks in (2, 3):
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        start_and_wait("tests.distributed.cost_worker", ranks, folder, timeout=200)
        found[ranks] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return found
