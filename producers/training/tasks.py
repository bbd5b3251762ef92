"""Items of a dataset as records of the topic `tasks`."""

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ...avro import Task, new_id

Items = Sequence[Any]
"""A dataset: JSON values, one a task."""


def task_digest(payload: bytes) -> str:
    """blake2b-128 hex of the payload."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def group_of_tasks(
    item: Any,
    group_size: int,
    *,
    policy: str,
    purpose: str,
    timeout_s: float,
    max_attempts: int,
    temperature: float | None = None,
    resources: Mapping[str, str] | None = None,
) -> list[Task]:
    """`group_size` rollouts of one item, under one fresh group_id. Raises ValueError for what is no JSON."""
    try:
        payload = orjson.dumps(item, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise ValueError(f"a task is made of JSON values: {error}") from error
    group_id = new_id()
    return [
        Task(
            rollout_id=new_id(),
            group_id=group_id,
            group_size=group_size,
            policy=policy,
            purpose=purpose,
            task_digest=task_digest(payload),
            payload=payload,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
            temperature=temperature,
            resources=dict(resources or {}),
        )
        for _ in range(group_size)
    ]


def endless(items: Items, seed: int) -> Iterator[Any]:
    """The items in epochs, each in an order of its own that `seed` fixes. Raises ValueError for no items."""
    if not items:
        raise ValueError("there are no tasks to train on")
    for epoch in itertools.count():
        order = list(range(len(items)))
        random.Random(f"{seed}-{epoch}").shuffle(order)
        for index in order:
            yield items[index]
