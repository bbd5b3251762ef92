"""`leyden gc`: remove the files of checkpoints that nobody needs again; manifests stay for ever."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ..infra import manifest
from ..infra.checkpoint_log import read_lineage
from ..infra.lineage import Lineage
from ..infra.objects import ObjectStore
from .settings import GcSettings

PARTS = ("serve", "resume")
log = logging.getLogger("leyden.serving")


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """`serve` or `resume` of what one run of the learner wrote for one version."""

    version: int
    run_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Rules:
    """How much stays; see GcSettings."""

    keep_serve: int
    keep_resume: int
    rollback_depth: int


def plan(parts: Iterable[Part], manifests: dict[int, str], lineage: Lineage, rules: Rules) -> list[Part]:
    """The parts to remove. `manifests`: version -> run_id of the versions that have a manifest.

    Kept are the newest versions, and whole what a rollback or a replica may ask for: live and its parents. A part
    without a manifest is a lost upload where its version or a later one has a manifest, else perhaps one under way.
    """
    newest = sorted(manifests, reverse=True)
    latest = newest[0] if newest else -1
    needed = set(lineage.ancestors(lineage.live.version)[: rules.rollback_depth + 1]) if lineage.live else set()
    kept = {
        "serve": needed | set(newest[: rules.keep_serve]),
        "resume": needed | set(newest[: rules.keep_resume]),
    }

    def goes(part: Part) -> bool:
        if manifests.get(part.version) != part.run_id:
            return part.version <= latest
        return part.version not in kept[part.name]

    return sorted(part for part in parts if goes(part))


def stored_parts(policy: str, objects: ObjectStore) -> dict[Part, list[str]]:
    """What lies in the object store: each part with its keys."""
    found: dict[Part, list[str]] = {}
    for key in objects.list_keys(f"checkpoints/{policy}/"):
        pieces = key.split("/")
        if len(pieces) >= 6 and pieces[4] in PARTS and pieces[2].isdecimal():
            found.setdefault(Part(int(pieces[2]), pieces[3], pieces[4]), []).append(key)
    return found


def manifested_runs(policy: str, parts: Iterable[Part], objects: ObjectStore) -> dict[int, str]:
    """version -> run_id of its manifest. A manifest is read only where two runs wrote parts of its version."""
    runs: dict[int, set[str]] = {}
    for part in parts:
        runs.setdefault(part.version, set()).add(part.run_id)
    result = {}
    for version in manifest.versions(policy, objects):
        of_version = runs.get(version, set())
        alone = len(of_version) == 1
        result[version] = next(iter(of_version)) if alone else manifest.load(policy, version, objects)[0].run_id
    return result


def collect(settings: GcSettings, lineage: Lineage, objects: ObjectStore, dry_run: bool = False) -> list[Part]:
    """Remove by the rules of `settings`; returns what went, or with `dry_run` what would go."""
    parts = stored_parts(settings.policy, objects)
    rules = Rules(settings.keep_serve, settings.keep_resume, settings.rollback_depth)
    gone = plan(parts, manifested_runs(settings.policy, parts, objects), lineage, rules)
    for part in [] if dry_run else gone:
        objects.remove(parts[part])
        log.info("removed %s of version %d, run %s", part.name, part.version, part.run_id)
    return gone


def main(settings: GcSettings, dry_run: bool = False) -> list[Part]:
    """Collect for `settings.policy`. Raises ObjectStoreError, KafkaUnavailableError."""
    return collect(settings, read_lineage(settings), ObjectStore(settings.objects), dry_run)
