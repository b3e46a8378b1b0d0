"""The digest in C for host memory, at the speed of one read. In: CPU tensors. Out: int64 [n, 3].

The wheel carries the source (`_digest_kernel.c`), not a binary: it stays installable everywhere. The first
use compiles it with the machine's compiler into the user's cache; later processes load it. Without a
compiler `library` says why, and `digest` takes the portable path.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .digest import KNOWN_ANSWER, KNOWN_INPUT, SPLIT_WORDS, WORDS, key_block

SOURCE = Path(__file__).with_name("_digest_kernel.c")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC")
WIDTHS = ("plain", "AVX2", "AVX-512")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 60
_HASH = 32  # bytes


class NoCompiledDigest(Exception):
    """The text says what is missing."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Build or find the library, load it, and see it digest one known input.

    Raises:
        NoCompiledDigest: no compiler, no place to write, or a wrong answer.
    """
    try:
        return _from_cache() or _made_here()
    except (OSError, subprocess.SubprocessError) as e:
        raise NoCompiledDigest(f"it could not be compiled or loaded: {e}") from e


def table(tensors: Sequence[Tensor], split_words: int = SPLIT_WORDS, *, width: int | None = None) -> Tensor:
    """Digest each CPU tensor into a row; `width` indexes WIDTHS, None is the widest of this machine.

    Raises:
        NoCompiledDigest: see `library`.
    """
    lib = library()
    return _call(lib, tensors, split_words, lib.training_agent_digest_width() if width is None else width)


def _call(lib: ctypes.CDLL, tensors: Sequence[Tensor], split_words: int, width: int) -> Tensor:
    plain = [_plain(t) for t in tensors]  # keeps copies of non-contiguous ones alive during the call
    count = len(plain)
    out = torch.empty(count, WORDS, dtype=torch.int64, device="cpu")
    words = ctypes.c_uint64 * count
    lib.training_agent_digest(
        words(*[t.data_ptr() for t in plain]),
        words(*[t.numel() * t.element_size() for t in plain]),
        ctypes.c_uint64(count),
        ctypes.c_uint64(4 * split_words),
        _keys(),
        ctypes.c_int(width),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as plain row-major memory; itself where it is that already."""
    t = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    if t.is_neg() or t.is_conj():
        t = t.resolve_conj().resolve_neg()
    return t if t.is_contiguous() else t.contiguous()


@lru_cache(maxsize=1)
def _keys() -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(key_block()))(*key_block())


def compiler() -> str | None:
    """The C compiler of this machine: $CC, or the usual names."""
    wanted = (os.environ.get("CC"), *_COMPILERS)
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


# -- building ------------------------------------------------------------------------------------------


def _from_cache() -> ctypes.CDLL | None:
    """What lies in the user's cache, built there where it is missing or damaged; None: no such place."""
    folder = _cache()
    if folder is None:
        return None
    target = folder / f"digest-{_fingerprint()}.so"
    if not _sound(target):
        if not os.access(folder, os.W_OK):
            return None
        _compile(target)
    try:
        return _checked(ctypes.CDLL(str(target)))
    except OSError:  # another machine's C library, or no code may run from there
        return None


def _made_here() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as own:  # loaded code outlives its file
        target = Path(own) / "digest.so"
        _compile(target)
        return _checked(ctypes.CDLL(str(target)))


def _fingerprint() -> str:
    what = [SOURCE.read_bytes(), " ".join(FLAGS).encode(), platform.machine().encode()]
    return hashlib.sha256(b"\0".join(what)).hexdigest()[:16]


def _cache() -> Path | None:
    """A folder that only this user can write, so that nobody else's code is loaded; None: there is none."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        folder = Path(base) / "training-agent"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except (OSError, RuntimeError):  # the latter: a user without a home
        return None
    return folder if facts.st_uid == os.geteuid() and not facts.st_mode & 0o022 else None


def _sound(target: Path) -> bool:
    """Whether the file is whole: loading a piece of one can end the process. Its hash lies at its end."""
    try:
        data = target.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-_HASH]).digest() == data[-_HASH:]


def _compile(target: Path) -> None:
    program = compiler()
    if program is None:
        raise NoCompiledDigest("no C compiler (cc, gcc, clang or $CC) is on PATH")
    with tempfile.TemporaryDirectory(dir=target.parent) as own:  # several ranks may do this at once
        built = Path(own) / target.name
        done = subprocess.run(
            [program, *FLAGS, "-o", str(built), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise NoCompiledDigest(f"{program} failed: {done.stderr.strip()[-300:]}")
        with built.open("ab") as file:
            file.write(hashlib.sha256(built.read_bytes()).digest())
        built.replace(target)


def _checked(lib: ctypes.CDLL) -> ctypes.CDLL:
    lib.training_agent_digest.restype = None
    lib.training_agent_digest_width.restype = ctypes.c_int
    known = torch.frombuffer(bytearray(KNOWN_INPUT), dtype=torch.uint8)
    for width in range(lib.training_agent_digest_width() + 1):
        found = _call(lib, [known], SPLIT_WORDS, width)[0].tolist()
        if tuple(word % 2**64 for word in found) != KNOWN_ANSWER:
            raise NoCompiledDigest(f"the compiled {WIDTHS[width]} code computes a wrong digest here")
    return lib
