"""Several processes of one learner: process 0 decides and talks to the outside, the others train as it says."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from threading import Event
from typing import Any

import torch.distributed as dist
from accelerate import PartialState

from .step import Stepper, StepResult
from .tree import Tree

# Well below GIVE_UP.
IDLE_EVERY_S = 10.0
# Others wait in a collective operation while process 0 uploads; it says that it is idle more often than this.
GIVE_UP = timedelta(minutes=30)


@contextmanager
def together(cpu: bool) -> Iterator[PartialState]:
    """The processes that were started with this one, left again at the end.

    Left before Python ends: gloo's threads hold tensors, and freeing those while the interpreter goes down aborts it.
    """
    state = PartialState(cpu=cpu, timeout=GIVE_UP)
    try:
        yield state
    finally:
        state.destroy_process_group()


class Order(Enum):
    """What process 0 tells the others."""

    TRAIN = "train"  # with the trees of the step
    SYNCHRONISE = "synchronise"  # take over its parameters and optimizer
    IDLE = "idle"
    STOP = "stop"


class Crew:
    """Process 0's side. With a single process it just trains."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._several = stepper.n_processes > 1
        self._last_order = time.monotonic()

    def train(self, trees: Sequence[Tree]) -> StepResult:
        """One step over all processes."""
        self._order(Order.TRAIN, list(trees))
        return self.stepper.step(trees)

    def synchronise(self) -> None:
        """After the parameters here were set from outside."""
        self._order(Order.SYNCHRONISE)
        self.stepper.synchronise()

    def idle(self) -> None:
        """Call while waiting, as often as you like: keeps the others from giving up."""
        if time.monotonic() - self._last_order > IDLE_EVERY_S:
            self._order(Order.IDLE)

    def stop(self) -> None:
        """Let the others go."""
        self._order(Order.STOP)

    def _order(self, order: Order, trees: list[Tree] | None = None) -> None:
        self._last_order = time.monotonic()
        if self._several:
            dist.broadcast_object_list([order, trees], src=0)


def follow_orders(stepper: Stepper, stop: Event) -> None:
    """The loop of every process but 0, until it is told to stop or process 0 is gone."""
    while not stop.is_set():
        received: list[Any] = [None, None]
        dist.broadcast_object_list(received, src=0)
        order, trees = received
        if order is Order.STOP:
            return
        if order is Order.TRAIN:
            stepper.step(trees)
        elif order is Order.SYNCHRONISE:
            stepper.synchronise()
