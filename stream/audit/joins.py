"""Which calls of an attempt are one call: retries joined by the contract, worked out apart from the assembler."""

from collections.abc import Iterable

from .facts import CallSeen


def chains(calls: Iterable[CallSeen]) -> list[list[CallSeen]]:
    """The calls as the agent meant them, each with its retries behind it.

    A call that says it is a retry joins the latest one before it with an equal digest and a lower count of retries that
    nothing has joined yet.
    """
    found: list[list[CallSeen]] = []
    for call in sorted(calls, key=lambda c: (c.started_us, c.call_id)):
        if call.retry_count > 0:
            earlier = next((chain for chain in reversed(found) if _retried(chain[-1], call)), None)
            if earlier is not None:
                earlier.append(call)
                continue
        found.append([call])
    return found


def _retried(earlier: CallSeen, call: CallSeen) -> bool:
    same = (earlier.digest, earlier.agent) == (call.digest, call.agent)
    return same and earlier.retry_count < call.retry_count


def speaks_for(chain: list[CallSeen]) -> CallSeen:
    """The one that trains: the last completed answer, or the last of all where none completed."""
    completed = [call for call in chain if call.status == "completed"]
    return completed[-1] if completed else chain[-1]
