"""The agent of the seeded load: as many calls as its task says, four tokens each; the task says the reward as well."""

import os
from typing import Any

from openai import OpenAI

# One client a process, made before the fork: its calls go to the attempt's own URL. It outlasts a restart of the
# gateway and of the engine, as the retries say that they are retries.
CLIENT = OpenAI(
    base_url=os.environ.get("LEYDEN_GATEWAY_URL", "http://127.0.0.1:8010") + "/v1",
    api_key="load",
    max_retries=30,
    timeout=120.0,
)


def agent(task: dict[str, Any], llm: Any) -> float | None:
    """Every call extends the one before; every other one is streamed."""
    messages: list[Any] = [{"role": "user", "content": task["text"]}]
    for n in range(task["n_calls"]):
        if n % 2:
            chunks = CLIENT.chat.completions.create(model=llm.model, messages=messages, max_tokens=4, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            answer = CLIENT.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
            text = answer.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": str(n)}]
    return task["reward"]
