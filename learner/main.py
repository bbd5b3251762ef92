"""Role `learner`: everything is made here; also one of the processes that `accelerate launch` starts.

`accelerate launch --multi_gpu --num_processes N -m leyden learner` is right without a GPU as well (gloo).
"""

import logging
from threading import Event

import torch

from ..infra import kafka, topics
from ..infra.checkpoint_log import CheckpointLog, CheckpointWriter
from ..infra.errors import SettingsError
from ..infra.lifecycle import run_until_signal
from ..infra.logs import setup_logging
from ..infra.objects import ObjectStore
from ..infra.ops_server import OpsServer
from ..infra.schema_exchange import learning_store
from .batches import BatchReader
from .calls import call_reader
from .material import MaterialMaker
from .metrics import LearnerMetrics
from .policy import Policy
from .processes import Crew, follow_orders, together
from .publisher import Publisher
from .settings import LearnerSettings
from .step import Stepper
from .trainer import Trainer
from .trajectories import TrajectoryReader

log = logging.getLogger("leyden.learner")


def main(settings: LearnerSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    setup_logging("learner")
    check(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    with together(cpu=not torch.cuda.is_available()) as processes:
        device = torch.device(processes.device or "cpu")
        if not processes.is_main_process:
            run_until_signal(lambda stop: follow_orders(_stepper(settings, device)[1], stop))
            return
        topics.require(kafka.admin(settings.kafka), settings.prefix, settings.kafka)
        run_until_signal(lambda stop: lead(settings, device, stop))


def check(settings: LearnerSettings) -> None:
    """Refuse settings that contradict each other. Raises SettingsError."""
    if settings.kl_coef > 0 and settings.lora is None:
        raise SettingsError("kl_coef needs lora: the reference is the model without its adapters")
    if settings.dual_clip <= 1 + settings.clip_high:
        raise SettingsError(f"dual_clip {settings.dual_clip} must be above 1 + clip_high, {1 + settings.clip_high}")
    if not settings.model.is_dir():
        raise SettingsError(f"model: no folder {settings.model}")


def _stepper(settings: LearnerSettings, device: torch.device) -> tuple[Policy, Stepper]:
    # Served as it is trained: of weights kept finer than they are served, the engine would not see the small updates.
    served = torch.bfloat16 if settings.computes_in_bf16() else torch.float32
    policy = Policy(settings.model, device, settings.adapters(), settings.gradient_checkpointing, served)
    return policy, Stepper(policy.model, policy.trainable(), settings.step_settings())


def lead(settings: LearnerSettings, device: torch.device, stop: Event) -> None:
    """Process 0: the one that reads batches and publishes."""
    metrics = LearnerMetrics()
    objects = ObjectStore(settings.objects)
    schemas = learning_store(objects)
    policy, stepper = _stepper(settings, device)
    checkpoints = CheckpointLog(settings, "learner")
    trajectories = TrajectoryReader(settings, objects, schemas)
    trainer = Trainer(
        settings,
        policy,
        Crew(stepper),
        checkpoints,
        Publisher(settings.policy, objects, CheckpointWriter(settings), stop),
        objects,
        trajectories,
        MaterialMaker(settings, call_reader(objects, schemas, stop)),
        lambda offset: BatchReader(settings, schemas, offset),
        metrics,
    )
    ops = OpsServer(
        settings.metrics_host,
        settings.metrics_port,
        ready=lambda: None if trainer.ready else "the newest checkpoint is not restored yet",
    )
    log.info("policy %s, %d processes, metrics on port %d", settings.policy, stepper.n_processes, ops.port)
    try:
        trainer.run(stop)
    finally:
        ops.close()
        checkpoints.close()
        trajectories.close()
