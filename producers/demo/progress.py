"""The demo's progress bar: reward, step, version and what is left."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..training import results


class DemoProgress:
    """Shows `Trainer`'s progress; without a terminal a line an update. Remembers when each version was served."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            # A round alternates between two phases of different speed: an estimate over seconds would jump.
            speed_estimate_period=180.0,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, note="")
        self._kind, self._done = "", 0
        self.served_ms: dict[int, int] = {}

    def __enter__(self) -> "DemoProgress":
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def __call__(self, said: results.Progress) -> None:
        """What `Trainer(on_progress=…)` calls."""
        reward = "" if said.reward is None else f"reward {said.reward:.2f}  "
        if said.phase == "served":
            self.served_ms[said.version] = time.time_ns() // 1_000_000
            self.say(f"update {said.step:2d}/{said.n_steps}  {reward}version {said.version}")
        if said.phase == "unchanged":
            self.say(f"update {said.step:2d}/{said.n_steps}  {reward}every group did alike: nothing to train")
        # A bar of its own for an evaluation, one over all updates for training.
        kind = "validation" if said.phase == "validation" else "training"
        if kind != self._kind or (kind == "validation" and said.done < self._done):
            self._bar.reset(self._task)
        self._kind, self._done = kind, said.done
        if said.phase == "validation":
            self._bar.update(self._task, description="evaluating", total=said.total, completed=said.done, note=reward)
            return
        done = (said.step - 1) * said.total + said.done
        self._bar.update(
            self._task,
            description=f"step {said.step}/{said.n_steps} {said.phase}",
            total=said.n_steps * said.total,
            completed=done,
            note=f"{reward}version {said.version}",
        )

    def reload_seconds(self, live_ms: dict[int, int]) -> list[float]:
        """From the announcement of each version as live to its being served, in the order of versions."""
        return [(self.served_ms[v] - live_ms[v]) / 1000 for v in sorted(self.served_ms) if v in live_ms]
