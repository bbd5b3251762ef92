"""What a deployment needs before its first record: topics, the bucket, the schemas where others find them."""

from ..avro import COMMITTED
from . import kafka, topics
from .objects import ObjectStore
from .schema_exchange import publish
from .settings import RoleSettings


def apply(settings: RoleSettings) -> list[str]:
    """Create what is missing; returns the topics created. Repeating it is harmless."""
    objects = ObjectStore(settings.objects)
    objects.ensure_bucket()
    publish(COMMITTED, objects)
    return topics.apply(kafka.admin(settings.kafka), settings.prefix, settings.kafka)


def check(settings: RoleSettings) -> list[str]:
    """What differs from the specification, a line each."""
    return topics.check(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
