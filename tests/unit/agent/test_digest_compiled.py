"""The compiled digest where something is missing, unsafe or wrong: the portable code takes over, aloud."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from training_agent import _digest_backends, _digest_compiled, _digest_portable
from training_agent._digest_compiled import NoCompiledDigest

needs_compiler = pytest.mark.skipif(_digest_compiled.compiler() is None, reason="no C compiler here")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_digest_backends, "_chosen", {})
    monkeypatch.setattr(_digest_compiled, "FLAGS", ("-O0", *_digest_compiled.FLAGS[1:]))  # built in no time
    _digest_compiled.library.cache_clear()
    yield tmp_path / "training-agent"
    _digest_compiled.library.cache_clear()


@pytest.fixture
def no_compiler_from_now_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def take_away() -> None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", "")

    return take_away


@pytest.fixture
def no_compiler(no_compiler_from_now_on: Callable[[], None]) -> None:
    no_compiler_from_now_on()


def test_without_a_compiler_the_portable_code_runs_and_one_line_says_so(
    cache: Path, no_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.arange(9.0)
    for _ in range(2):
        assert torch.equal(_digest_backends.table([x], 2**32), _digest_portable.table([x]))
    out = capsys.readouterr().out
    assert out.count('"sdc":"warning"') == 1 and "no C compiler" in out
    assert _digest_backends.name_of("cpu") == "portable"


@needs_compiler
def test_it_is_compiled_once_and_then_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _digest_compiled.library()
    assert len(list(cache.glob("digest-*.so"))) == 1
    _digest_compiled.library.cache_clear()
    monkeypatch.setenv("PATH", "")
    _digest_compiled.library()


@needs_compiler
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_code_from_a_folder_that_others_can_write_is_never_loaded(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    (cache / f"digest-{_digest_compiled._fingerprint()}.so").write_bytes(b"planted")
    _digest_compiled.library()  # compiled anew, in a folder of its own
    assert len(list(cache.iterdir())) == 1


@needs_compiler
def test_a_wrong_digest_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_digest_compiled, "KNOWN_ANSWER", (1, 2, 3))
    with pytest.raises(NoCompiledDigest, match="wrong digest"):
        _digest_compiled.library()
    assert _digest_backends.name_of("cpu") == "portable"
    assert "wrong digest" in capsys.readouterr().out


@needs_compiler
def test_a_compiler_that_fails_is_quoted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(NoCompiledDigest, match="no such header"):
        _digest_compiled.library()


@needs_compiler
@pytest.mark.parametrize("damage", ["half", "flipped", "another C library's"])
def test_a_damaged_library_in_the_cache_is_built_anew(cache: Path, damage: str) -> None:
    """Half of one ends the process that loads it; one that stays would cost every later start its speed."""
    _digest_compiled.library()
    (file,) = cache.glob("digest-*.so")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    other = b"not ELF"
    contents = {"half": whole[: len(whole) // 2], "flipped": bytes(flipped)}
    file.unlink()  # this process still runs what was in it
    file.write_bytes(contents.get(damage, other + hashlib.sha256(other).digest()))
    _digest_compiled.library.cache_clear()
    _digest_compiled.library()
    assert file.read_bytes() == whole or damage not in contents


@needs_compiler
def test_a_library_in_a_cache_that_cannot_be_written_is_loaded(
    cache: Path, no_compiler_from_now_on: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _digest_compiled.library()
    monkeypatch.setattr(os, "access", lambda *_: False)
    _digest_compiled.library.cache_clear()
    no_compiler_from_now_on()
    _digest_compiled.library()


@needs_compiler
def test_without_a_home_the_library_is_built_in_a_folder_of_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user need not stand in any list of users."""

    def unknown(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", unknown)
    assert _digest_backends.name_of("cpu") == "compiled"


@needs_compiler
def test_several_processes_may_build_it_at_once(cache: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = [f.result() for f in [pool.submit(_digest_compiled._from_cache) for _ in range(2)]]
    assert None not in found
    assert len(list(cache.iterdir())) == 1, "nothing half-built is left"
