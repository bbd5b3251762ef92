"""The command line: one command a role, one a task of an operator; roles are imported when they are called."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .avro.errors import LeydenError

if TYPE_CHECKING:
    from .infra.settings import RoleSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
Config = Annotated[Path | None, typer.Option("--config", help="TOML file; LEYDEN_* variables outrank it.")]
MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", help="Port of /metrics, /healthz, /readyz; 0: a free one.")
]


def _load(model: "type[RoleSettings]", config: Path | None, **overrides: Any) -> Any:
    return model.load(config, **overrides)


@app.command()
def gateway(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Serve the OpenAI-compatible API and capture every call."""
    from .producers.gateway.app import main as run
    from .producers.gateway.settings import GatewaySettings

    run(_load(GatewaySettings, config, metrics_port=metrics_port))


@app.command()
def runner(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Take tasks and run the agent on them, one forked process a rollout."""
    from .producers.runner.app import main as run
    from .producers.runner.settings import RunnerSettings

    run(_load(RunnerSettings, config, metrics_port=metrics_port))


@app.command()
def assemble(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Put the events of a rollout together: events to trajectories."""
    from .stream.app import assemble as run
    from .stream.settings import StreamSettings

    run(_load(StreamSettings, config, metrics_port=metrics_port))


@app.command()
def group(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Put the trajectories of a group together: trajectories to batches."""
    from .stream.app import group as run
    from .stream.settings import StreamSettings

    run(_load(StreamSettings, config, metrics_port=metrics_port))


@app.command()
def learner(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Train on batches and publish checkpoints."""
    from .learner.main import main as run
    from .learner.settings import LearnerSettings

    run(_load(LearnerSettings, config, metrics_port=metrics_port))


@app.command()
def reloader(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Stand beside one vLLM and load the live checkpoint into it."""
    from .serving.reloader import main as run
    from .serving.settings import ReloaderSettings

    run(_load(ReloaderSettings, config, metrics_port=metrics_port))


@app.command()
def promoter(config: Config = None, metrics_port: MetricsPort = None) -> None:
    """Make candidates live that pass their gates."""
    from .serving.promoter import main as run
    from .serving.settings import PromoterSettings

    run(_load(PromoterSettings, config, metrics_port=metrics_port))


@app.command()
def up(config: Config = None) -> None:
    """Start Kafka, MinIO, vLLM and all roles on this machine, and keep them running until Ctrl-C."""
    from .infra.local.settings import UpSettings
    from .infra.local.up import up as run

    run(_load(UpSettings, config))


@app.command()
def down(config: Config = None) -> None:
    """End the stack on this machine, also one whose `leyden up` was killed."""
    from .infra.local.up import down as run
    from .infra.settings import RoleSettings

    run(_load(RoleSettings, config).state_dir)


@app.command()
def status(config: Config = None) -> None:
    """Show health, versions and lag of the stack on this machine; exit code 1 where something is not ready."""
    from .infra.local.status import status as run
    from .infra.settings import RoleSettings

    raise typer.Exit(0 if run(_load(RoleSettings, config).state_dir, typer.echo) else 1)


@app.command()
def env(config: Config = None) -> None:
    """Print the stack's LEYDEN_* variables as shell commands: eval "$(leyden env)". They hold credentials."""
    from .infra.local.state import exports
    from .infra.settings import RoleSettings

    typer.echo(exports(_load(RoleSettings, config).state_dir))


@app.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="java, kafka, minio, tiny, smollm2; none: all but smollm2.")
    ] = None,
) -> None:
    """Fetch or build what the local stack needs, once, into the cache."""
    from .infra.local.fetch import fetch as run

    run(names or ())


@app.command()
def doctor(config: Config = None) -> None:
    """Check what this machine has of what the stack needs; exit code 1 where something is missing."""
    from .infra.local.doctor import doctor as run
    from .infra.settings import RoleSettings

    raise typer.Exit(0 if run(_load(RoleSettings, config).state_dir, typer.echo) else 1)


@app.command()
def topics(
    config: Config = None,
    apply: Annotated[bool, typer.Option("--apply", help="Create what is missing.")] = False,
) -> None:
    """Check the deployment's topics, or create them with the bucket and the schemas."""
    from .infra import deployment
    from .infra.settings import RoleSettings

    settings = _load(RoleSettings, config)
    if apply:
        for name in deployment.apply(settings):
            typer.echo(f"created {name}")
    problems = deployment.check(settings)
    for line in problems:
        typer.echo(line, err=True)
    raise typer.Exit(1 if problems else 0)


