"""What is read ahead, and what is fetched next (C35, C82, Q19, Q20; K23, K73).

Fetched segments wait here, still encoded, under one bound in messages and one in bytes over all partitions together.
Partitions are served in turn, one segment each, so that a busy one does not starve another; order within one is kept.
A partition is *ready* while messages are known to be at the log, *flying* while a fetch names it, else *idle*: somebody
has to watch it.

A committing fetch (`plan_committing`) is not read-ahead: it starts only while a reader waits and what is here does not
satisfy it, it names one partition, and it brings no more than that reader takes (C59). A reader that was told that
every partition is refused does not wait; one message is fetched for it all the same, or nothing would ever be asked
again (C110). After one whose fate is unknown
that partition comes before all others, also while nobody can be asked for it, so that a hard kill never finds two
batches committed and not served (K01).

Each leader is a *lane* of its own: one fetch per lane may be out, side by side with those of others. What a fetch may
bring is reserved until it lands. While others are out, or could be, it takes half of the room that is left at most, so
that a leader that does not answer leaves room for those that do.

A paused partition is *set aside*: what is here of it, or still on its way, waits until it goes on, and counts for
nothing meanwhile; nothing more is fetched of it (K48). What was committed for it is *stranded* there: before the next
committing fetch it is brought back and dropped, so that a hard kill does not find it beside the next batch (K01).

Bounds: `messages_max`, `bytes_max`, plus one oversized record per fetch that is out; a waiting `poll` raises both to
what it asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from tarry.types import Origin, Position, Run, Segment, TopicPartition

RUN_OVERHEAD = 64
"""As `_wire.batch.RUN_OVERHEAD` (machines import no codec; a test compares them)."""
SHARE_MIN = 8
"""Beside others, a fetch is not worth while for less than this part of its usual bytes."""

LaneOf = Callable[[TopicPartition], Hashable | None]
"""Who serves a partition; None: nobody who can be asked now."""


def one_lane(_: TopicPartition) -> Hashable | None:
    """Everything is served by the same one."""
    return ""


@dataclass(slots=True)
class Demand:
    """A `poll` that waits: what satisfies it, and until when.

    `asked` becomes True when the log has answered a request that reached to the end of the wait; then what was fetched
    is all there is. `over` ends the wait. `takes_all`: it takes everything that was committed for it, also where the
    last message exceeds `max_bytes`, so that nothing committed stays behind it (design 4.2).
    """

    count: int
    min_count: int
    max_bytes: int
    deadline: float
    asked: bool = False
    over: bool = False
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One immediate fetch: the partitions in the order of service, and the room there is."""

    partitions: tuple[TopicPartition, ...]
    count: int
    max_bytes: int
    lane: Hashable | None = ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A committing fetch of unknown fate: how much it may have been answered."""

    count: int
    max_bytes: int


@dataclass(slots=True)
class _Aside:
    """A paused partition: what it had buffered, and whether a committing fetch of it is in doubt.

    `stays`: what was committed of it cannot be brought back.
    """

    buffer: deque[Segment]
    in_doubt: Doubt | None
    stays: bool = False


class Fetches:
    """The read-ahead of one consumer. `count` and `max_bytes` bound one fetch.

    `demand` is the `poll` that waits; `is_awaited`: a reader waits for a single message; `is_tried`: a read ended with
    the error of a dead end, and no committing fetch came back since.
    """

    def __init__(self, *, count: int, max_bytes: int, messages_max: int, bytes_max: int) -> None:
        self._count = count
        self._max_bytes = max_bytes
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._buffers: dict[TopicPartition, deque[Segment]] = {}
        self._ready: dict[TopicPartition, None] = {}
        self._flying: dict[TopicPartition, Plan] = {}
        self._in_doubt: dict[TopicPartition, Doubt] = {}
        self._aside: dict[TopicPartition, _Aside] = {}
        self._touched: dict[TopicPartition, None] = {}
        self.demand: Demand | None = None
        self.is_awaited = False
        self.is_tried = False
        self.messages = 0
        self.size = 0

    # ------------------------------------------------------------------------------------------- fetching

    def ready(self, partition: TopicPartition) -> None:
        """Messages are known to be at the log."""
        if partition not in self._aside:
            self._ready.setdefault(partition)
            self.touch(partition)

    def drained(self, partition: TopicPartition) -> None:
        """Everything there was has been fetched."""
        self._ready.pop(partition, None)
        self.touch(partition)

    def busy(self, lane_of: LaneOf = one_lane) -> bool:
        """A fetch is out, or there is somebody who can be asked for one: more is on its way.

        What is ready at nobody may be so for ever: its topic is gone, or its leader.
        """
        return bool(self._flying) or any(lane_of(at) is not None for at in self._in_doubt or self._ready)

    def is_idle(self, partition: TopicPartition) -> bool:
        """Nothing is known about it and nothing is asked: it has to be watched (C73)."""
        return partition not in self._ready and partition not in self._flying

    def touch(self, partition: TopicPartition) -> None:
        """It may have become idle, or not, or stand elsewhere."""
        self._touched[partition] = None

    def touched(self) -> list[TopicPartition]:
        """Which partitions may have become idle, or not, or idle elsewhere, since this was last asked."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    @property
    def flights(self) -> list[Plan]:
        """The fetches that are out, the first one first."""
        return list(dict.fromkeys(self._flying.values()))

    def plan(self, targets_max: int = 1000, lane_of: LaneOf = one_lane, *, lanes: int = 1) -> Plan | None:
        """The next immediate fetch, of the lane with the longest unserved partition, that one first.

        None: nothing is ready in a lane that is free, or there is no room. `lanes`: so many there are.
        """
        lane, ready = self._next_lane(lane_of)
        if lane is None:
            return None
        share = self._share() if self._flying else self._whole(lanes)
        return None if share is None else Plan(tuple(ready[:targets_max]), *share, lane)

    def _next_lane(self, lane_of: LaneOf) -> tuple[Hashable | None, list[TopicPartition]]:
        taken = {flight.lane for flight in self._flying.values()}
        ready: dict[Hashable, list[TopicPartition]] = {}
        for partition in self._ready:
            lane = lane_of(partition)
            if lane is not None and lane not in taken:
                ready.setdefault(lane, []).append(partition)
        for lane, partitions in ready.items():
            return lane, partitions
        return None, []

    def _whole(self, lanes: int) -> tuple[int, int] | None:
        """What a fetch may bring while none is out; where there are others, half of everything at most."""
        room = self.room()
        if room is None or lanes == 1:
            return room
        return min(room[0], (self._messages_max + 1) // 2), min(room[1], (self._bytes_max + 1) // 2)

    def _share(self) -> tuple[int, int] | None:
        """What a fetch may bring beside those that are out."""
        count, size = self._room()
        if not self._worthwhile(count, size):
            return None
        flights = self.flights
        count -= sum(flight.count for flight in flights)
        size -= sum(flight.max_bytes for flight in flights)
        count, size = min((count + 1) // 2, self._count), min(size // 2, self._max_bytes)
        return (count, size) if count > 0 and size * SHARE_MIN >= min(self._max_bytes, self._bytes_max) else None

    def room(self) -> tuple[int, int] | None:
        """Messages and bytes that one more fetch may bring; None while a fetch is out or there is no room."""
        count, size = self._room()
        if self._flying or not self._worthwhile(count, size):
            return None
        return min(count, self._count), min(size, self._max_bytes)

    def plan_committing(self, lane_of: LaneOf = one_lane) -> Plan | None:
        """The next committing fetch, of the longest unserved partition; None: nothing ready, one is out, no reader."""
        if self._flying:
            return None
        first = next((at for at in self._in_doubt or self._ready if lane_of(at) is not None), None)
        if first is None:
            return None
        demand = self.demand
        if demand is None:
            count, size = self._single()
        elif demand.over or self.enough(demand):
            count = size = 0
        else:
            count, size = demand.count - self.messages, self._left(demand)
        if count <= 0 or size <= 0:
            return None
        doubt = self._in_doubt.get(first, Doubt(0, 0))
        return Plan((first,), max(count, doubt.count), max(size, doubt.max_bytes), lane_of(first))

    def _single(self) -> tuple[int, int]:
        """What a reader of single messages is fetched."""
        if self.messages or not (self.is_awaited or self.is_tried):
            return 0, 0
        return self._count if self.is_awaited else 1, self._max_bytes

    def doubted(self, partition: TopicPartition, lost: Plan) -> None:
        """Nobody knows whether a committing fetch of it was applied: it is the next one to be fetched, as far at least.

        With a smaller one something would stay behind that the log counts as read, beside the next batch.
        """
        doubt = Doubt(lost.count, lost.max_bytes)
        if partition in self._aside:
            self._aside[partition].in_doubt = doubt
        else:
            self._in_doubt[partition] = doubt

    def settled(self, partition: TopicPartition) -> None:
        """A committing fetch of it came back."""
        self._in_doubt.pop(partition, None)
        if partition in self._aside:
            self._aside[partition].in_doubt = None

    def started(self, plan: Plan) -> None:
        """A fetch is out."""
        for partition in plan.partitions:
            self.drained(partition)
            self._flying[partition] = plan

    def landed(self, partitions: Sequence[TopicPartition]) -> None:
        """The fetch is back, whatever it brought; the partitions are idle until `ready` is said."""
        for partition in partitions:
            self._flying.pop(partition, None)
            self.touch(partition)

    def _room(self) -> tuple[int, int]:
        messages_max, bytes_max = self._messages_max, self._bytes_max
        if self.demand is not None:
            messages_max = max(messages_max, self.demand.count)
            bytes_max = max(bytes_max, self.demand.max_bytes)
        return messages_max - self.messages, bytes_max - self.size

    def _worthwhile(self, count: int, size: int) -> bool:
        """Ask again when half a fetch has room, so that a slow reader does not cause one request per message."""
        if self.messages == 0:
            return True
        if self.demand is not None:
            return count > 0 and size > 0
        return count * 2 >= min(self._count, self._messages_max) and size * 2 >= min(self._max_bytes, self._bytes_max)

    # ------------------------------------------------------------------------------------------- pausing

    def set_aside(self, partition: TopicPartition) -> None:
        """It is paused: nothing of it is taken, and nothing is fetched."""
        if partition in self._aside:
            return
        self._aside[partition] = _Aside(self._pull(partition), self._in_doubt.get(partition))
        self.drained(partition)
        self._in_doubt.pop(partition, None)

    def bring_back(self, partition: TopicPartition) -> None:
        """It goes on where it was; whoever calls says whether it is `ready`, since the log may have more."""
        aside = self._aside.pop(partition, None)
        if aside is None:
            return
        for segment in aside.buffer:
            self.put(segment)
        if aside.in_doubt is not None:
            self._in_doubt[partition] = aside.in_doubt

    def stranded(self, is_held: Callable[[Origin], bool]) -> TopicPartition | None:
        """A paused partition of which something `is_held` and set aside, or in doubt; None: there is none."""
        for partition, aside in self._aside.items():
            is_stranded = aside.in_doubt is not None or any(is_held(segment.origin) for segment in aside.buffer)
            if is_stranded and not aside.stays:
                return partition
        return None

    def leave(self, partition: TopicPartition) -> None:
        """What is stranded of it cannot be brought back: it stays, and comes when the partition goes on."""
        if partition in self._aside:
            self._aside[partition].stays = True

    def strand(self, partition: TopicPartition, is_held: Callable[[Origin], bool]) -> Position | None:
        """What is stranded was brought back, and is dropped: from where on it has to be fetched again, if from any.

        None also when the partition goes on already: then what was kept is delivered.
        """
        aside = self._aside.get(partition)
        if aside is None:
            return None
        dropped = [segment for segment in aside.buffer if is_held(segment.origin)]
        kept = [segment for segment in aside.buffer if not is_held(segment.origin)]
        self._aside[partition] = _Aside(deque(kept), in_doubt=None)
        return Position(dropped[0].first) if dropped else None

    def _pull(self, partition: TopicPartition) -> deque[Segment]:
        """Take out all that is buffered of a partition."""
        buffer = self._buffers.pop(partition, deque[Segment]())
        for segment in buffer:
            self.messages -= segment.count
            self.size -= segment.size
        return buffer

    # ------------------------------------------------------------------------------------------- buffer

    def put(self, segment: Segment) -> None:
        """Keep a fetched segment until it is taken."""
        if segment.origin.partition in self._aside:
            self._aside[segment.origin.partition].buffer.append(segment)
            return
        self._buffers.setdefault(segment.origin.partition, deque()).append(segment)
        self.messages += segment.count
        self.size += segment.size

    def put_first(self, segment: Segment) -> None:
        """Give back what was taken and not handed over: it comes next."""
        partition = segment.origin.partition
        if partition in self._aside:
            self._aside[partition].buffer.appendleft(segment)
            return
        buffer = self._buffers.pop(partition, deque())
        buffer.appendleft(segment)
        self._buffers = {partition: buffer, **self._buffers}
        self.messages += segment.count
        self.size += segment.size

    def void(self, partition: TopicPartition, kept: Callable[[Origin], bool] = lambda _: False) -> None:
        """Drop what is buffered of a partition and not `kept`; nothing is known about it any more (C33, C36).

        A pause goes on; what was set aside goes.
        """
        for segment in self._pull(partition):
            if kept(segment.origin):
                self.put(segment)
        if partition in self._aside:
            self._aside[partition] = _Aside(deque(), in_doubt=None)
        self.drained(partition)
        self._in_doubt.pop(partition, None)

    def buffers(self, partition: TopicPartition) -> bool:
        """Something of it is buffered, or set aside."""
        aside = self._aside.get(partition)
        return partition in self._buffers or (aside is not None and bool(aside.buffer))

    @property
    def segments(self) -> list[Segment]:
        """What is buffered, partition by partition; what is set aside comes last."""
        buffers = [*self._buffers.values(), *(aside.buffer for aside in self._aside.values())]
        return [segment for buffer in buffers for segment in buffer]

    def take(self) -> Segment | None:
        """The next segment, partitions in turn (Q20)."""
        if not self._buffers:
            return None
        partition = next(iter(self._buffers))
        segment = self._buffers[partition].popleft()
        self._turn(partition)
        self.messages -= segment.count
        self.size -= segment.size
        return segment

    def enough(self, demand: Demand) -> bool:
        """What is buffered satisfies a poll: enough messages, or its byte limit is reachable (K89)."""
        return self.messages >= demand.min_count or self._left(demand) <= 0

    def _left(self, demand: Demand) -> int:
        """Bytes that a poll still takes behind what is buffered."""
        return demand.max_bytes - self.size - RUN_OVERHEAD * len(self._buffers)

    def missing(self, demand: Demand) -> tuple[int, int]:
        """Messages and bytes (those of one partition, with its framing) that would satisfy a poll; each at least 1."""
        framing = RUN_OVERHEAD if self._buffers else 0  # counted already; it may be the same partition that has more
        return max(demand.min_count - self.messages, 1), max(self._left(demand) + framing, 1)

    def gather(self, count: int, max_bytes: int) -> list[Segment]:
        """Take at most `count` messages and `max_bytes` bytes, partitions in turn; a larger first record alone (C108).

        What does not fit any more is the first thing of the next call.
        """
        taken: list[Segment] = []
        seen: set[TopicPartition] = set()
        while count > 0:
            segment = self.take()
            if segment is None:
                break
            partition = segment.origin.partition
            room = max_bytes - (0 if partition in seen else RUN_OVERHEAD)
            head, rest = cut(segment, count, room, at_least=0 if taken else 1)
            if head is None:
                self.put_first(segment)
                break
            if rest is not None:
                self._put_back(rest)
            taken.append(head)
            seen.add(partition)
            count -= head.count
            max_bytes = room - head.size
            if rest is not None:
                break
        return taken

    def preview(self, count: int, max_bytes: int) -> list[Segment]:
        """What `gather` would take now; nothing is changed by looking, of what comes behind it neither."""
        buffers, messages, size = self._buffers, self.messages, self.size
        self._buffers = {partition: buffer.copy() for partition, buffer in buffers.items()}
        try:
            return self.gather(count, max_bytes)
        finally:
            self._buffers, self.messages, self.size = buffers, messages, size

    def _put_back(self, rest: Segment) -> None:
        """Keep the untouched rest of a taken segment; its partition stays last in the rotation."""
        self._buffers.setdefault(rest.origin.partition, deque()).appendleft(rest)
        self.messages += rest.count
        self.size += rest.size

    def _turn(self, partition: TopicPartition) -> None:
        buffer = self._buffers.pop(partition)
        if buffer:
            self._buffers[partition] = buffer


def cut(segment: Segment, count: int, size: int, *, at_least: int) -> tuple[Segment | None, Segment | None]:
    """Split a segment: what fits into `count` messages and `size` bytes (but `at_least` messages), and the rest."""
    head: list[Run] = []
    rest: list[Run] = []
    for run in segment.runs:
        fit = 0 if rest else min(max(run.fit(max(size, 0)), at_least), count, run.count)
        if fit:
            first, run = run.split(fit)
            head.append(first)
            count -= fit
            size -= first.size
            at_least = 0
        if run.count:
            rest.append(run)
    return _segment(segment, head), _segment(segment, rest)


def pieces(segment: Segment, size: int) -> list[Segment]:
    """Split a segment into parts of at most `size` bytes each (a larger record alone), fit to be decoded at once."""
    if segment.size <= size:
        return [segment]
    parts: list[Segment] = []
    rest: Segment | None = segment
    while rest is not None:
        head, rest = cut(rest, rest.count, size, at_least=1)
        if head is not None:
            parts.append(head)
    return parts


def _segment(segment: Segment, runs: list[Run]) -> Segment | None:
    return Segment(segment.origin, tuple(runs)) if runs else None
