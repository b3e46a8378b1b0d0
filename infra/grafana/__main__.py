"""`python -m infra.grafana` writes the dashboard's JSON."""

from __future__ import annotations

from . import FILE, text

FILE.write_text(text())