@app.command()
def rollback(
    policy: Annotated[str, typer.Argument(help="Name of the model.")],
    version: Annotated[int | None, typer.Argument(help="Version to go back to; default: the parent of live.")] = None,
    config: Config = None,
) -> None:
    """Abandon what came after a version and make that version live again."""
    from .infra.settings import RoleSettings
    from .serving.rollback import main as run

    done = run(_load(RoleSettings, config, policy=policy), version)
    gone = ", ".join(str(record.version) for record in done.abandoned) or "none"
    typer.echo(f"{policy}: version {done.target.version} is live; abandoned: {gone}")


@app.command()
def gc(
    config: Config = None, dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False
) -> None:
    """Remove the files of checkpoints that nobody needs again; manifests stay."""
    from .serving.gc import main as run
    from .serving.settings import GcSettings

    for part in run(_load(GcSettings, config), dry_run):
        typer.echo(
            f"{'would remove' if dry_run else 'removed'} {part.name} of version {part.version}, run {part.run_id}"
        )


@app.command()
def lineage(
    rollout: Annotated[
        str | None, typer.Option("--rollout", help="Only versions that trained on this rollout.")
    ] = None,
    config: Config = None,
) -> None:
    """List the versions: parents, state, what each was trained on and what it dropped."""
    from .infra.settings import RoleSettings
    from .serving.lineage_report import lines
    from .serving.lineage_report import main as run

    for line in lines(run(_load(RoleSettings, config), rollout)):
        typer.echo(line)


@app.command()
def audit(
    ledger: Annotated[
        list[Path] | None, typer.Option("--ledger", help="What agents received; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    grace_s: Annotated[float, typer.Option(help="What is younger than this may be under way.")] = 60.0,
    settled: Annotated[bool, typer.Option("--settled", help="Nothing runs: what is pending is a finding too.")] = False,
    config: Config = None,
) -> None:
    """Hold ledgers, topics and manifests against each other; exit code 1 on a finding."""
    from .infra.settings import RoleSettings
    from .stream.audit.main import run

    report = run(_load(RoleSettings, config), ledger or (), grace_s)
    typer.echo(report.to_json().decode() if as_json else "\n".join(report.lines()))
    raise typer.Exit(0 if (report.settled() if settled else report.clean) else 1)


@app.command()
def dead_letters(
    resend: Annotated[list[int] | None, typer.Option("--resend", help="Send this letter's record again.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only letters for this reason.")] = None,
    role: Annotated[str | None, typer.Option("--role", help="Only letters of this role.")] = None,
    config: Config = None,
) -> None:
    """List the records that could not be processed, or send some of them to their topic again."""
    from .infra.settings import RoleSettings
    from .stream import dead_letters as letters

    settings = _load(RoleSettings, config)
    rows = letters.resend(settings, resend) if resend else letters.read(settings, reason, role)
    for line in letters.lines(rows):
        typer.echo(line)


@app.command()
def config(
    role: Annotated[str, typer.Argument(help="gateway, runner, stream, learner, reloader or promoter.")],
    config: Config = None,
) -> None:
    """Print the resolved settings of a role as JSON; secrets are masked."""
    from importlib import import_module

    where = {
        "gateway": (".producers.gateway.settings", "GatewaySettings"),
        "runner": (".producers.runner.settings", "RunnerSettings"),
        "stream": (".stream.settings", "StreamSettings"),
        "learner": (".learner.settings", "LearnerSettings"),
        "reloader": (".serving.settings", "ReloaderSettings"),
        "promoter": (".serving.settings", "PromoterSettings"),
    }
    if role not in where:
        raise LeydenError(f"no role {role!r}; one of {', '.join(where)}")
    module, name = where[role]
    typer.echo(_load(getattr(import_module(module, __package__), name), config).model_dump_json(indent=2))


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Of the problems and of the learner.")] = 0,
    updates: Annotated[
        int | None, typer.Option(help="Updates at most; default: as many as the bars were set for.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where report, plot, logs and data go.")] = Path(".leyden/demo"),
) -> None:
    """Let a small model learn to use a calculator on this machine; exit code 1 where a bar is missed."""
    from .producers.demo.main import N_UPDATES
    from .producers.demo.main import run as play

    raise typer.Exit(0 if play(seed, folder, updates or N_UPDATES) else 1)


def main() -> None:
    """Run the command; errors that Leyden raises on purpose are one message and exit code 2."""
    try:
        app()
    except LeydenError as error:
        typer.echo(f"leyden: {error}", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
