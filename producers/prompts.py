"""PromptTemplate: a prompt as a versioned resource, published to the topic `resources`."""

import os
from dataclasses import dataclass, replace
from typing import Self

import orjson

from ..avro import Resource, decode, encode, now_ms
from ..avro.errors import LeydenError
from ..infra import kafka, topics
from ..infra.settings import RoleSettings
from .identity import RESOURCES

KIND = "prompt_template"


class PromptError(LeydenError):
    """There is no such prompt, or a placeholder of it got no value."""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Text with {placeholders}. `version` 0: not published yet; published versions count from 1 and never change."""

    name: str
    template: str
    version: int = 0

    def format(self, **values: object) -> str:
        """The text with its placeholders filled. Raises PromptError for one without a value."""
        try:
            return self.template.format_map(values)
        except (KeyError, IndexError, ValueError) as error:
            raise PromptError(f"prompt {self.name} version {self.version}: placeholder {error} has no value") from error

    def publish(self, settings: RoleSettings | None = None) -> Self:
        """Make this text the live version; returns it with its number. Text that is live already is not repeated."""
        settings = settings or RoleSettings.load()
        topic, producer = settings.prefix + topics.RESOURCES, kafka.producer(settings.kafka)
        while True:
            found = _published(self.name, settings)
            if found and found[-1].template == self.template:
                return replace(self, version=found[-1].version)
            mine = replace(self, version=found[-1].version + 1 if found else 1)
            value = encode(mine.resource())
            _, offset = kafka.send_and_wait(producer, topic, f"{self.name}/{mine.version}".encode(), value)
            # Two writers may have chosen one number: the first in the log has it, the other takes the next.
            if _offset_of(self.name, mine.version, settings) == offset:
                kafka.send_and_wait(producer, topic, f"{self.name}/live".encode(), value)
                return mine

    def resource(self) -> Resource:
        """The record of this version."""
        return Resource(self.name, self.version, KIND, orjson.dumps({"template": self.template}), now_ms())

    @classmethod
    def live(cls, name: str, settings: RoleSettings | None = None) -> Self:
        """Inside a rollout the version that its task was given, elsewhere the newest. Raises PromptError for none."""
        given = orjson.loads(os.environ.get(RESOURCES) or "{}")
        if name in given:
            return cls(**orjson.loads(given[name]))
        found = _published(name, settings or RoleSettings.load())
        if not found:
            raise PromptError(f"no prompt {name} was ever published")
        return cls(name, found[-1].template, found[-1].version)

    def to_json(self) -> str:
        """What a task carries of it."""
        return orjson.dumps({"name": self.name, "template": self.template, "version": self.version}).decode()


def _records(name: str, settings: RoleSettings) -> dict[int, tuple[int, Resource]]:
    """Version to (offset, record), the first of each in the log."""
    found: dict[int, tuple[int, Resource]] = {}
    for message in kafka.read_all(settings.kafka, settings.prefix + topics.RESOURCES):
        value, key = message.value(), message.key()
        if isinstance(value, bytes) and isinstance(key, bytes) and not key.endswith(b"/live"):
            record = decode(value, Resource)
            if record.name == name and record.kind == KIND:
                found.setdefault(record.version, (message.offset() or 0, record))
    return found


def _published(name: str, settings: RoleSettings) -> list[PromptTemplate]:
    records = _records(name, settings)
    return [PromptTemplate(name, orjson.loads(records[v][1].content)["template"], v) for v in sorted(records)]


def _offset_of(name: str, version: int, settings: RoleSettings) -> int | None:
    record = _records(name, settings).get(version)
    return record[0] if record else None
