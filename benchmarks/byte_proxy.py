"""A proxy that only copies bytes, on aiohttp and uvloop: PORT UPSTREAM_URL. What a usual Python proxy spends."""

import asyncio
import sys
from typing import Any

import aiohttp
import uvloop
from aiohttp import web


async def serve(port: int, upstream: str) -> None:
    """Until killed."""
    loop = asyncio.get_running_loop()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"content-type": "application/json"},
        skip_auto_headers=("user-agent", "accept-encoding"),
    )

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        async with session.post(upstream + request.path, data=await request.read()) as answer:
            if answer.content_type != "text/event-stream":
                return web.Response(body=await answer.read(), content_type=answer.content_type)
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop)

    runner = web.ServerRunner(web.Server(handle, request_factory=make, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
