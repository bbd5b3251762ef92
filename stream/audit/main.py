"""`leyden audit`: one pass over ledgers, topics and manifests, then the report."""

from collections.abc import Iterable
from pathlib import Path

from ...infra.settings import RoleSettings
from .core import MIN_GROUP, audit_groups, audit_rollouts
from .facts import GroupFact, RolloutFact
from .reader import Reader
from .report import Report
from .spool import Spool

GRACE_S = 60.0
"""A stage that has read past a record and has had this long has lost what it did not write (closing waits included)."""


def run(
    settings: RoleSettings, ledgers: Iterable[Path] = (), grace_s: float = GRACE_S, min_group: int = MIN_GROUP
) -> Report:
    """Audit the deployment; it may be running. Disk for the facts: about 200 bytes an event, in the temporary folder.

    Raises KafkaUnavailableError, ObjectStoreError, ManifestError or LedgerError where something cannot be read.
    """
    reader = Reader(settings, int(grace_s * 1000))
    expected = reader.expected_facts()
    with Spool[RolloutFact](expected) as facts, Spool[GroupFact](expected) as groups:
        reader.read(ledgers, facts, groups)
        report = reader.report
        for part in facts.parts():
            found, places = audit_rollouts(part, reader.world)
            report.add(found)
            for place in places:
                groups.add(place.group_id, place)
        for part in groups.parts():
            report.add(audit_groups(part, reader.world, min_group))
    return report
