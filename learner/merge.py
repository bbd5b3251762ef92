"""Calls of one episode become sequences: a call that goes on exactly where another ended continues its sequence."""

import numpy as np

from .sampling import reported_at
from .types import Sequence, Transition


def single(transition: Transition, advantage: float) -> Sequence:
    """One call as a sequence of its own: prompt without loss, then the completion."""
    n_prompt, n = len(transition.prompt_ids), len(transition.completion_ids)

    def behind(prompt_fill: float, values: np.ndarray | float, dtype: type) -> np.ndarray:
        out = np.full(n_prompt + n, prompt_fill, dtype)
        out[n_prompt:] = values
        return out

    return Sequence(
        ids=np.concatenate([transition.prompt_ids, transition.completion_ids]).astype(np.int32),
        trained=behind(0, True, bool),
        logprobs=behind(0.0, transition.logprobs, np.float32),
        advantages=behind(0.0, advantage, np.float32),
        temperatures=behind(1.0, reported_at(transition.temperature), np.float32),
    )


def extends(before: Sequence, after: Sequence) -> bool:
    """True where the prompt of `after` begins with all of `before`. What lies between is observation."""
    n = len(before.ids)
    n_prompt = int(after.trained.argmax())
    return n_prompt >= n and bool((after.ids[:n] == before.ids).all())


def _continued(before: Sequence, after: Sequence) -> Sequence:
    n = len(before.ids)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(before, name), getattr(after, name)[n:]])

    return Sequence(after.ids, joined("trained"), joined("logprobs"), joined("advantages"), joined("temperatures"))


def merge(transitions: tuple[Transition, ...], advantages: list[float]) -> list[Sequence]:
    """Sequences of an episode. The same maths as one sequence a call, with fewer tokens; never realigned.

    Calls without completion tokens carry no loss and are left out. With several agents in one episode their calls may
    interleave: each continues the longest open sequence that it extends.
    """
    done: list[Sequence] = []
    for transition, advantage in zip(transitions, advantages, strict=True):
        if not len(transition.completion_ids):
            continue
        new = single(transition, advantage)
        fits = [i for i, before in enumerate(done) if extends(before, new)]
        if not fits:
            done.append(new)
            continue
        longest = max(fits, key=lambda i: len(done[i].ids))
        done[longest] = _continued(done[longest], new)
    return done
