"""Which rollout this process works for: the environment says it, so that threads and subprocesses know."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..avro.errors import LeydenError

ROLLOUT, ATTEMPT, GATEWAY, API_KEY = "LEYDEN_ROLLOUT", "LEYDEN_ATTEMPT", "LEYDEN_GATEWAY_URL", "LEYDEN_API_KEY"
RESOURCES = "LEYDEN_RESOURCES"


class NoRolloutError(LeydenError):
    """A call that belongs to a rollout was made outside of one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One attempt of one rollout, and the gateway that it talks to."""

    rollout_id: str
    attempt: int
    gateway_url: str
    api_key: str = ""

    def environment(self) -> dict[str, str]:
        """The variables that tell a process its identity."""
        return {
            ROLLOUT: self.rollout_id,
            ATTEMPT: str(self.attempt),
            GATEWAY: self.gateway_url,
            API_KEY: self.api_key,
        }


def current(environ: Mapping[str, str] = os.environ) -> Identity | None:
    """The identity of this process; None outside of a rollout."""
    if not environ.get(ROLLOUT):
        return None
    return Identity(
        environ[ROLLOUT], int(environ.get(ATTEMPT, "1")), environ.get(GATEWAY, ""), environ.get(API_KEY, "")
    )


def rollout_base_url(gateway_url: str, rollout_id: str, attempt: int, temperature: float | None = None) -> str:
    """The OpenAI base URL of one attempt; `temperature` is put into every call of it by the gateway."""
    override = "" if temperature is None else f"/set/temperature={temperature:g}"
    return f"{gateway_url.rstrip('/')}/rollout/{rollout_id}/attempt/{attempt}{override}/v1"
