"""Events of rollouts for the tests of the stream."""

import random
from dataclasses import dataclass

from leyden.avro import Event, LLMCall, Note, Reward, RolloutEnded, RolloutStarted, encode


def started(rollout: str, attempt: int = 1, **changes: object) -> Event:
    """The start of an attempt."""
    fields = {"claim_id": "c", "purpose": "train", "policy": "p", "group_id": f"g-{rollout}", "group_size": 1}
    fields |= {"task_digest": "d", "origin": "runner"} | changes
    return Event(f"{rollout}/{attempt}/start", rollout, attempt, 1000, RolloutStarted(**fields))  # pyright: ignore[reportArgumentType]


def called(rollout: str, n: int, attempt: int = 1, digest: bytes = b"", retry: int = 0, status: str = "completed",
           started_us: int | None = None, version: int = 3) -> Event:  # fmt: skip
    """Call `n` of an attempt."""
    call = LLMCall(
        call_id=f"call-{n}",
        started_us=n * 10 if started_us is None else started_us,
        request_digest=digest or n.to_bytes(8, "big"),
        retry_count=retry,
        status=status,
        agent=None,
        response_id=f"{rollout}-{attempt}-{n}",
        version_start=version,
        version_end=version,
        n_prompt_tokens=2,
        n_completion_tokens=n + 1,
        ended_us=n * 10 + 5,
        first_token_us=None,
        policy="p",
        model="p",
        route="/v1/chat/completions",
        stream=False,
        http_status=200,
        error=None,
        finish_reason="stop",
        temperature=1.0,
        top_p=1.0,
        max_tokens=None,
        prompt_ids=b"\0" * 8,
        completion_ids=b"\0" * 4 * (n + 1),
        logprobs=b"\0" * 4 * (n + 1),
        request=b"{}",
        response=b"{}",
    )
    return Event(f"{rollout}/{attempt}/call-{n}", rollout, attempt, 1000 + n, call)


def rewarded(rollout: str, value: float, key: str = "reward", ts_ms: int = 2000, attempt: int = 1, n: int = 0,
             call_id: str | None = None) -> Event:  # fmt: skip
    """A reward of an attempt, or of one of its calls."""
    return Event(f"{rollout}/{attempt}/reward-{key}-{n}", rollout, attempt, ts_ms, Reward(value, "test", key, call_id))


def noted(rollout: str, n: int, attempt: int = 1) -> Event:
    """A note of an attempt."""
    return Event(f"{rollout}/{attempt}/note-{n}", rollout, attempt, 1500 + n, Note("message", f"n{n}", b"{}"))


def ended(rollout: str, n_calls: int | None, attempt: int = 1, status: str = "succeeded", will_retry: bool = False,
          claim: str = "c") -> Event:  # fmt: skip
    """The end of an attempt."""
    body = RolloutEnded(claim, status, n_calls, will_retry)
    return Event(f"{rollout}/{attempt}/end-{claim}", rollout, attempt, 3000, body)


@dataclass(frozen=True)
class Shape:
    """How many of what."""

    n_rollouts: int = 4
    n_calls: int = 3
    n_rewards: int = 2
    late_share: float = 0.3
    retry_share: float = 0.3
    second_attempts: float = 0.3
    duplicates: float = 0.2
    group_size: int = 2


def random_log(seed: int, shape: Shape = Shape()) -> list[bytes]:
    """Rollouts interleaved, with retries, second attempts, duplicates and late rewards."""
    rng = random.Random(seed)
    threads = [_rollout(f"r{i}", f"g{i // shape.group_size}", rng, shape) for i in range(shape.n_rollouts)]
    log: list[bytes] = []
    while threads:
        thread = rng.choice(threads)
        log.append(encode(thread.pop(0)))
        if rng.random() < shape.duplicates:
            log.append(rng.choice(log))
        threads = [t for t in threads if t]
    return log


def _rollout(rollout: str, group: str, rng: random.Random, shape: Shape) -> list[Event]:
    events: list[Event] = []
    retried = rng.random() < shape.second_attempts
    for attempt in (1, 2) if retried else (1,):
        n_calls = rng.randrange(shape.n_calls + 1)
        calls = [called(rollout, n, attempt) for n in range(n_calls)]
        if n_calls and rng.random() < shape.retry_share:
            calls.append(called(rollout, n_calls, attempt, digest=(0).to_bytes(8, "big"), retry=1))
        rewards = [
            rewarded(rollout, rng.random(), f"k{rng.randrange(2)}", 2000 + rng.randrange(3), attempt, n)
            for n in range(rng.randrange(shape.n_rewards + 1))
        ]
        late = [r for r in rewards if rng.random() < shape.late_share]
        end = ended(rollout, len(calls), attempt, will_retry=retried and attempt == 1)
        middle = [*calls, *(r for r in rewards if r not in late), noted(rollout, 0, attempt)]
        rng.shuffle(middle)
        events += [started(rollout, attempt, group_id=group, group_size=shape.group_size), *middle, end, *late]
    return events
