"""The reward: 1 where the final answer is right, else 0. Nothing for the way there."""

import re


def score(reply: str, answer: float) -> float:
    """1.0 if the reply is `Answer: N` and N is the answer."""
    said = re.fullmatch(r"\s*Answer: (-?\d+(?:\.\d+)?)\s*", reply)
    return float(said is not None and abs(float(said[1]) - answer) < 1e-6)
