"""Continuous reinforcement learning for LLM agents, on Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .avro.errors import LeydenError
    from .producers.agents import rollout
    from .producers.emit import emit
    from .producers.llm import LLM
    from .producers.prompts import PromptTemplate
    from .producers.training.algorithm import LightningRL
    from .producers.training.results import FitResult, Progress, RolloutResult, StepResult
    from .producers.training.trainer import Trainer

# Imported when they are first used: `import leyden` costs an agent nothing.
_WHERE = {
    "LLM": ".producers.llm",
    "FitResult": ".producers.training.results",
    "LeydenError": ".avro.errors",
    "LightningRL": ".producers.training.algorithm",
    "Progress": ".producers.training.results",
    "PromptTemplate": ".producers.prompts",
    "RolloutResult": ".producers.training.results",
    "StepResult": ".producers.training.results",
    "Trainer": ".producers.training.trainer",
    "emit": ".producers.emit",
    "rollout": ".producers.agents",
}

__all__ = [
    "LLM",
    "FitResult",
    "LeydenError",
    "LightningRL",
    "Progress",
    "PromptTemplate",
    "RolloutResult",
    "StepResult",
    "Trainer",
    "emit",
    "rollout",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'leyden' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name], __name__), name)
    globals()[name] = value
    return value
