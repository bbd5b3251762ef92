"""The admitted groups of a step become trees, and every rollout of them gets its entry for the manifest."""

from collections.abc import Callable
from dataclasses import dataclass

from ..avro import Event, Member, graded
from ..infra.manifest import BatchEntry
from .advantage import ADVANTAGES, ema_baseline, moved
from .batch import Prepared, prepare
from .credit import CREDITS
from .episodes import UnusableError, episode_of
from .plan import Admitted, Dropped, Message
from .settings import LearnerSettings
from .trajectories import Found
from .tree import Tree
from .types import Episode


@dataclass(frozen=True, slots=True)
class Material:
    """What to train of one group, and the entries of its message."""

    trees: tuple[Tree, ...]
    entries: tuple[BatchEntry, ...]
    rewards: tuple[float, ...]  # of all graded members, trained or not
    reward_baseline: float | None  # for the next group of one
    faults: tuple[tuple[str, str], ...]  # (reason, detail) of members that something is broken of
    reshaped: tuple[tuple[str, ...], ...]  # of each call whose sampling cannot be reproduced: the parameters

    @property
    def n_rollouts(self) -> int:
        """Rollouts that are trained."""
        return sum(len(entry.rollouts) for entry in self.entries if entry.outcome == "trained")


class MaterialMaker:
    """Holds what does not change from step to step."""

    def __init__(self, settings: LearnerSettings, read_call: Callable[[bytes], Event]) -> None:
        self._settings, self._read_call = settings, read_call
        self._pack_tokens = settings.step_settings().pack_tokens
        self._credit, self._advantage = CREDITS[settings.credit], ADVANTAGES[settings.advantage]

    def make(self, group: Admitted, found: Found, reward_baseline: float | None) -> Material:
        """The material of one group, from its members' trajectories.

        `reward_baseline`: the moving average of the rewards of earlier groups of one, which such a group moves on.
        """
        episodes: list[Episode] = []
        used: list[Member] = []
        unused: dict[str, list[Member]] = {}
        faults: list[tuple[str, str]] = []
        reshaped: list[tuple[str, ...]] = []
        if group.left_out:
            unused[group.left_out_reason] = list(group.left_out)
        for member in group.members:
            try:
                episode = self._episode(member, found)
                reshaped += episode.reshaped
                if episode.reshaped and not episode.transitions:
                    raise UnusableError("sampling_not_reproducible")
                episodes.append(episode)
                used.append(member)
            except UnusableError as error:
                unused.setdefault(str(error), []).append(member)
                if error.fault is not None:
                    faults.append((str(error), error.fault))
        baseline = [member.reward for members in unused.values() for member in members if member.reward is not None]
        rewards = tuple([episode.reward for episode in episodes] + baseline)
        for member in group.message.batch.members:
            if member.reward is not None and not graded(member.status, member.reward):
                unused.setdefault(member.status, []).append(member)
        alone = group.message.batch.group_size == 1
        advantage = ema_baseline(reward_baseline) if alone else self._advantage
        prepared = Prepared((), 0, "empty")
        if episodes:
            prepared = prepare(episodes, baseline, self._credit, advantage, self._pack_tokens)
        if not prepared.trees:
            first = alone and reward_baseline is None
            unused.setdefault("no_baseline" if first else prepared.reason or "empty", []).extend(used)
            used = []
        for reward in rewards if alone else ():
            reward_baseline = moved(reward_baseline, reward)
        entries = _entries(group.message, used, unused)
        return Material(prepared.trees, entries, rewards, reward_baseline, tuple(faults), tuple(reshaped))

    def _episode(self, member: Member, found: Found) -> Episode:
        trajectory = found.get((member.partition, member.offset))
        if isinstance(trajectory, UnusableError):
            raise trajectory
        if trajectory is None or trajectory.rollout_id != member.rollout_id:
            raise UnusableError("gone")
        if member.reward is None:
            raise UnusableError("unrewarded")
        settings = self._settings
        return episode_of(trajectory, member.reward, self._read_call, settings.agents, settings.max_sequence_tokens)


def _entries(message: Message, used: list[Member], unused: dict[str, list[Member]]) -> tuple[BatchEntry, ...]:
    """One a fate, in one message that of the trained members last."""
    entries = [_entry(message, "dropped", reason, members) for reason, members in unused.items() if members]
    if used:
        entries.append(_entry(message, "trained", None, used))
    return tuple(entries)


def dropped_entry(dropped: Dropped) -> BatchEntry:
    """The entry of a message that is not trained at all."""
    return _entry(dropped.message, "dropped", dropped.reason, dropped.message.batch.members)


def void(entry: BatchEntry, reason: str) -> BatchEntry:
    """A trained entry after its step turned out void."""
    return BatchEntry(entry.offset, entry.group_id, entry.revision, "dropped", reason, entry.rollouts)


def _entry(message: Message, outcome: str, reason: str | None, members: list[Member]) -> BatchEntry:
    rollouts = [(m.rollout_id, m.attempt, m.revision) for m in members]
    return BatchEntry(message.offset, message.batch.group_id, message.batch.revision, outcome, reason, rollouts)
