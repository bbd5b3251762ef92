"""The topics of a deployment: names, partitions, retention; create and check."""

from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - documented there
    NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from .errors import TopicError
from .settings import KafkaSettings

DAY_MS = 86_400_000
EVENTS, TASKS, TRAJECTORIES, BATCHES = "events", "tasks", "trajectories", "batches"
CHECKPOINTS, RESOURCES, DEAD_LETTERS = "checkpoints", "resources", "dead-letters"
# A record beyond this is parked in the object store (infra.parking). Kafka's own default limit is 1,048,588 bytes.
MAX_RECORD_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic. `partitions` None: the deployment's number."""

    name: str
    partitions: int | None
    config: dict[str, str] = field(default_factory=dict)


def _kept(days: int) -> dict[str, str]:
    # The policy is named, or a cluster's own default could compact what has to be kept.
    return {"cleanup.policy": "delete", "retention.ms": str(days * DAY_MS), "compression.type": "producer"}


_COMPACTED = {"cleanup.policy": "compact"}
SPECS: tuple[TopicSpec, ...] = (
    TopicSpec(EVENTS, None, _kept(30)),
    TopicSpec(TASKS, None, _kept(7)),
    TopicSpec(TRAJECTORIES, None, _kept(30)),
    # One partition: what a learner consumed is one interval of offsets, of whichever policy.
    TopicSpec(BATCHES, 1, _kept(30)),
    # One partition: live, candidate and rolled_back of a policy have one order.
    TopicSpec(CHECKPOINTS, 1, _COMPACTED),
    TopicSpec(RESOURCES, 1, _COMPACTED),
    TopicSpec(DEAD_LETTERS, 1, _kept(30)),
)


def apply(admin: AdminClient, prefix: str, kafka: KafkaSettings) -> list[str]:
    """Create what is missing; returns the names created. Raises TopicError when Kafka refuses."""
    present = set(admin.list_topics(timeout=10).topics)
    wanted = [
        NewTopic(
            prefix + spec.name,
            num_partitions=spec.partitions or kafka.partitions,
            replication_factor=kafka.replication_factor,
            config=spec.config | {"min.insync.replicas": str(min_insync(kafka))},
        )
        for spec in SPECS
        if prefix + spec.name not in present
    ]
    created = []
    for name, future in (admin.create_topics(wanted) if wanted else {}).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicError(f"topic {name} cannot be created: {error.args[0].str()}") from error
    return created


def min_insync(kafka: KafkaSettings) -> int:
    """2 from three replicas on, else 1."""
    return 2 if kafka.replication_factor >= 3 else 1


def check(admin: AdminClient, prefix: str, kafka: KafkaSettings) -> list[str]:
    """What differs from the specification, a line each; empty when all is well."""
    present = admin.list_topics(timeout=10).topics
    problems = [
        f"topic {prefix}{s.name} is missing: leyden topics --apply" for s in SPECS if prefix + s.name not in present
    ]
    found = [s for s in SPECS if prefix + s.name in present]
    for spec in found:
        count, want = len(present[prefix + spec.name].partitions), spec.partitions or kafka.partitions
        if count != want:
            problems.append(f"topic {prefix}{spec.name} has {count} partitions, kafka.partitions asks for {want}")
    resources = {ConfigResource(ResourceType.TOPIC, prefix + s.name): s for s in found}
    for resource, future in (admin.describe_configs(list(resources)) if resources else {}).items():
        config = {name: str(entry.value) for name, entry in future.result().items()}
        wrong = differences(resources[resource], config, min_insync(kafka))
        problems += [f"topic {resource.name} has {difference}" for difference in wrong]
    return problems


def differences(spec: TopicSpec, config: dict[str, str], isr: int) -> list[str]:
    """Properties of a topic with which records would be lost, each with what is needed instead."""
    found = []
    if int(config["min.insync.replicas"]) < isr:
        found.append(f"min.insync.replicas={config['min.insync.replicas']}, this deployment needs {isr}")
    policy = spec.config["cleanup.policy"]
    if config["cleanup.policy"] != policy:
        found.append(f"cleanup.policy={config['cleanup.policy']}, this deployment needs {policy}")
    kept = int(spec.config.get("retention.ms", 0))
    # -1: for ever.
    if policy == "delete" and 0 <= int(config["retention.ms"]) < kept:
        found.append(f"retention.ms={config['retention.ms']}, this deployment needs at least {kept}")
    return found


def require(admin: AdminClient, prefix: str, kafka: KafkaSettings) -> None:
    """Refuse to start on topics that differ. Raises TopicError naming every difference."""
    if problems := check(admin, prefix, kafka):
        raise TopicError("\n".join(problems))
