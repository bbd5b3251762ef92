"""LLM: what a rollout's agent gets to reach the model that is being trained."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


@dataclass(frozen=True, slots=True)
class LLM:
    """An OpenAI-compatible endpoint that belongs to one attempt of one rollout.

    The process's OPENAI_BASE_URL and OPENAI_API_KEY say the same, so agents that make their own client need none of it.
    """

    base_url: str
    api_key: str
    model: str

    def client(self) -> "OpenAI":
        """An `openai` client for this endpoint."""
        from openai import OpenAI

        return OpenAI(base_url=self.base_url, api_key=self.api_key)

    def async_client(self) -> "AsyncOpenAI":
        """An asynchronous `openai` client for this endpoint."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key)
