"""Settings of the role `runner`."""

from pydantic import Field, SecretStr

from ...infra.settings import RoleSettings


class RunnerSettings(RoleSettings):
    """LEYDEN_AGENT and the like."""

    agent: str = ""
    """The agent: MODULE:NAME or FILE.py:NAME of a function `agent(task, llm)`."""
    slots: int = Field(16, ge=1)
    """Rollouts that run at a time, one process each."""
    gateway_url: str = "http://127.0.0.1:8010"
    """Where the gateway listens, for the runner and for the agents."""
    api_key: SecretStr = SecretStr("leyden")
    """What agents get as OPENAI_API_KEY."""
    settle_timeout_s: float = 30.0
    """How long the gateway may take to say that an attempt's calls are in Kafka; past it, their number is unknown."""
    shutdown_grace_s: float = 20.0
    """On SIGTERM, how long running rollouts may go on; then they are cancelled and run again elsewhere."""
    max_redeliveries: int = 3
    """How often a rollout is begun again because its runner was lost; not counted as its own failures."""
    import_timeout_s: float = 120.0
    """How long importing the agent may take."""
