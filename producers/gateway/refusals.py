"""Errors as an OpenAI server would phrase them."""

import orjson

from ...infra.errors import LeydenError


class RefusedError(LeydenError):
    """A request that is answered with an OpenAI-shaped error; `retry_after_s` asks the client to come again."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, param, code)
        self.headers = {"retry-after": str(retry_after_s)} if retry_after_s else {}
        if status == 410:
            # The official clients honour this one; 410 itself is retried by some proxies.
            self.headers["x-should-retry"] = "false"


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """{"error": {message, type, param, code}} as JSON."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(message: str, code: str) -> bytes:
    """The same as one server-sent event; the official clients raise on it in the middle of a stream."""
    return b"data: " + error_body(500, message, code=code) + b"\n\n"
