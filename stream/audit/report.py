"""What an audit found: figures, what is pending and why, what was dropped and why, and the findings."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

MAX_EXAMPLES = 20


class Finding(StrEnum):
    """What must never be; the value is the name in the JSON report."""

    LEDGER_CALL_MISSING = "ledger_call_missing"
    CALL_COUNT_WRONG = "call_count_wrong"
    CALL_DOUBLED = "call_doubled"
    CALL_LOST = "call_lost"
    CALL_UNFOUNDED = "call_unfounded"
    TRAJECTORY_LOST = "trajectory_lost"
    TRAJECTORY_UNFOUNDED = "trajectory_unfounded"
    REVISION_DIFFERS = "revision_differs"
    REWARD_WRONG = "reward_wrong"
    BATCH_LOST = "batch_lost"
    BATCH_UNACCOUNTED = "batch_unaccounted"
    MEMBER_UNFOUNDED = "member_unfounded"
    MANIFEST_WRONG = "manifest_wrong"
    DROP_WITHOUT_REASON = "drop_without_reason"
    TRAINED_TWICE = "trained_twice"
    TRAINED_UNFOUNDED = "trained_unfounded"
    VALIDATION_TRAINED = "validation_trained"
    RANGE_BROKEN = "range_broken"


MEANING: dict[Finding, str] = {
    Finding.LEDGER_CALL_MISSING: "an agent received a response whole that is not in events",
    Finding.CALL_COUNT_WRONG: "events hold fewer calls of an attempt than the gateway had put there when it ended",
    Finding.CALL_DOUBLED: "one call is in events under two ids, or twice in trajectories",
    Finding.CALL_LOST: "a call in events is in no trajectory, although its attempt was assembled",
    Finding.CALL_UNFOUNDED: "a trajectory holds a call that is not in events",
    Finding.TRAJECTORY_LOST: "an attempt ended and the assembler read past it, but wrote no trajectory",
    Finding.TRAJECTORY_UNFOUNDED: "a trajectory of an attempt that has no events",
    Finding.REVISION_DIFFERS: "two records of one trajectory revision are not byte-equal",
    Finding.REWARD_WRONG: "the trajectory's reward is not what its rewards in events add up to",
    Finding.BATCH_LOST: "a group is whole and rewarded, but in no batch",
    Finding.BATCH_UNACCOUNTED: "a batch lies before what was consumed, but no version says what became of it",
    Finding.MEMBER_UNFOUNDED: "a batch names a trajectory that is not there",
    Finding.MANIFEST_WRONG: "a manifest names another batch at that offset than the topic holds",
    Finding.DROP_WITHOUT_REASON: "a version dropped a batch and does not say why",
    Finding.TRAINED_TWICE: "one lineage trained on a rollout more than once",
    Finding.TRAINED_UNFOUNDED: "a manifest names a rollout that is not in the batch it trained on",
    Finding.VALIDATION_TRAINED: "a validation rollout is in a manifest or a batch",
    Finding.RANGE_BROKEN: "a version did not begin at the offset where its lineage had ended",
}


@dataclass(slots=True)
class Report:
    """Counts add up over parts of the log, so that each part can be audited alone."""

    figures: Counter[str] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[Finding] = field(default_factory=Counter)
    examples: dict[Finding, list[str]] = field(default_factory=dict)

    def find(self, finding: Finding, where: str) -> None:
        """Count a finding; the first MAX_EXAMPLES of a kind are kept in words."""
        self.counts[finding] += 1
        kept = self.examples.setdefault(finding, [])
        if len(kept) < MAX_EXAMPLES:
            kept.append(where)

    def add(self, other: "Report") -> None:
        """Take over what another part found."""
        self.figures.update(other.figures)
        self.pending.update(other.pending)
        self.dropped.update(other.dropped)
        self.counts.update(other.counts)
        for finding, examples in other.examples.items():
            kept = self.examples.setdefault(finding, [])
            kept.extend(examples[: MAX_EXAMPLES - len(kept)])

    @property
    def clean(self) -> bool:
        """Nothing found. What is pending is no finding: it has not happened yet."""
        return not self.counts

    def settled(self, open_ok: Iterable[str] = ("open",)) -> bool:
        """Clean, and nothing pending but for these reasons."""
        return self.clean and not set(self.pending) - set(open_ok)

    def to_json(self) -> bytes:
        """One JSON object; keys are sorted."""
        body = {
            "clean": self.clean,
            "figures": dict(self.figures),
            "pending": dict(self.pending),
            "dropped": dict(self.dropped),
            "findings": {
                str(finding): {"count": n, "meaning": MEANING[finding], "examples": self.examples[finding]}
                for finding, n in self.counts.items()
            },
        }
        return orjson.dumps(body, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        for title, counts in (("", self.figures), ("pending: ", self.pending), ("dropped: ", self.dropped)):
            for name, n in sorted(counts.items()):
                yield f"{n:>10}  {title}{name.replace('_', ' ')}"
        for finding, n in sorted(self.counts.items()):
            yield f"{n:>10}  FINDING {finding}: {MEANING[finding]}"
            yield from (f"{'':>12}{example}" for example in self.examples[finding])
        yield "clean" if self.clean else f"{sum(self.counts.values())} findings"
