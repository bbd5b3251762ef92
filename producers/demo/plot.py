"""The demo's picture: sampled reward by update, greedy accuracy before and after."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(2, 1), layout="constrained")
    rewards = report["train_reward"]
    left.plot(range(1, len(rewards) + 1), rewards, marker="o", color="#1f6f8b")
    left.set(
        xlabel="update", ylabel="sampled reward", ylim=(0, 1), title=f"{report['model']}, {report['minutes']:.1f} min"
    )
    left.xaxis.get_major_locator().set_params(integer=True)
    left.grid(alpha=0.3)
    names = list(report["heldout"])
    for offset, when, color in ((-0.2, "before", "#bbbbbb"), (0.2, "after", "#1f6f8b")):
        heights = [report["heldout"][name][when] or 0.0 for name in names]
        drawn = right.bar([i + offset for i in range(len(names))], heights, 0.4, label=when, color=color)
        right.bar_label(drawn, fmt="%.2f", fontsize=8)
    right.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    right.set(ylim=(0, 1.1), title="held out, greedy")
    right.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
