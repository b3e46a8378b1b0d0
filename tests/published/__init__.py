"""The published design, ported from its description: a reference to compare with, never used by the agent.

`fingerprint` (two plain sums), `naming` (ring, then one third GPU), `design` (comm hook, norms, ring replay
with `rebuild_batch`). It passes the published table itself (`test_published`); `python -m tests.published`
runs what it gets wrong beside the agent and writes the comparison table of `docs/detection.md`.
"""
