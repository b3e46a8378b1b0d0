"""The CUDA kernel without a GPU: bit-equal in Triton's interpreter, few machine instructions for sm_90."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: torch's CPU wheel does not bring it"
)


def run(*args: str, cache: Path, **env: str) -> str:
    """A Python process of its own: its output."""
    done = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_kernel_passes_every_digest_test_in_the_interpreter(tmp_path: Path) -> None:
    files = [str(HERE / "test_digest.py"), str(HERE / "test_digest_guarantee.py")]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "triton"]
    out = run("-m", "pytest", *files, *options, cache=tmp_path, TRITON_INTERPRET="1")
    passed = re.search(r"(\d+) passed", out)
    assert passed is not None and int(passed[1]) >= 30, out[-3000:]
    assert "skipped" not in out


def test_the_kernel_for_sm_90_stays_below_the_instruction_budget(tmp_path: Path) -> None:
    """About 35 machine instructions a word are what an H100 can issue while memory delivers that word."""
    found = json.loads(run("-m", "tests.unit.agent.sm90", cache=tmp_path).splitlines()[-1])
    assert found["loop_instructions_per_word"] <= 12.5
    assert found["instructions_per_word"] <= 17  # prologue and sums over a chunk included
    assert found["spilled_bytes"] == 0
    assert found["narrow_loads_in_loop"] <= found["loop_words"] / 8  # data comes in 16-byte loads


def test_a_kernel_that_cannot_be_compiled_gives_way_to_the_portable_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from training_agent import _digest_backends, _digest_portable, _digest_triton

    def fails(*_: object) -> None:
        raise RuntimeError("PTX JIT compilation failed: unsupported toolchain")

    monkeypatch.setattr(_digest_backends, "_chosen", {})
    monkeypatch.setattr(_digest_triton, "check", fails)
    for _ in range(2):
        assert _digest_backends.name_of("cuda") == "portable"
    out = capsys.readouterr().out
    assert out.count('"sdc":"warning"') == 1 and "unsupported toolchain" in out
    monkeypatch.setattr(_digest_backends, "_chosen", {"cpu": fails})  # it compiled, and fails later
    x = torch.arange(9.0)
    for _ in range(2):
        assert torch.equal(_digest_backends.table([x], 2**32), _digest_portable.table([x]))
    assert capsys.readouterr().out.count('"sdc":"warning"') == 1


def test_the_kernel_proves_itself_on_the_gpu_that_holds_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the current one it would make a context of hundreds of megabytes, for every rank of a node."""
    import torch

    from training_agent import _digest_backends, _digest_triton

    asked: list[torch.device] = []
    monkeypatch.setattr(_digest_backends, "_chosen", {})
    monkeypatch.setattr(_digest_triton, "check", asked.append)
    _digest_backends._backend(torch.device("cuda:3"))
    assert asked == [torch.device("cuda:3")]
