"""What the gateway must know of a route that the engine answers as a chat: how it is translated there and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .shape import Shape


class ChunkTranslator(Protocol):
    """One streamed answer on its way from the engine's form to the agent's."""

    def feed(self, events: bytes) -> bytes:
        """Whole events of a chat stream, `data: [DONE]` included, become whole events for the agent."""
        ...


class Dialect(Protocol):
    """A route of its own form whose calls are chats to the engine. Pure; nothing is kept between calls."""

    route: str

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """The chat request. Raises RefusedError for what a chat cannot express or has no token ids."""
        ...

    def answer(self, chat: bytes, body: Mapping[str, Any]) -> bytes:
        """The plain answer to `body`, from the JSON of a `chat.completion`."""
        ...

    def stream(self, body: Mapping[str, Any]) -> ChunkTranslator:
        """The streamed answer to `body`."""
        ...

    def error(self, status: int, error: bytes) -> bytes:
        """An error as servers of this route phrase it, from the OpenAI-shaped one; what is no such comes back."""
        ...

    def response_id(self, chat_id: str) -> str:
        """The id that the agent sees in the answer, from that of the chat."""
        ...


class Native:
    """A `Dialect` of a route that the engine serves in the same form: nothing is changed."""

    def __init__(self, route: str) -> None:
        self.route = route

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return body

    def answer(self, chat: bytes, body: Mapping[str, Any]) -> bytes:
        """As it is."""
        return chat

    def stream(self, body: Mapping[str, Any]) -> "Native":
        """This object passes chunks on as well."""
        return self

    def feed(self, events: bytes) -> bytes:
        """As they are."""
        return events

    def error(self, status: int, error: bytes) -> bytes:
        """As it is."""
        return error

    def response_id(self, chat_id: str) -> str:
        """As it is."""
        return chat_id


@dataclass(frozen=True, slots=True)
class Route:
    """A route whose calls are captured: what the agent speaks, and what the engine is asked by."""

    dialect: Dialect
    shape: Shape
