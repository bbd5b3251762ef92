"""Settings of the roles that deliver checkpoints."""

from pathlib import Path

from ..infra.settings import RoleSettings


class ReloaderSettings(RoleSettings):
    """Of `leyden reloader`, one beside each vLLM."""

    cache_dir: Path | None = None
    """Downloaded checkpoints; one a reloader, which its vLLM reads by the same path. Default: state_dir/reloader."""
    keep_versions: int = 3
    """Downloaded checkpoints kept on disk, the live one included: a rollback then needs no download."""
    download_threads: int = 4
    """Objects read at a time."""
    engine_poll_s: float = 0.5
    """How often vLLM is asked which version it runs; it bounds how long a restarted one serves the base model."""
    reload_timeout_s: float = 300.0
    """How long vLLM may take over one reload."""
    backoff_s: float = 0.5
    """Pause after the first failed reload; doubled after each further one."""
    backoff_max_s: float = 30.0
    """The longest such pause."""


class GcSettings(RoleSettings):
    """Of `leyden gc`, and of the promoter, which collects after each promotion."""

    keep_serve: int = 20
    """Newest versions whose serve/ stays."""
    keep_resume: int = 2
    """Newest versions whose resume/ stays."""
    rollback_depth: int = 3
    """Parents of the live version that stay whole, as targets of a rollback."""


class PromoterSettings(GcSettings):
    """Of `leyden promoter`, one a policy."""

    collect: bool = True
    """Remove what no rule keeps after each promotion."""
    retry_s: float = 1.0
    """Pause before a gate that could not be asked (object store away) is asked again."""
