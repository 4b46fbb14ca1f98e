"""Storing offsets: what the user asks for, what the mode does by itself, and the last word at shutdown.

Which offset is stored is decided by `_core.autocommit`; here requests are sent, in order, off the delivery path (C51).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from tarry import abc
from tarry._core.autocommit import Commits, Store
from tarry._core.positions import Positions
from tarry.errors import TarryError
from tarry.instruments import Instruments
from tarry.types import UNFENCED, Offset, TopicPartition


class Storing:
    """The offsets of one consumer on their way to the log. `note` brings the marks up to date before they are read."""

    def __init__(
        self,
        session: abc.Session,
        commits: Commits,
        positions: Positions,
        *,
        period: float | None,
        note: Callable[[], None],
        instruments: Instruments,
    ) -> None:
        self._session = session
        self._commits = commits
        self._positions = positions
        self._period = period
        self._note = note
        self._instruments = instruments
        self._lane = anyio.Lock()

    async def run(self) -> None:
        """Store what the mode says, every period; a store that fails is counted and tried again with the next one."""
        while self._period is not None:
            await anyio.sleep(self._period)
            self._note()
            for store in list(self._commits.due()):
                try:
                    await self._send(store, explicit=False)
                except TarryError as error:
                    self._instruments.warn(
                        "consumer",
                        "store_failed",
                        f"{store.partition}: offset {store.offset} could not be stored ({error}); trying again in {self._period:g} s",
                        partition=store.partition,
                    )

    async def store(self, partition: TopicPartition, offset: Offset) -> None:
        """Store one offset for the user, unless it changes nothing (C52); its error is raised (C53)."""
        store = self._commits.asked(partition, offset)
        if store is not None:
            await self._send(store, explicit=True)

    async def delete(self, partition: TopicPartition) -> None:
        """Remove the stored offset (C55)."""
        await self._send(Store(partition, None, lower=True), explicit=True)

    async def finish(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The final stores of an automatic mode; by how many messages each was brought back, where it was.

        A store that fails is logged; the others go on (C67).
        """
        rewound: dict[TopicPartition, int] = {}
        for store in list(self._commits.final(partitions)):
            before = self._commits[store.partition].stored
            try:
                await self._send(store, explicit=False)
            except TarryError as error:
                self._instruments.warn(
                    "consumer",
                    "store_failed",
                    f"{store.partition}: the final offset {store.offset} could not be stored: {error}",
                    partition=store.partition,
                )
                continue
            if store.lower and before is not None:
                rewound[store.partition] = before - (-1 if store.offset is None else store.offset)
        return rewound

    async def _send(self, store: Store, *, explicit: bool) -> None:
        """One at a time, so that a later store never overtakes an earlier one."""
        async with self._lane:
            if explicit and store.offset is not None and self._commits.asked(store.partition, store.offset) is None:
                return  # a higher one got through while this one waited for its turn
            place = self._positions.get(store.partition)
            stored = await self._session.store_offset(
                store.partition,
                store.offset,
                ownership=place.ownership if place else UNFENCED,
                history=place.history if place else None,
                lower=store.lower,
            )
            self._commits.accepted(store, stored, explicit=explicit)
