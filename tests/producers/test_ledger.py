"""The ledger has a line for each response received whole, plain and streamed, sync and async, and for nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the hooks change the libraries for good.
PROGRAM = """
import asyncio, sys
from importlib import import_module
from leyden.producers.http_hooks import wrap_clients
from leyden.producers.identity import Identity
from leyden.producers.ledger import Ledger

library = import_module(sys.argv[1])
wrap_clients(after=Ledger(sys.argv[2], Identity("r", 3, "")).after_send)

WHOLE = [b'data: {"id": "whole", "choi', b'ces": []}\\n\\n', b"data: [DO", b"NE]\\n\\n"]
CUT = [b'data: {"id": "cut", "choices": []}\\n\\n']

class Lines(library.SyncByteStream):
    def __init__(self, lines): self.lines = lines
    def __iter__(self): yield from self.lines

class LaterLines(library.AsyncByteStream):
    def __init__(self, lines): self.lines = lines
    async def __aiter__(self):
        for line in self.lines: yield line

def answer(kind):
    def handler(request):
        if request.url.path.endswith("/plain/chat/completions"):
            return library.Response(200, json={"id": "plain"})
        if request.url.path.endswith("/error/chat/completions"):
            return library.Response(500, json={"id": "error"})
        if request.url.path.endswith("/embeddings"):
            return library.Response(200, json={"id": "embedding"})
        return library.Response(200, stream=kind(CUT if "/cut/" in request.url.path else WHOLE))
    return handler

with library.Client(transport=library.MockTransport(answer(Lines))) as client:
    for path in ("plain/chat/completions", "error/chat/completions", "embeddings"):
        client.post("http://x/v1/" + path)
    for path in ("whole", "cut"):
        with client.stream("POST", f"http://x/v1/{path}/chat/completions") as response:
            list(response.iter_bytes())

async def later():
    async with library.AsyncClient(transport=library.MockTransport(answer(LaterLines))) as client:
        await client.post("http://x/v1/plain/chat/completions")
        for path in ("whole", "cut"):
            async with client.stream("POST", f"http://x/v1/{path}/chat/completions") as response:
                [chunk async for chunk in response.aiter_bytes()]

asyncio.run(later())
"""


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_line_for_each_response_received_whole(library: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, library, str(tmp_path / "ledger")], check=True)
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [line["response_id"] for line in lines] == ["plain", "whole", "plain", "whole"]
    assert {(line["rollout_id"], line["attempt"]) for line in lines} == {("r", 3)}
