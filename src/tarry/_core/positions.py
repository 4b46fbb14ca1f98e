"""Where each owned partition is read, and what of it was handed over (C26-C34, C38, C39).

A place is *closed* while nothing may be delivered of it: until the hook for a new partition has run, and from the
moment on at which the log wants the partition back (design 4.1). A closed place is neither resolved nor fetched.

A *paused* place is closed to reading by the application: it is resolved, but not fetched. Other than at a close nothing
becomes void, since reading goes on where it was (K48).

Every partition has its own position (K79). A start rule is consulted only while there is none (C27); afterwards fetches
name an explicit position, also after a lost reply (C28). The `epoch` of a place moves whenever what was fetched before
is void: seek (C33), new ownership, new history (C38 as overruled). Replies carry the epoch they were asked under and
are discarded when it moved (C35).

Not here: buffering (`fetches`), storing (`autocommit`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tarry.types import HistoryId, Offset, Origin, Ownership, Position, TopicPartition, position_after


@dataclass(slots=True)
class Place:
    """One owned partition.

    Args:
        fetch_at: where the next fetch begins; None while the start rule has to be resolved.
        next: the next message to be delivered; None like `fetch_at`.
        delivered: the last offset handed over under this epoch; None: nothing yet (never 0, C39).
        is_open: messages of it may be delivered.
        paused: why the application does not want any for now; None: it does.
    """

    ownership: Ownership
    epoch: int
    history: HistoryId | None = None
    fetch_at: Position | None = None
    next: Position | None = None
    delivered: Offset | None = None
    is_open: bool = True
    paused: str | None = None

    @property
    def is_unresolved(self) -> bool:
        """Its start rule has to be resolved."""
        return self.fetch_at is None and self.is_open


class Positions:
    """The places of one consumer."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}
        self._epochs = 0

    def __contains__(self, partition: object) -> bool:
        return partition in self._places

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._places)

    def __getitem__(self, partition: TopicPartition) -> Place:
        return self._places[partition]

    def get(self, partition: TopicPartition) -> Place | None:
        """The place of a partition, None when it is not owned."""
        return self._places.get(partition)

    def holds(self, origin: Origin) -> bool:
        """The partition is held under the ownership and history that something was fetched under."""
        place = self._places.get(origin.partition)
        return place is not None and place.ownership == origin.ownership and place.history == origin.history

    def assign(self, owned: Mapping[TopicPartition, Ownership]) -> None:
        """Take over an assignment: what left is dropped, what stayed under the same ownership is kept (C29, C32)."""
        for partition in [partition for partition in self._places if partition not in owned]:
            del self._places[partition]
        for partition, ownership in owned.items():
            place = self._places.get(partition)
            if place is None or place.ownership != ownership:
                self._places[partition] = Place(ownership, self._new_epoch())

    def drop(self, partition: TopicPartition) -> None:
        """The partition is not owned any more; a later return is a new ownership and resolves anew (C29, C31)."""
        self._places.pop(partition, None)

    def close(self, partition: TopicPartition) -> None:
        """Deliver nothing more of it; what is out for it is void."""
        place = self._places[partition]
        place.is_open, place.epoch = False, self._new_epoch()

    def reopen(self, partition: TopicPartition, ownership: Ownership) -> None:
        """Go on with a partition that was closed, if it is still held under that ownership."""
        place = self._places.get(partition)
        if place is not None and place.ownership == ownership:
            place.is_open = True

    def pause(self, partition: TopicPartition, cause: str | None) -> None:
        """Read nothing more of it; None: go on. It ends with the ownership."""
        self._places[partition].paused = cause

    def paused(self) -> dict[TopicPartition, str]:
        """What is paused, and why."""
        return {partition: place.paused for partition, place in self._places.items() if place.paused is not None}

    def reset(self, partition: TopicPartition) -> None:
        """Forget the position: new history; the start rule decides again."""
        place = self._places[partition]
        self._places[partition] = Place(place.ownership, self._new_epoch(), is_open=place.is_open, paused=place.paused)

    def unresolved(self) -> list[TopicPartition]:
        """Open partitions whose start rule has to be resolved."""
        return [partition for partition, place in self._places.items() if place.is_unresolved]

    def unplaced(self) -> list[TopicPartition]:
        """Partitions without a position, open or not."""
        return [partition for partition, place in self._places.items() if place.next is None]

    def readable(self) -> list[TopicPartition]:
        """Open partitions that have a position and are not paused."""
        return [
            partition
            for partition, place in self._places.items()
            if place.fetch_at is not None and place.is_open and place.paused is None
        ]

    def resolved(self, partition: TopicPartition, epoch: int, position: Position, history: HistoryId) -> bool:
        """The start rule gave a position; False when it came too late."""
        place = self._places.get(partition)
        if place is None or place.epoch != epoch or place.fetch_at is not None:
            return False
        place.fetch_at = place.next = position
        place.history = history
        return True

    def seek(self, partition: TopicPartition, position: Position, history: HistoryId) -> None:
        """Read from `position` on; what was fetched is void and the delivered mark is reset."""
        place = self._places[partition]
        self._places[partition] = Place(
            place.ownership,
            self._new_epoch(),
            history,
            position,
            position,
            is_open=place.is_open,
            paused=place.paused,
        )

    def fetched(self, partition: TopicPartition, epoch: int, end: Position) -> Position | None:
        """A reply brought everything up to `end`; None when it is void and must be dropped (C35).

        Returns:
            From where on it is new: below that everything was fetched before and is not delivered again (C38).
        """
        place = self._places.get(partition)
        if place is None or place.epoch != epoch or place.fetch_at is None:
            return None
        new_from, place.fetch_at = place.fetch_at, max(place.fetch_at, end)
        return new_from

    def fetch_again(self, partition: TopicPartition, position: Position) -> None:
        """What was fetched from `position` on was dropped before it was delivered; what is out is void."""
        place = self._places[partition]
        place.fetch_at, place.epoch = position, self._new_epoch()

    def handed(self, partition: TopicPartition, offset: Offset) -> None:
        """A message (or the last one of a batch) was handed to the application (C34)."""
        place = self._places.get(partition)
        if place is not None:
            place.delivered = offset
            place.next = position_after(offset)

    def _new_epoch(self) -> int:
        self._epochs += 1
        return self._epochs
