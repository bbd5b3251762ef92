"""Which attempts say how well the policy did: what makes a batch, what is trained, what an audit expects."""

# `expired` ends production traffic, which nobody ends: an idle chat with a reward is graded by it.
_GRADED_STATUSES = frozenset({"succeeded", "expired"})


def graded(status: str, reward: float | None) -> bool:
    """True for a rewarded attempt that succeeded or expired. An infrastructure failure is never a bad answer."""
    return reward is not None and status in _GRADED_STATUSES
