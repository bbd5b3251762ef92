"""One group: from its trajectories, in any order, to a batch of references. No Kafka, no clock."""

import struct
from dataclasses import dataclass, field

from ..avro import GroupExpired, Member, TransitionBatch, decode, encode, graded
from .log_state import Item, Late

_KEPT = struct.Struct("<?qqI")


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the group needs of one trajectory."""

    member: Member
    final: bool
    purpose: str
    policy: str
    group_size: int
    task_digest: str


def usable(member: Member) -> bool:
    """Whether a member enters the group's statistics."""
    return graded(member.status, member.reward)


@dataclass(slots=True)
class Group:
    """The state of one group; implements log_state.State."""

    group_id: str
    timeout_ms: int
    min_group: int
    about: Arrival | None = None
    finals: dict[str, Member] = field(default_factory=dict)  # the newest final attempt and revision of each rollout
    expired: bool = False
    last_ms: int = 0
    last_offset: int = -1
    emitted: list[Member] = field(default_factory=list)  # members of the newest batch

    def add(self, item: Item) -> bool:
        """Take a trajectory or an expiry; False where it is void: not final, older than what is known, overtaken."""
        body = item.body
        if isinstance(body, GroupExpired):
            if self.last_offset > body.as_of_offset:
                return False
            self.expired = True
            return True
        assert isinstance(body, Arrival)
        if not self._newer(body):
            return False
        if self.about is None:
            self.about = body
        self.finals[body.member.rollout_id] = body.member
        self.last_ms = max(self.last_ms, item.ts_ms)
        self.last_offset = item.offset
        return True

    def _newer(self, arrival: Arrival) -> bool:
        known = self.finals.get(arrival.member.rollout_id)
        new = (arrival.member.attempt, arrival.member.revision)
        return arrival.final and (known is None or new > (known.attempt, known.revision))

    def complete(self) -> bool:
        """All rollouts are final and all succeeded ones are rewarded; or the deadline passed."""
        if self.about is None:
            return False
        whole = len(self.finals) >= self.about.group_size
        return self.expired or (whole and all(usable(m) or m.status != "succeeded" for m in self.finals.values()))

    def late(self, item: Item) -> Late:
        """After closing, what changes a member revises."""
        return Late.REVISE if isinstance(item.body, Arrival) and self._newer(item.body) else Late.IGNORE

    def deadline_ms(self) -> int:
        """Since the newest trajectory."""
        return self.last_ms + self.timeout_ms

    def expiry_reason(self) -> str:
        """Why the deadline is what it is."""
        return "idle"

    def members(self) -> list[Member]:
        """What a batch would hold now: final trajectories by rollout, without those still waiting for a reward."""
        return [m for _, m in sorted(self.finals.items()) if usable(m) or m.status != "succeeded"]

    def batch(self, revision: int) -> TransitionBatch | None:
        """The batch as it is now; None where too few members count or where it equals the one before."""
        members, about = self.members(), self.about
        if about is None or members == self.emitted:
            return None
        least = 1 if about.group_size == 1 else self.min_group
        if sum(usable(m) for m in members) < least:
            return None
        self.emitted = members
        return self._batch(about, members, revision)

    def _batch(self, about: Arrival, members: list[Member], revision: int) -> TransitionBatch:
        return TransitionBatch(
            policy=about.policy,
            group_id=self.group_id,
            revision=revision,
            supersedes=revision - 1 if revision > 0 else None,
            purpose=about.purpose,
            group_size=about.group_size,
            task_digest=about.task_digest,
            members=members,
        )

    def kept(self) -> bytes:
        """Finals and what was emitted: small, so nothing has to be read again."""
        assert self.about is not None
        finals = encode(self._batch(self.about, list(self.finals.values()), 0))
        emitted = encode(self._batch(self.about, self.emitted, 0)) if self.emitted else b""
        return _KEPT.pack(self.expired, self.last_ms, self.last_offset, len(finals)) + finals + emitted

    @classmethod
    def from_kept(cls, kept: bytes, timeout_ms: int, min_group: int) -> "Group":
        """Inverse of `kept`."""
        expired, last_ms, last_offset, n_finals = _KEPT.unpack_from(kept)
        end = _KEPT.size + n_finals
        finals = decode(kept[_KEPT.size : end], TransitionBatch)
        emitted = decode(kept[end:], TransitionBatch).members if len(kept) > end else []
        about = Arrival(finals.members[0], True, finals.purpose, finals.policy, finals.group_size, finals.task_digest)
        group = cls(finals.group_id, timeout_ms, min_group, about, expired=expired, emitted=emitted)
        group.finals = {m.rollout_id: m for m in finals.members}
        group.last_ms = last_ms
        group.last_offset = last_offset
        return group
