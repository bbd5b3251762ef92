"""Settings of `leyden up`, and where its state lies for `down` and `status`."""

from pathlib import Path

from ..settings import RoleSettings
from .cache import Say
from .models import smollm2_model, tiny_model
from .services import EngineSpec


class UpSettings(RoleSettings):
    """Of `leyden up`. Services that run already are named by the settings that every role has."""

    model: str = "smollm2"
    """What vLLM serves and the learner trains: smollm2, tiny, or the folder of a model."""
    roles: tuple[str, ...] = ("gateway", "assemble", "group", "learner", "promoter", "reloader")
    """Roles that run; a runner is added where LEYDEN_AGENT names an agent."""
    agent: str = ""
    """The agent of the runners: MODULE:NAME or FILE.py:NAME."""
    runners: int = 1
    """Runner processes, where there is an agent."""
    kafka_port: int | None = None
    """Of the Kafka that is started; none: a free one."""
    minio_port: int | None = None
    """Of the MinIO that is started; none: a free one."""
    engine_port: int | None = None
    """Of the vLLM that is started; none: a free one."""
    gateway_port: int | None = None
    """Of the gateway; none: a free one."""
    engine_threads: int = 1
    """OMP threads of vLLM on a CPU."""
    engine_kv_cache_bytes: int = 1 << 30
    """Memory for keys and values."""

    def model_folder(self, say: Say) -> Path:
        """The model on disk; made where it is one of the two that Leyden makes. Raises FetchError."""
        known = {"smollm2": smollm2_model, "tiny": tiny_model}
        return known[self.model](say) if self.model in known else Path(self.model).resolve()

    def engine_spec(self, say: Say) -> EngineSpec:
        """How vLLM is started."""
        return EngineSpec(
            self.model_folder(say),
            served_name=self.engine.model,
            dtype="float32" if self.model == "tiny" else None,
            kv_cache_bytes=self.engine_kv_cache_bytes,
            threads=self.engine_threads,
            port=self.engine_port,
        )
