"""The calls of a trajectory as the gateway wrote them, read from wherever they lie."""

import threading
from collections.abc import Callable

from ..avro import Event, decode
from ..avro.schemas import SchemaStore
from ..infra.objects import ObjectStore
from ..infra.parking import unpark
from .publisher import patiently


def call_reader(objects: ObjectStore, schemas: SchemaStore, stop: threading.Event) -> Callable[[bytes], Event]:
    """Decodes one encoded call and fetches what is parked of it, waiting while the object store is away.

    What it returns raises DecodeError and ObjectLostError for a call that no waiting brings back.
    """

    def read(encoded: bytes) -> Event:
        return patiently(lambda: unpark(decode(encoded, Event, schemas), objects, schemas), "payload of a call", stop)

    return read
