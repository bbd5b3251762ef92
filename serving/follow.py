"""What a reloader does next and whether its replica may serve: pure decisions over lineage and engine."""

from dataclasses import dataclass

from ..avro import Checkpoint
from ..infra.lineage import Lineage
from .engine_client import EngineState


@dataclass(frozen=True, slots=True)
class View:
    """All that a reloader knows at one moment."""

    lineage: Lineage
    caught_up: bool  # the lineage once was that of the end of the topic
    engine: EngineState | None  # None: it does not answer
    ready_replica: str | None = None  # the start of the engine that has served a live version


def to_load(view: View) -> Checkpoint | None:
    """The live version where the engine runs another; None where there is nothing to do or no engine to do it to."""
    live = view.lineage.live
    if not view.caught_up or live is None or view.engine is None or view.engine.loading is not None:
        return None
    return live if view.engine.version != live.version else None


def to_prefetch(view: View) -> Checkpoint | None:
    """The newest candidate that may become live: its files are fetched while the promoter asks its gates."""
    live = view.lineage.live
    newest = max(view.lineage.versions, default=None)
    if not view.caught_up or newest is None or (live is not None and newest <= live.version):
        return None
    return None if view.lineage.abandoned(newest) else view.lineage.versions[newest]


def seen(view: View) -> str | None:
    """The replica that counts as ready after this view: the engine's, once it runs the live version."""
    live = view.lineage.live
    if view.engine is None or live is None or not view.caught_up:
        return view.ready_replica
    return view.engine.replica if view.engine.version == live.version else view.ready_replica


def why_not_ready(view: View) -> str | None:
    """None where the replica may take requests.

    A replica that has served a live version stays ready while it loads the next one. A restarted one runs the base
    model, and one whose version was rolled back runs what nobody wants: both are not ready before they run live.
    """
    live = view.lineage.live
    if not view.caught_up:
        return "the topic checkpoints is not read to its end yet"
    if view.engine is None:
        return "the engine does not answer"
    if live is None:
        return f"no version of policy {view.lineage.policy} is live"
    if view.engine.version != live.version and view.engine.version in view.lineage.rolled_back:
        return f"the engine runs version {view.engine.version}, which was rolled back; live is {live.version}"
    if view.engine.version != live.version and view.engine.replica != view.ready_replica:
        return f"the engine has started and runs version {view.engine.version}; live is {live.version}"
    return None


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """Pause after the n-th failure in a row (n from 1): doubled each time, bounded."""
    return min(first_s * 2 ** min(failures - 1, 30), longest_s)
