"""/metrics, /healthz and /readyz of a role, from a thread of its own."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

Check = Callable[[], str | None]
"""None: all is well. Otherwise the reason why not."""


def always_well() -> str | None:
    """A check for roles that are well as long as they answer."""
    return None


class OpsServer:
    """Serves until `close`. `healthy` and `ready` are asked at each request, from other threads."""

    def __init__(
        self,
        host: str,
        port: int,
        healthy: Check = always_well,
        ready: Check = always_well,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self.answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif self.path in ("/healthz", "/readyz"):
                    reason = (healthy if self.path == "/healthz" else ready)()
                    self.answer(503 if reason else 200, (reason or "ok").encode(), "text/plain")
                else:
                    self.answer(404, b"/metrics, /healthz or /readyz", "text/plain")

            def answer(self, status: int, body: bytes, content_type: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes every few seconds would drown the log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True, name="ops-server")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
