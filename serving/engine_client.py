"""The reloader's view of its vLLM: which version it runs, and the call that changes it."""

from dataclasses import dataclass
from pathlib import Path

import httpx

from ..infra.errors import LeydenError
from ..infra.settings import EngineSettings
from .vllm_plugin.checkpoint_files import BadCheckpointError


class EngineUnavailableError(LeydenError):
    """vLLM does not answer, or answers what the reload route never would; the message says what."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What vLLM says of itself. `replica` changes with each start; version 0 is the model that it started with."""

    version: int
    loading: int | None
    replica: str


class EngineClient:
    """One vLLM with LeydenMiddleware. Not thread-safe."""

    def __init__(self, settings: EngineSettings, reload_timeout_s: float) -> None:
        token = settings.reload_token.get_secret_value()
        # Without a token the engine says why it refuses; an empty bearer would be no header at all.
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=settings.url, headers=headers, timeout=5.0, trust_env=False)
        self._reload_timeout_s = reload_timeout_s

    def state(self) -> EngineState:
        """Raises EngineUnavailableError."""
        answer = self._ask("GET", "/leyden/version", timeout=5.0)
        try:
            body = answer.json()
            return EngineState(int(body["version"]), body["loading"], str(body["replica"]))
        except (ValueError, KeyError, TypeError) as error:
            raise EngineUnavailableError(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}") from error

    def reload(self, version: int, folder: Path) -> tuple[float, float]:
        """Have it load `folder`; (seconds reading beside serving, seconds paused).

        Raises BadCheckpointError when it refuses the files, EngineUnavailableError for everything else.
        """
        request = {"version": version, "path": str(folder.resolve())}
        answer = self._ask("POST", "/leyden/reload", timeout=self._reload_timeout_s, json=request)
        if answer.status_code == 422:
            raise BadCheckpointError(str(answer.json().get("error")))
        if answer.status_code != 200:
            raise EngineUnavailableError(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}")
        body = answer.json()
        return body["stage_s"], body["pause_s"]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, method: str, path: str, timeout: float, json: object = None) -> httpx.Response:
        try:
            return self._client.request(method, path, timeout=timeout, json=json)
        except httpx.HTTPError as error:
            raise EngineUnavailableError(f"{self._client.base_url}{path}: {type(error).__name__}: {error}") from error
