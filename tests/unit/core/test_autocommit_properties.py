"""Stores against a naive model: a log that really holds an offset, and the history of what happened."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, get_args

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tarry._core.autocommit import Commits, Store
from tarry.types import CommitMode, Offset, Position, TopicPartition
from tests.marks import rule as proves

PARTITION = TopicPartition("t", 0)
OFFSET = st.integers(min_value=0, max_value=15)
Fate = Literal["accepted", "refused", "lost", "lost but applied"]
FATE: st.SearchStrategy[Fate] = st.sampled_from(["accepted", "accepted", "refused", "lost", "lost but applied"])


@dataclass
class Run:
    """What happened since the consumer began, or since the last seek.

    `base`: the position at which it began, None for the very beginning of the consumer; `confirmed`: what the log said
    last. `answered`: a store made in this run was answered. `given`: all that the user stored himself. `queued`: the
    newest offset that the mode has queued.
    """

    base: int | None
    delivered: int | None = None
    finished: int | None = None
    answered: bool = False
    queued: int | None = None
    given: list[int] = field(default_factory=list[int])


class CommitsMachine(RuleBasedStateMachine):
    """One partition, one mode, one log; each store is accepted, refused, or lost with or without effect."""

    @initialize(mode=st.sampled_from(get_args(CommitMode)), held=st.none() | OFFSET, n=st.integers(1, 4))
    def begin(self, mode: CommitMode, held: int | None, n: int) -> None:
        self.commits = Commits(mode, n=n)
        self.mode = mode
        self.n = n
        self.held = held  # what the log holds
        self.confirmed = held
        self.floor = held
        self.in_doubt = False
        self.sought_from = held  # where the stored offset belonged before the last seek
        self.run = Run(None)
        self.next = 0
        self.commits.found(PARTITION, None if held is None else Offset(held))

    # ---- reading

    @rule(count=st.integers(1, 4), behind=st.integers(0, 2))
    def deliver(self, count: int, behind: int) -> None:
        """The next read: what was handed out before is finished by it. So many more are in the list."""
        if self.run.delivered is not None:
            self.finish()
        first, self.next = self.next, self.next + count
        last = self.run.delivered = self.next - 1
        queues = {
            "each_message": [last],
            "each_batch": [last] if not behind else [],
            "every_nth": [offset for offset in range(first, self.next) if offset % self.n == 0],
        }.get(self.mode, [])
        assert self.commits.handed_over(PARTITION, Offset(first), Offset(last), end=Offset(last + behind)) == bool(
            queues
        )
        self.queue(queues)
        self.commits.delivered(PARTITION, Offset(last))

    @rule(behind=st.integers(0, 2))
    def handler_returns(self, behind: int) -> None:
        """So many more messages were in the log when the one in hand was served."""
        if self.run.delivered is None:
            return
        self.finish()
        offset = self.run.delivered
        is_wanted = {"after_each": True, "after_nth": offset % self.n == 0, "after_head": not behind}.get(
            self.mode, False
        )
        assert self.commits.returned(PARTITION, Offset(offset), Offset(offset + behind)) == is_wanted
        self.queue([offset] if is_wanted else [])

    def queue(self, offsets: list[int]) -> None:
        if offsets:
            self.run.queued = max([*offsets, *([] if self.run.queued is None else [self.run.queued])])

    @rule()
    def finish(self) -> None:
        if self.run.delivered is not None:
            self.run.finished = self.run.delivered
            self.commits.finished(PARTITION, Offset(self.run.delivered))

    @precondition(lambda self: self.mode == "on_poll")
    @rule(count=st.integers(1, 4), fate=FATE)
    def fetch(self, count: int, fate: Fate) -> None:
        """The log commits what it serves; nothing of it is delivered yet."""
        last = self.next + count - 1
        if fate in {"accepted", "lost but applied"}:
            self.held = last if self.held is None else max(self.held, last)
        if fate == "accepted":
            self.confirmed = last if self.confirmed is None else max(self.confirmed, last)
            self.commits.took(PARTITION, Offset(last))
        elif fate != "refused":
            self.in_doubt = True
            self.commits.unsettled(PARTITION)

    @rule(position=OFFSET)
    def seek(self, position: int) -> None:
        self.sought_from = self.rest()
        self.commits.sought(PARTITION, Position(position))
        self.next = position
        self.run = Run(position)

    # ---- storing

    def apply(self, store: Store) -> None:
        """What the log does with a store."""
        if store.offset is None or self.held is None or store.lower or store.offset > self.held:
            self.held = store.offset

    def send(self, store: Store, fate: Fate) -> None:
        if fate in {"accepted", "lost but applied"}:
            self.apply(store)
        if fate == "accepted":
            self.confirmed, self.in_doubt, self.run.answered = self.held, False, True
            self.commits.accepted(store, None if self.held is None else Offset(self.held))
        elif fate != "refused":
            self.in_doubt = True
            self.commits.lost(store)

    @rule(offset=OFFSET, fate=FATE)
    def user_stores(self, offset: int, fate: Fate) -> None:
        before = self.held
        is_first_after_seek = self.run.base is not None and not self.run.answered
        is_needed = (
            self.confirmed is None or offset > self.confirmed or (is_first_after_seek and offset < self.confirmed)
        )
        store = self.commits.asked(PARTITION, Offset(offset))
        if store is None:
            assert not is_needed
            assert not self.in_doubt
            self.run.answered = True
            self.run.given.append(offset)
            return
        assert is_needed or self.in_doubt
        assert store.lower == is_first_after_seek
        marks = deepcopy(self.commits[PARTITION])
        self.send(store, fate)
        if fate == "refused":
            assert self.commits[PARTITION] == marks
        else:
            self.run.given.append(offset)
        if not is_first_after_seek:
            assert before is None or (self.held is not None and self.held >= before)

    @rule(fate=FATE)
    def user_deletes(self, fate: Fate) -> None:
        self.send(self.commits.deleted(PARTITION), fate)
        if fate == "accepted":
            assert self.held is None
            self.run.given = []
            self.run.queued = None
            self.floor = None
            self.run.base = 0 if self.run.base is not None else None

    @rule(fate=FATE)
    def period_is_over(self, fate: Fate) -> None:
        """The modes without a timer of their own may have an interval beside them."""
        mark = self.run.finished if self.mode == "finished" else self.run.delivered
        has_timer = self.mode not in {"disabled", "on_poll"}
        self.mode_stores(self.commits.due(PARTITION), mark if has_timer else None, fate)

    @rule(fate=FATE)
    def queue_is_worked_off(self, fate: Fate) -> None:
        self.mode_stores(self.commits.queued(PARTITION), self.run.queued, fate)

    def mode_stores(self, store: Store | None, mark: int | None, fate: Fate) -> None:
        """`mark`: what should be stored."""
        if store is None:
            is_sought = self.run.base is not None and not self.run.answered
            newest = None if mark is None else max([mark, *self.run.given])
            assert newest is None or not self.in_doubt
            assert newest is None or self.confirmed is not None
            assert newest is None or (self.confirmed or 0) >= newest
            assert not is_sought or newest is None or newest == self.confirmed
            return
        assert store.offset == max([mark if mark is not None else -1, *self.run.given])  # the newest alone
        before, is_first_after_seek = self.held, self.run.base is not None and not self.run.answered
        assert store.lower == is_first_after_seek
        self.send(store, fate)
        if not is_first_after_seek:
            assert before is None or (self.held is not None and self.held >= before)

    # ---- the end

    def rest(self) -> int | None:
        """Where the next consumer has to begin, minus one: behind all that is finished, and nothing else."""
        done = [offset for offset in (self.run.finished, *self.run.given) if offset is not None]
        if self.run.base is None:
            return max([*done, *([] if self.floor is None else [self.floor])], default=None)
        if not done and not self.run.answered:  # a mere seek
            return self.sought_from
        return max([*done, *([self.run.base - 1] if self.run.base else [])], default=None)

    @invariant()
    def the_end_would_leave_the_last_finished_offset(self) -> None:
        """Whenever it comes."""
        if not hasattr(self, "commits"):
            return
        commits, held = deepcopy(self.commits), self.held
        store = commits.final(PARTITION)
        if self.mode == "disabled":
            assert store is None
            return
        if store is not None:
            self.apply(store)
            commits.accepted(store, None if self.held is None else Offset(self.held))
        assert self.held == self.rest()
        self.held = held


@proves("I7", "C52", "C53")
def test_stored_offsets_follow_the_model() -> None:
    run_state_machine_as_test(CommitsMachine)
