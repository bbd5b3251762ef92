"""Two optimisation steps on fixed groups, by as many processes as were started; process 0 saves what came of them."""

import sys
from pathlib import Path
from threading import Event

import numpy as np
import torch
from leyden.learner.policy import Policy
from leyden.learner.processes import Crew, follow_orders, together
from leyden.learner.step import Stepper, StepSettings
from leyden.learner.tree import Tree, build_trees
from leyden.learner.types import Sequence
from safetensors.torch import save_file


def trees(seed: int) -> list[Tree]:
    """Groups of different sizes, so that the processes get packs of different sizes."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(3):
        prompt = rng.integers(3, 250, 20)
        group = []
        for _ in range(4):
            ids = np.concatenate([prompt, rng.integers(3, 250, rng.integers(4, 20))]).astype(np.int32)
            trained = np.arange(len(ids)) >= len(prompt)
            advantages = np.where(trained, rng.normal(), 0).astype(np.float32)
            ones = np.ones(len(ids), np.float32)
            group.append(Sequence(ids, trained, np.where(trained, -5.5, 0).astype(np.float32), advantages, ones))
        found += build_trees(group, 100)
    return found


def make_stepper(model: Path) -> Stepper:
    """In fp32, in packs so small that there are several."""
    policy = Policy(model, torch.device("cpu"), None, gradient_checkpointing=False)
    settings = StepSettings(learning_rate=1e-3, pack_tokens=100, autocast=False, max_grad_norm=1.0)
    return Stepper(policy.model, policy.trainable(), settings)


def train(stepper: Stepper) -> dict[str, torch.Tensor]:
    """Two steps, told to the other processes; figures and weights of this one."""
    crew = Crew(stepper)
    crew.synchronise()
    metrics = [crew.train(trees(seed)).metrics for seed in (1, 2)]
    crew.stop()
    figures = torch.tensor([[m["loss"], m["grad_norm"], m["forward_tokens"]] for m in metrics])
    return {"figures": figures} | {name: p.detach().clone() for name, p in stepper.parameters.items()}


def run(model: Path, out: Path) -> None:
    """The others start with other weights: they must take over those of process 0."""
    torch.set_num_threads(1)
    with together(cpu=True) as state:
        stepper = make_stepper(model)
        if state.is_main_process:
            save_file({"n_processes": torch.tensor(state.num_processes)} | train(stepper), out)
            return
        for parameter in stepper.parameters.values():
            parameter.data.zero_()
        follow_orders(stepper, Event())


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
