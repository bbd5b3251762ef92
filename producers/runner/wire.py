"""Messages between the runner and its agent host: JSON with a length in front, over a socket pair."""

import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

import orjson

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Start:
    """Run the agent once in a process of its own."""

    key: str
    task: Any
    env: dict[str, str]
    base_url: str
    api_key: str
    model: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End that process and all that it started."""

    key: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The agent is imported; `error` says why not."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of the agent ended."""

    key: str
    status: str  # succeeded | failed | timeout | cancelled
    value: float | None = None
    error: str | None = None


Message = Start | Kill | Ready | Outcome
_TYPES: dict[str, type[Message]] = {cls.__name__: cls for cls in (Start, Kill, Ready, Outcome)}


def pack(message: Message) -> bytes:
    """The bytes of one message."""
    body = orjson.dumps({"type": type(message).__name__, **asdict(message)})
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with `data`."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (n_bytes,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + n_bytes:
                break
            fields = orjson.loads(self._buffer[_LENGTH.size : _LENGTH.size + n_bytes])
            del self._buffer[: _LENGTH.size + n_bytes]
            messages.append(_TYPES[fields.pop("type")](**fields))
        return messages


def receive(connection: socket.socket, unpacker: Unpacker) -> list[Message] | None:
    """What one read gives; None at the end of the stream."""
    data = connection.recv(1 << 16)
    return unpacker.feed(data) if data else None
