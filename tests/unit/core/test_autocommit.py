"""Which offset is stored: by the user, by the modes while running, at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry._core.autocommit import Commits, Store
from tarry.types import CommitMode, Offset, Position, TopicPartition
from tests.marks import rule

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
AUTOMATIC: list[CommitMode] = ["finished", "interval"]
QUEUING: list[CommitMode] = ["each_message", "each_batch", "every_nth", "after_each", "after_nth", "after_head"]


def commits(mode: CommitMode = "disabled", *, stored: int | None = None, n: int | None = None) -> Commits:
    machine = Commits(mode, n=n)
    machine.found(P0, None if stored is None else Offset(stored))
    return machine


def deliver(machine: Commits, last: int, *, finished: int | None = None) -> None:
    """Hand over everything up to `last`; what is finished trails by one unless said otherwise."""
    machine.delivered(P0, Offset(last))
    done = last - 1 if finished is None else finished
    if done >= 0:
        machine.finished(P0, Offset(done))


def send(machine: Commits, store: Store | None) -> tuple[int | None, bool] | None:
    """Carry a store out as a log does; what was sent: offset, and whether it may lower."""
    if store is None:
        return None
    held = machine[store.partition].stored
    down = store.offset is None or held is None or store.lower or store.offset > held
    machine.accepted(store, store.offset if down else held)
    return store.offset, store.lower


class TestWhatTheUserStores:
    @rule("C52", "K85")
    def test_lower_and_equal_offsets_are_not_even_sent(self) -> None:
        machine = commits()
        assert send(machine, machine.asked(P0, Offset(9))) == (9, False)
        assert machine.asked(P0, Offset(4)) is None
        assert machine.asked(P0, Offset(7)) is None
        assert machine.asked(P0, Offset(9)) is None
        assert machine[P0].stored == 9

    @rule("C52")
    def test_offset_0_is_an_offset_like_any_other(self) -> None:
        machine = commits()
        assert send(machine, machine.asked(P0, Offset(0))) == (0, False)
        assert machine.asked(P0, Offset(0)) is None

    @rule("C52")
    def test_after_a_seek_the_first_store_may_go_down_and_only_that_one(self) -> None:
        machine = commits(stored=9)
        machine.sought(P0, Position(2))
        assert send(machine, machine.asked(P0, Offset(5))) == (5, True)
        assert machine.asked(P0, Offset(3)) is None
        assert machine[P0].stored == 5

    @rule("C52")
    def test_a_store_that_was_made_before_the_seek_does_not_use_it_up(self) -> None:
        machine = commits(stored=3)
        before = machine.asked(P0, Offset(9))
        assert before is not None
        machine.sought(P0, Position(2))
        machine.accepted(before, Offset(9))
        assert send(machine, machine.asked(P0, Offset(2))) == (2, True)

    @rule("C53")
    def test_a_refused_store_changes_nothing(self) -> None:
        machine = commits(stored=3)
        assert machine.asked(P0, Offset(9)) is not None  # sent, and refused
        assert machine[P0].stored == 3
        assert machine[P0].explicit is None
        assert machine.asked(P0, Offset(5)) is not None

    def test_after_a_lost_answer_every_store_is_sent(self) -> None:
        machine = commits(stored=3)
        lost = machine.asked(P0, Offset(9))
        assert lost is not None
        machine.lost(lost)
        again = machine.asked(P0, Offset(2))
        assert again is not None
        machine.accepted(again, Offset(9))  # what the log answers is what counts
        assert machine.asked(P0, Offset(2)) is None

    @rule("C55")
    def test_delete_forgets_what_was_stored(self) -> None:
        machine = commits(stored=3)
        send(machine, machine.asked(P0, Offset(9)))
        assert send(machine, machine.deleted(P0)) == (None, True)
        assert machine[P0].stored is None
        assert send(machine, machine.asked(P0, Offset(1))) == (1, False)


class TestWhatTheModesStore:
    @rule("C40", "K43")
    def test_disabled_stores_nothing_by_itself(self) -> None:
        machine = commits("disabled", stored=3)
        deliver(machine, 20)
        send(machine, machine.asked(P0, Offset(4)))
        assert machine.due(P0) is None
        assert machine.final(P0) is None

    @rule("C41")
    def test_interval_stores_what_was_delivered(self) -> None:
        machine = commits("interval")
        assert machine.due(P0) is None
        deliver(machine, 7)
        assert send(machine, machine.due(P0)) == (7, False)
        assert machine.due(P0) is None
        deliver(machine, 8)
        assert send(machine, machine.due(P0)) == (8, False)

    def test_finished_stores_what_is_finished(self) -> None:
        machine = commits("finished")
        machine.delivered(P0, Offset(0))
        assert machine.due(P0) is None
        deliver(machine, 7)
        assert send(machine, machine.due(P0)) == (6, False)
        assert machine.due(P0) is None

    @rule("C51")
    def test_only_the_newest_offset_is_stored(self) -> None:
        machine = commits("finished")
        for last in range(1, 50):
            deliver(machine, last)
        assert send(machine, machine.due(P0)) == (48, False)

    @rule("C53")
    def test_a_failed_automatic_store_is_due_again(self) -> None:
        machine = commits("interval")
        deliver(machine, 7)
        assert machine.due(P0) is not None
        assert machine.due(P0) is not None

    @rule("C41")
    def test_a_mode_never_lowers_what_is_stored(self) -> None:
        machine = commits("interval", stored=50)
        deliver(machine, 7)  # read from the first message on purpose
        assert machine.due(P0) is None
        assert machine.final(P0) is None

    def test_what_the_user_stored_ahead_stays(self) -> None:
        machine = commits("finished")
        deliver(machine, 7)
        send(machine, machine.asked(P0, Offset(40)))
        assert machine.due(P0) is None
        assert machine.final(P0) is None


def triggers(machine: Commits, *, head: int = 9) -> tuple[list[int], list[int]]:
    """Hand over 0 to 9 one by one as a list, each handled; at which of them a hand-over, or a return, queues it."""
    handed: list[int] = []
    returned: list[int] = []
    for offset in map(Offset, range(10)):
        if machine.handed_over(P0, offset, offset, end=Offset(9)):
            handed.append(offset)
            assert machine[P0].queued == offset
        if machine.returned(P0, offset, Offset(head)):
            returned.append(offset)
            assert machine[P0].queued == offset
    return handed, returned


class TestWhatQueuesAStore:
    @rule("C43")
    def test_each_message_when_it_is_handed_over(self) -> None:
        assert triggers(commits("each_message")) == (list(range(10)), [])

    @rule("C44")
    def test_each_batch_when_its_last_message_is_handed_over(self) -> None:
        assert triggers(commits("each_batch")) == ([9], [])

    @rule("C45")
    @pytest.mark.parametrize(("n", "offsets"), [(1, list(range(10))), (3, [0, 3, 6, 9]), (8, [0, 8]), (50, [0])])
    def test_every_nth_goes_by_the_offset(self, n: int, offsets: list[int]) -> None:
        assert triggers(commits("every_nth", n=n)) == (offsets, [])

    @rule("C45")
    def test_every_nth_does_not_count_messages(self) -> None:
        machine = commits("every_nth", n=5)
        assert not any(machine.handed_over(P0, Offset(at), Offset(at), end=Offset(14)) for at in (11, 12, 13, 14))
        assert machine.handed_over(P0, Offset(15), Offset(15), end=Offset(15))

    @rule("C46")
    def test_after_each_when_the_handler_returned(self) -> None:
        assert triggers(commits("after_each")) == ([], list(range(10)))

    @rule("C47")
    def test_after_nth_when_the_handler_returned_and_by_the_offset(self) -> None:
        assert triggers(commits("after_nth", n=4)) == ([], [0, 4, 8])

    @rule("C48")
    @pytest.mark.parametrize(("head", "offsets"), [(9, [9]), (4, [4]), (30, [])])
    def test_after_head_at_the_newest_message_and_not_at_the_end_of_a_list(self, head: int, offsets: list[int]) -> None:
        assert triggers(commits("after_head"), head=head) == ([], offsets)

    @pytest.mark.parametrize("mode", ["disabled", "finished", "interval", "on_poll"])
    def test_nothing_in_the_other_modes(self, mode: CommitMode) -> None:
        machine = commits(mode)
        assert triggers(machine) == ([], [])
        assert machine.queued(P0) is None

    @rule("C43", "C44", "C45")
    @pytest.mark.parametrize(
        ("mode", "first", "queued"),
        [("each_message", 3, 18), ("each_batch", 3, 18), ("every_nth", 3, 14), ("every_nth", 15, None)],
    )
    def test_a_whole_batch_is_handed_over_at_once(self, mode: CommitMode, first: int, queued: int | None) -> None:
        machine = commits(mode, n=7)
        assert machine.handed_over(P0, Offset(first), Offset(18), end=Offset(18)) == (queued is not None)
        assert machine[P0].queued == queued

    @rule("C51")
    @pytest.mark.parametrize("mode", QUEUING)
    def test_what_was_queued_collapses_to_the_newest_and_is_stored_once(self, mode: CommitMode) -> None:
        machine = commits(mode)
        triggers(machine)
        assert send(machine, machine.queued(P0)) == (9, False)
        assert machine.queued(P0) is None

    @rule("C53")
    def test_a_failed_one_is_due_again(self) -> None:
        machine = commits("each_message")
        triggers(machine)
        assert machine.queued(P0) is not None  # sent, and refused
        assert machine.queued(P0) is not None

    def test_what_the_user_stored_beyond_it_is_not_lowered(self) -> None:
        machine = commits("after_each")
        triggers(machine)
        send(machine, machine.asked(P0, Offset(40)))
        assert machine.queued(P0) is None

    @pytest.mark.parametrize("mode", QUEUING)
    def test_a_seek_takes_back_what_was_queued(self, mode: CommitMode) -> None:
        machine = commits(mode)
        triggers(machine)
        machine.sought(P0, Position(3))
        assert machine.queued(P0) is None

    @rule("C55")
    def test_so_does_a_delete(self) -> None:
        machine = commits("each_message")
        triggers(machine)
        send(machine, machine.deleted(P0))
        assert machine.queued(P0) is None


class TestCombined:
    @rule("C50")
    @pytest.mark.parametrize("mode", QUEUING)
    def test_the_timer_stores_what_was_delivered_besides_what_is_queued(self, mode: CommitMode) -> None:
        machine = commits(mode, n=100)
        machine.delivered(P0, Offset(3))
        assert send(machine, machine.due(P0)) == (3, False)
        assert machine.queued(P0) is None
        machine.handed_over(P0, Offset(100), Offset(100), end=Offset(100))
        machine.returned(P0, Offset(100), Offset(100))
        assert send(machine, machine.queued(P0)) == (100, False)


class TestTheEnd:
    @rule("C34")
    @pytest.mark.parametrize("mode", QUEUING)
    def test_what_was_queued_ahead_of_the_work_is_brought_back(self, mode: CommitMode) -> None:
        machine = commits(mode)
        triggers(machine)
        deliver(machine, 9, finished=4)
        send(machine, machine.queued(P0))
        assert machine[P0].stored == 9
        assert send(machine, machine.final(P0)) == (4, True)

    @rule("C34")
    @pytest.mark.parametrize("mode", ["interval", *QUEUING])
    def test_behind_the_last_word_no_mode_stores_anything(self, mode: CommitMode) -> None:
        machine = commits(mode)
        triggers(machine)
        deliver(machine, 9, finished=4)
        send(machine, machine.final(P0))
        assert machine.due(P0) is None
        assert machine.queued(P0) is None
        assert machine[P0].stored == 4

    @pytest.mark.parametrize("mode", AUTOMATIC)
    @rule("C34", "K03")
    def test_it_brings_the_stored_offset_to_the_last_finished_message(self, mode: CommitMode) -> None:
        machine = commits(mode)
        deliver(machine, 9, finished=4)
        send(machine, machine.due(P0))
        send(machine, machine.final(P0))
        assert machine[P0].stored == 4
        assert machine.final(P0) is None

    @rule("C34")
    def test_it_rewinds_to_nothing_where_nothing_is_finished(self) -> None:
        machine = commits("interval")
        machine.delivered(P0, Offset(0))
        assert send(machine, machine.due(P0)) == (0, False)
        assert send(machine, machine.final(P0)) == (None, True)

    @rule("C34")
    def test_it_rewinds_no_further_than_the_run_began(self) -> None:
        machine = commits("interval", stored=3)
        machine.delivered(P0, Offset(4))
        assert send(machine, machine.due(P0)) == (4, False)
        assert send(machine, machine.final(P0)) == (3, True)

    @rule("C34")
    def test_what_the_user_gave_is_never_rewound(self) -> None:
        machine = commits("interval")
        machine.delivered(P0, Offset(9))
        send(machine, machine.due(P0))
        assert machine.asked(P0, Offset(5)) is None  # the mode has stored more already; yet 5 is finished now
        assert send(machine, machine.final(P0)) == (5, True)

    @pytest.mark.parametrize("mode", AUTOMATIC)
    def test_a_store_whose_answer_was_lost_is_put_right(self, mode: CommitMode) -> None:
        machine = commits(mode)
        deliver(machine, 9)
        lost = machine.due(P0)
        assert lost is not None
        machine.lost(lost)  # the log may hold it: the end must be able to go down from there
        machine.finished(P0, Offset(4))
        assert send(machine, machine.final(P0)) == (4, True)

    def test_what_the_user_gave_counts_though_its_answer_was_lost(self) -> None:
        machine = commits("finished")
        deliver(machine, 4)
        lost = machine.asked(P0, Offset(9))
        assert lost is not None
        machine.lost(lost)
        assert send(machine, machine.final(P0)) == (9, True)

    @pytest.mark.parametrize("mode", AUTOMATIC)
    @pytest.mark.parametrize("to", [2, 100])
    @pytest.mark.parametrize("is_stored", [True, False])
    def test_after_a_mere_seek_the_end_is_what_was_finished_before(
        self, mode: CommitMode, to: int, is_stored: bool
    ) -> None:
        """A message that was in hand then, and stored when it was handed over, is not skipped."""
        machine = commits(mode, stored=3)
        deliver(machine, 9)
        if is_stored:
            send(machine, machine.due(P0))
        machine.sought(P0, Position(to))
        send(machine, machine.final(P0))
        assert machine[P0].stored == 8

    @pytest.mark.parametrize("mode", AUTOMATIC)
    @pytest.mark.parametrize("stores_meanwhile", [True, False])
    def test_after_a_seek_back_what_is_finished_there_counts(self, mode: CommitMode, stores_meanwhile: bool) -> None:
        machine = commits(mode, stored=50)
        send(machine, machine.asked(P0, Offset(60)))
        machine.sought(P0, Position(2))
        deliver(machine, 7)
        if stores_meanwhile:
            send(machine, machine.due(P0))
        send(machine, machine.final(P0))
        assert machine[P0].stored == 6  # neither the floor nor the explicit store of before

    def test_after_a_seek_nothing_finished_rewinds_to_the_place_sought(self) -> None:
        machine = commits("interval", stored=50)
        machine.sought(P0, Position(2))
        machine.delivered(P0, Offset(2))
        assert send(machine, machine.due(P0)) == (2, True)
        assert send(machine, machine.final(P0)) == (1, True)

    def test_a_seek_before_anything_was_read_of_the_stored_offset_is_kept(self) -> None:
        machine = Commits("finished")
        machine.sought(P0, Position(2))
        machine.found(P0, Offset(50))
        assert machine.final(P0) is None
        machine.finished(P0, Offset(2))
        assert send(machine, machine.final(P0)) == (2, True)

    def test_partitions_are_independent(self) -> None:
        machine = commits("finished")
        machine.found(P1, Offset(7))
        deliver(machine, 5)
        assert machine.final(P1) is None
        assert send(machine, machine.final(P0)) == (4, False)
        assert machine[P1].stored == 7

    def test_nothing_is_known_of_a_new_history(self) -> None:
        machine = commits("finished", stored=50)
        deliver(machine, 60)
        machine.forget(P0)
        assert machine.due(P0) is None
        assert machine.final(P0) is None


@pytest.mark.parametrize("decide", [Commits.due, Commits.final])
def test_nothing_is_stored_of_a_partition_that_delivered_nothing(
    decide: Callable[[Commits, TopicPartition], Store | None],
) -> None:
    for mode in AUTOMATIC:
        assert decide(Commits(mode), P0) is None
        assert decide(commits(mode, stored=4), P0) is None


class TestCommitOnPoll:
    @rule("C58", "C62")
    def test_what_the_log_committed_is_brought_back_to_what_is_finished(self) -> None:
        machine = commits("on_poll", stored=4)
        machine.took(P0, Offset(14))
        assert machine[P0].stored == 14
        deliver(machine, 9)
        assert machine.due(P0) is None
        assert send(machine, machine.final(P0)) == (8, True)
        assert machine.final(P0) is None

    @rule("C62")
    @pytest.mark.parametrize("floor", [None, 4])
    def test_without_a_delivery_the_end_is_the_floor(self, floor: int | None) -> None:
        machine = commits("on_poll", stored=floor)
        machine.took(P0, Offset(14))
        assert send(machine, machine.final(P0)) == (floor, True)

    @rule("C61")
    def test_after_an_unsettled_fetch_the_end_stores_whatever_was_believed(self) -> None:
        machine = commits("on_poll", stored=4)
        machine.took(P0, Offset(9))
        deliver(machine, 9, finished=9)
        assert machine.final(P0) is None
        machine.unsettled(P0)
        assert send(machine, machine.final(P0)) == (9, True)

    @rule("C56")
    def test_a_commit_never_lowers_what_is_believed_to_be_stored(self) -> None:
        machine = commits("on_poll", stored=20)
        machine.took(P0, Offset(9))
        assert machine[P0].stored == 20

    @rule("I1")
    def test_after_a_mere_seek_the_end_is_where_it_was_before(self) -> None:
        machine = commits("on_poll")
        machine.took(P0, Offset(9))
        deliver(machine, 3)
        machine.sought(P0, Position(50))
        machine.took(P0, Offset(59))
        assert send(machine, machine.final(P0)) == (2, True)

    @rule("I1")
    def test_what_is_stored_for_a_partition_of_which_nothing_is_known_is_left_alone(self) -> None:
        machine = Commits("on_poll")
        machine.unsettled(P0)
        assert machine.final(P0) is None

    @rule("I1")
    def test_a_start_behind_messages_that_are_to_be_skipped_is_a_floor(self) -> None:
        machine = commits("on_poll")
        machine.began(P0, Position(10))
        machine.took(P0, Offset(14))
        assert send(machine, machine.final(P0)) == (9, True)
        stored = commits("finished", stored=4)
        stored.began(P0, Position(10))
        assert stored.final(P0) is None
        sought = commits("finished")
        sought.sought(P0, Position(3))
        sought.began(P0, Position(10))
        assert sought[P0].floor == 2
