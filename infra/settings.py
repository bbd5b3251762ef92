"""Settings that every role shares: one typed model, from a TOML file and LEYDEN_* environment variables."""

import difflib
import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from .errors import SettingsError


class Section(BaseModel):
    """A part of the settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class KafkaSettings(Section):
    """How both Kafka clients reach the cluster."""

    bootstrap: str = "127.0.0.1:9092"
    """host:port[,host:port]."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    sasl_username: str | None = None
    """User for SASL."""
    sasl_password: SecretStr | None = None
    """Password for SASL."""
    ssl_ca: Path | None = None
    """CA bundle; none: the system's."""
    ssl_certificate: Path | None = None
    """Client certificate for mutual TLS."""
    ssl_key: Path | None = None
    """Its key."""
    replication_factor: int = 1
    """Of the topics that `leyden topics --apply` creates; at 3 and more, min.insync.replicas is 2."""
    partitions: int = 12
    """Of events and trajectories, and so of the changelogs. Fixed for the life of a deployment."""


class ObjectSettings(Section):
    """The object store (MinIO, or anything that speaks S3 with conditional writes)."""

    endpoint: str = "127.0.0.1:9000"
    """host:port."""
    access_key: str = "leyden"
    """Access key."""
    secret_key: SecretStr = SecretStr("leyden-secret")
    """Secret key."""
    bucket: str = "leyden"
    """One bucket a deployment; created where it is missing."""
    secure: bool = False
    """https."""


class EngineSettings(Section):
    """The vLLM that serves the policy."""

    url: str = "http://127.0.0.1:8000"
    """Root of its HTTP server, without /v1."""
    model: str = "policy"
    """The name under which it serves the policy (--served-model-name)."""
    reload_token: SecretStr = SecretStr("")
    """Bearer token of its reload route; the engine process reads the same LEYDEN_ENGINE__RELOAD_TOKEN."""


class RoleSettings(BaseSettings):
    """What every role has. A role's own settings are a subclass beside the role."""

    model_config = SettingsConfigDict(
        env_prefix="LEYDEN_", env_nested_delimiter="__", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    prefix: str = "leyden."
    """Of all topics and consumer groups: several deployments share a cluster."""
    policy: str = "policy"
    """Name of the model being trained."""
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    """The cluster."""
    objects: ObjectSettings = Field(default_factory=ObjectSettings)
    """The object store."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """The engine."""
    metrics_host: str = "127.0.0.1"
    """Where /metrics, /healthz and /readyz listen."""
    metrics_port: int = 0
    """0: a free port, logged at start."""
    state_dir: Path = Path(".leyden")
    """What a role keeps on disk: spool, table files, downloaded checkpoints."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The environment outranks the file, whose content comes as init arguments. One environment serves many roles,
        # so a LEYDEN_* variable of another role is not an error; unknown keys in the file are.
        return EnvSettingsSource(settings_cls), init_settings

    @classmethod
    def load(cls, file: Path | None = None, **overrides: Any) -> Self:
        """From `file` (TOML) and the environment; `overrides` (command line) outrank both. Raises SettingsError."""
        values: dict[str, Any] = {}
        if file is not None:
            try:
                values = tomllib.loads(file.read_text())
            except (OSError, tomllib.TOMLDecodeError) as error:
                raise SettingsError(f"{file}: {error}") from error
        try:
            loaded = cls(**values)
            given = {k: v for k, v in overrides.items() if v is not None}
            return loaded.model_copy(update=given) if given else loaded
        except ValidationError as error:
            raise SettingsError(explain(cls, error, str(file) if file else "environment")) from error


def explain(model: type[BaseModel], error: ValidationError, where: str) -> str:
    """One line a mistake: where, which key, what is wrong, and the key that was probably meant."""
    lines = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        line = f"{where}: {'.'.join(path)}: {item['msg']}"
        if item["type"] == "extra_forbidden":
            line = f"{where}: unknown setting {'.'.join(path)}"
            close = difflib.get_close_matches(path[-1], _keys(model, path[:-1]), n=1)
            line += f"; did you mean {close[0]}?" if close else ""
        lines.append(line)
    return "\n".join(lines)


def _keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)
