"""`python -m tests.unit.agent.sm90`: compile the digest kernel for sm_90 offline and count instructions.

Prints one JSON object. A word is one 32-bit word of a tensor's bytes, per thread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from training_agent import _digest_triton as kernel

THREADS = 32 * kernel.WARPS
CHUNK_WORDS = kernel.ROWS * kernel.PAIRS * 2 // THREADS
TURN_WORDS = kernel.ROWS * kernel.LANES * kernel.UNROLL * 2 // THREADS  # of one turn of the hot loop


def cubin() -> bytes:
    """Machine code of the kernel; needs no GPU."""
    constants = {n: getattr(kernel, n) for n in ("ROWS", "LANES", "PAIRS", "UNROLL")}
    source = ASTSource(
        kernel.digest_kernel,
        signature={"table": "*i64", "keys": "*u64", "out": "*i64", **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(3)},
    )
    warnings.simplefilter("ignore")
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel.WARPS})
    return compiled.asm["cubin"]


def instructions(sass: str) -> tuple[list[str], dict[str, int]]:
    """Instructions in order, and where each label points."""
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif code := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append(code[1])
    return found, labels


def loops(code: list[str], labels: dict[str, int]) -> list[list[str]]:
    """Bodies of the backward jumps, the idle one at the end of every kernel left out."""
    ends = [(labels[m[1]], i) for i, t in enumerate(code) if (m := re.search(r"BRA.*?(\.L_x_\d+)", t))]
    return [code[start : end + 1] for start, end in ends if start < end]


def main() -> None:
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin())
        f.flush()
        sass = _tool(folder / "nvdisasm", "-c", f.name)
        usage = _tool(folder / "cuobjdump", "-res-usage", f.name)
    code, labels = instructions(sass)
    bodies = loops(code, labels)
    hot = next(b for b in bodies if any("LDG.E.128" in t for t in b))
    bytewise = next(b for b in bodies if b is not hot)
    turns = CHUNK_WORDS // TURN_WORDS
    around = len(code) - len(hot) - len(bytewise)
    loads = [t for t in hot if "LDG" in t]
    spilled = re.search(r"STACK:(\d+)", usage)
    result: dict[str, Any] = {
        "loop_words": TURN_WORDS,
        "loop_instructions_per_word": len(hot) / TURN_WORDS,
        "instructions_per_word": (len(hot) * turns + around) / CHUNK_WORDS,
        "bytewise_instructions_per_word": len(bytewise) * kernel.UNROLL / TURN_WORDS,
        "narrow_loads_in_loop": sum("LDG.E.128" not in t for t in loads),
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "spilled_bytes": int(spilled[1]) if spilled else 0,
    }
    sys.stdout.write(json.dumps(result) + "\n")


def _tool(program: Path, *args: str) -> str:
    return subprocess.run([program, *args], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
