"""Reading streamed answers."""

import json
from typing import Any

import httpx


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a stream that ended properly."""
    events = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]
