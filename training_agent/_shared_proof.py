"""Proves that the job's folders are shared, before anything is trained that only they could bring back.

In: the shared folder and the checkpoints' folder. Out: nothing, or `ConfigurationError` on every rank. Rank 0
writes a nonce into each, the first rank of every other node reads it. A replacement destroys all volumes of
its node: what lies on one node only is gone with it, checkpoints and record of suspects included.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from ._comm import Comm
from .checkpoint_folder import Checkpoints
from .contract import Env
from .errors import ConfigurationError
from .log_line import log_line
from .placement import RankMap
from .settings import AgentSettings
from .shared_files import write_atomic

PATIENCE_S = 5.0  # network file systems cache that a name does not exist


def prove_shared(
    comm: Comm, rank_map: RankMap, settings: AgentSettings, checkpoints: Checkpoints | None
) -> None:
    """A collective; without such a folder there is nothing to prove.

    Raises:
        ConfigurationError: on every rank: a node does not see what rank 0 wrote, or nobody can write.
    """
    mine = [f for f in (settings.shared_dir, checkpoints.folder if checkpoints else None) if f is not None]
    wanted, override = comm.from_first((len(mine), settings.allow_node_local))
    if not wanted:
        return
    written: list[Path] = []
    nonce, problem = "", ""
    if comm.is_first:
        nonce = f".sdc-shared-{secrets.token_hex(8)}"
        try:
            for folder in mine:
                write_atomic(folder / nonce, nonce.encode())
                written.append(folder / nonce)
        except OSError as e:
            problem = f"rank {comm.rank} cannot write {folder}: {e}"
    nonce = comm.from_first(nonce)
    reader = not comm.is_first and comm.rank == min(rank_map.ranks_on(rank_map.node_of(comm.rank)))
    if reader:
        node = rank_map.node_of(comm.rank)
        unseen = _unseen(mine, nonce)
        if unseen is not None:
            problem = f"node {node} does not see what rank {comm.ranks[0]} wrote into {unseen}"
        elif len(mine) < wanted:
            problem = f"node {node} is not told of a folder that rank {comm.ranks[0]} uses"
    problems = comm.complaints(problem)
    for path in written:
        path.unlink(missing_ok=True)
    if problems:
        _refuse(problems, override=override, speaks=comm.is_first)


def _unseen(folders: Sequence[Path], nonce: str) -> Path | None:
    """The first folder in which the nonce does not show up."""
    deadline = time.monotonic() + PATIENCE_S
    for folder in folders:
        while not _exists(folder / nonce):
            if time.monotonic() > deadline:
                return folder
            time.sleep(0.1)
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a mount that fails, a folder nobody may enter: not seen, which all ranks are told
        return False


def _refuse(problems: Sequence[str], *, override: bool, speaks: bool) -> None:
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    text = "; ".join(problems[:3]) + more
    if override:
        if speaks:
            log_line("warning", message=f"{text}: {Env.ALLOW_NODE_LOCAL.value} is set, so the job starts.")
        return
    raise ConfigurationError(
        f"{text}. The folder is not shared by all nodes, and a replacement destroys every volume of its "
        "node: checkpoints there would be lost, and a restarted job could not be kept off a suspect node. "
        "Put it on FSx for Lustre and mount that in all pods (`sdc doctor` checks a pod), or accept the loss "
        f"with {Env.ALLOW_NODE_LOCAL.value}=1."
    )
