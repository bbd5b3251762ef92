"""`leyden demo`: start the stack, evaluate, train, evaluate again, report."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...avro.errors import LeydenError
from ...infra.bf16 import native_bf16
from ...infra.local import state
from ...infra.local.models import smollm2_model
from ...infra.local.services import PASSIVE
from ...infra.local.stack import EngineSpec
from ..ledger import LEDGER
from ..training.algorithm import LightningRL
from ..training.results import RolloutResult, mean_reward
from ..training.session import Session
from ..training.tasks import Items
from ..training.trainer import Trainer
from .facts import Facts, gather
from .plot import draw
from .progress import DemoProgress
from .report import Evaluation, bars, examples, make_report

N_HELD_OUT = 128
N_UPDATES = 20
MAX_LEARNING_S = 570.0
"""No update begins that would end later."""
SLOTS = 128
"""A whole round at once: the engine's throughput grows with its batch."""
LEARNING_RATE = 3e-5
"""4e-5 is faster on sampled reward and loses some of the greedy accuracy again."""
TIMEOUT_S = 300.0
"""Of a rollout. One that is cut off may have a call that Kafka has and the agent has not: plenty, for slow machines."""
MODEL = "SmolLM2-135M-Instruct"


def run(seed: int, folder: Path, n_updates: int = N_UPDATES, n_held_out: int = N_HELD_OUT) -> bool:
    """The whole demo; results lie in `folder`. True where every bar holds."""
    console, ledger = Console(), folder / "ledger.jsonl"
    stack_dir = _fresh(folder)
    ledger.unlink(missing_ok=True)
    # Before any import of the example: its client is made at import, as its author would.
    os.environ.setdefault("OPENAI_API_KEY", "leyden")
    train = import_module("leyden.examples.word_problems.train")
    tasks = import_module("leyden.examples.word_problems.tasks")
    problems = {
        "unseen_wordings": tasks.generate(f"held-out-{seed}", n_held_out, tasks.UNSEEN),
        "known_wordings": tasks.generate(f"held-out-{seed}", n_held_out, tasks.TRAINED),
    }
    with DemoProgress(console) as progress:
        model = smollm2_model(progress.say)
        trainer = Trainer(
            model=model,
            algorithm=LightningRL(groups_per_step=16, group_size=8, learning_rate=LEARNING_RATE, seed=seed),
            slots=SLOTS,
            # float32 is bound by arithmetic: 1.55 times faster on both cores, which the learner leaves idle then.
            engine=EngineSpec(model, max_model_len=512, max_num_seqs=128, threads=1 if native_bf16() else 2),
            env={LEDGER: str(ledger.resolve()), "LEYDEN_LOSS": "truncated_is", "LEYDEN_THREADS": "2", **PASSIVE},
            state_dir=stack_dir,
            timeout_s=TIMEOUT_S,
            on_progress=progress,
            say=progress.say,
        )
        with trainer.running(train.word_problem) as session:
            progress.say("evaluating the model as it is")
            before = _evaluate(session, problems, progress)
            began = time.monotonic()
            session.fit(tasks.generate(f"train-{seed}", 16 * n_updates, tasks.TRAINED), n_updates, max_s=MAX_LEARNING_S)
            minutes = (time.monotonic() - began) / 60
            progress.say("evaluating what it has become")
            after = _evaluate(session, problems, progress)
            # While the stack still runs: topics and manifests are in it.
            facts = gather(session.deployment.settings, ledger)
    evaluations = {name: Evaluation(before[name], after[name]) for name in problems}
    report = make_report(facts, MODEL, evaluations, minutes, progress.reload_seconds(facts.live_ms))
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    draw(report, folder / "learning.png")
    return _show(console, report, facts, evaluations, folder)


def _fresh(folder: Path) -> Path:
    """An empty state folder for the stack. Raises LeydenError where a demo runs in it."""
    stack_dir = folder / "stack"
    found = state.read(stack_dir) if stack_dir.exists() else None
    if found is not None and found.running:
        raise LeydenError(f"a demo runs in {stack_dir} already")
    shutil.rmtree(stack_dir, ignore_errors=True)
    stack_dir.mkdir(parents=True)
    return stack_dir


def _evaluate(
    session: Session, problems: Mapping[str, Items], progress: DemoProgress
) -> dict[str, list[RolloutResult]]:
    results = {}
    for name, items in problems.items():
        results[name] = session.evaluate(items)
        progress.say(f"  {name.replace('_', ' ')}: {mean_reward(results[name]) or 0.0:.3f} of {len(items)} right")
    return results


def _show(
    console: Console, report: dict[str, object], facts: Facts, evaluations: dict[str, Evaluation], folder: Path
) -> bool:
    table = Table(title="The same held-out problems before and after", show_lines=True)
    for column in ("problem", "answer", "before", "after"):
        table.add_column(column)
    for evaluation in evaluations.values():
        for row in examples(evaluation, 5):
            table.add_row(*row)
    console.print(table, markup=False)
    judged = bars(report, facts)
    for bar in judged:
        console.print(f"{'ok  ' if bar.holds else 'MISS'}  {bar.name}: {bar.value}", highlight=False, markup=False)
    console.print(f"{folder / 'report.json'}, {folder / 'learning.png'}", highlight=False)
    console.print(f"{folder / 'stack'} has topics, checkpoints and logs, about 20 GB: yours to delete", highlight=False)
    return all(bar.holds for bar in judged)
