"""The script in the README runs as it stands: trains, saves, and a second start resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def script() -> str:
    text = (ROOT / "README.md").read_text().split("<!-- loop -->")[1].split("<!-- /loop -->")[0]
    return text.replace("```python\n", "").replace("```", "")


def launch(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"],
        cwd=folder,
        env={
            **os.environ,
            "NODE_NAME": "hyperpod-i-0123456789abcdef0",
            "SDC_SHARED_DIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_the_script_in_the_readme_trains_saves_and_resumes(tmp_path: Path) -> None:
    first = launch(tmp_path, script())
    assert first.returncode == 0, first.stdout + first.stderr
    saved = {
        p.name: json.loads((p / "manifest.json").read_text()) for p in (tmp_path / "checkpoints").iterdir()
    }
    assert set(saved) == {"step-20", "step-40"}
    again = launch(tmp_path, script().replace("steps = dist.get_rank(), 40", "steps = dist.get_rank(), 60"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert (tmp_path / "checkpoints" / "step-60" / "manifest.json").exists()
