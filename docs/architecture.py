"""The data-flow table of docs/architecture.md, taken from the modules' own docstrings.

In: the folders. Out: for each module what it receives, decides and emits, as its docstring says (`In:`, its
first sentence, `Out:`). Written by `docs.render`; a test holds the table against the folders.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    ("training_agent", "The agent, in every training process"),
    ("training_agent/checks", "Its three checks"),
    ("training_agent/report", "What it tells, and whom"),
    ("training_agent/integrations", "In training libraries"),
    ("training_agent/capsule", "One alarm's micro-batch in a file, to be computed again"),
    ("training_agent/contract", "The wire format, on both sides"),
    ("training_agent/pictures", "Pictures of page and report"),
    ("training_agent/cli", "The command line `sdc`"),
    ("training_agent/cli/report", "`sdc report`"),
    ("lambdas", "The pipeline: entrances and the page"),
    ("lambdas/steps", "The steps of an incident"),
    ("lambdas/domain", "What is decided, without the world"),
    ("lambdas/adapters", "The world, one service each"),
    ("infra", "What is deployed"),
    ("infra/eks_access", "What the functions may do at Kubernetes"),
    ("infra/grafana", "The dashboard for the observability add-on"),
    ("emulator", "The local cloud"),
)  # folder, heading; in the order of the flow
_LABELS = re.compile(
    r"(?:^|(?<=[.;,] ))(in|comes in|comes from|out|goes out|goes to|next step|next|sources?|used by)"
    r"(?:: | (?=an? `|`))",
    re.IGNORECASE,
)
_IN, _OUT = ("in", "comes in", "comes from"), ("out", "goes out", "goes to")


@dataclass(frozen=True, slots=True)
class Flow:
    """One module; a field is "" where its docstring does not say."""

    module: str
    receives: str
    decides: str
    emits: str


def parts() -> tuple[tuple[str, str], ...]:
    """Those above that hold modules, then folders that nobody has put in their place yet."""
    found = every_folder()
    return (*(p for p in PARTS if p[0] in found), *((f, "More") for f in found if f not in dict(PARTS)))


def modules(folder: str) -> tuple[str, ...]:
    """Paths of the modules right in a folder, packages' own file first where it says something."""
    paths = sorted((ROOT / folder).glob("*.py"))
    return tuple(p.relative_to(ROOT).as_posix() for p in paths if _docstring(p))


def every_folder() -> tuple[str, ...]:
    """All folders that hold modules, below those that the table is about."""
    tops = {folder.split("/")[0] for folder, _ in PARTS}
    files = (p for top in tops for p in (ROOT / top).rglob("*.py") if _docstring(p))
    return tuple(sorted({p.parent.relative_to(ROOT).as_posix() for p in files}))


def flow(module: str) -> Flow:
    """What a module's docstring says of it."""
    text = " ".join(_docstring(ROOT / module).split())
    first = _sentence(text)
    found = list(_LABELS.finditer(text))
    said = {"in": "", "out": ""}
    for label, following in zip(found, [*found[1:], None], strict=False):
        part = text[label.end() : following.start() if following else len(text)].strip()
        kind = "in" if label[1].lower() in _IN else "out" if label[1].lower() in _OUT else ""
        if kind and not said[kind]:
            said[kind] = _sentence(part)
    return Flow(module, said["in"], first, said["out"])


def table() -> str:
    """The document's table, a heading for each folder."""
    lines = []
    for folder, heading in parts():
        lines += [
            f"### {heading}: `{folder}`",
            "",
            "| module | receives | decides | emits |",
            "|---|---|---|---|",
        ]
        for module in modules(folder):
            f = flow(module)
            name = Path(module).stem
            cells = (f"`{name}`", f.receives, f.decides, f.emits)
            lines.append("| " + " | ".join(c.replace("|", "\\|") or "-" for c in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    """The first one; what stands before a list or an example ends in a colon."""
    return re.split(r"(?<=[a-zA-Z0-9`)\]\"])[.] ", text, maxsplit=1)[0].rstrip(".;,")


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
