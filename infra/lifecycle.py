"""A role's loop in a thread, so that SIGTERM is answered also while the loop waits for somebody."""

import logging
import signal
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

# Below the 30 s that a role has to end: what still runs then (a download, a reload) is safe to abandon.
GRACE_S = 20.0
log = logging.getLogger("leyden.lifecycle")


def run_until_signal(loop: Callable[[Event], None]) -> None:
    """Run `loop(stop)`; SIGTERM and SIGINT set `stop`. An error of the loop is raised here, so the process ends."""
    stop, ended, errors = Event(), Event(), list[BaseException]()

    def run() -> None:
        try:
            loop(stop)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)
        finally:
            ended.set()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    Thread(target=run, name="loop", daemon=True).start()
    # A wait without a timeout would hold signals back until it ends.
    while not stop.is_set() and not ended.wait(0.2):
        pass
    if not ended.wait(GRACE_S):
        log.warning("the loop did not end within %.0f s and is abandoned", GRACE_S)
    if errors:
        raise errors[0]
