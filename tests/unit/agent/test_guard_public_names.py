"""The package's public names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import training_agent


def test_every_public_name_is_there_and_lives_where_the_table_says() -> None:
    assert set(training_agent.__all__) == set(training_agent._HOME)
    for name in training_agent.__all__:
        assert getattr(training_agent, name).__name__ == name


def test_importing_the_agent_loads_neither_torch_nor_boto3() -> None:
    code = (
        "import sys, training_agent; from training_agent import Schedule, AgentSettings, Phase, "
        "hold_while_quarantined; sys.exit(bool({'torch', 'boto3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
