"""The published scenario table against the agent, over real gloo processes: `python -m tests.matrix`.

Data flow: `tests/scenarios.json` -> `rows` (what to run) -> `worker` on every rank (`job`, `blind`) -> raw
results -> `judge` with `oracle` (recomputed from the JSON, never taken from the run) -> `out/matrix.json`.
"""
