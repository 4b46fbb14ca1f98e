"""Share partitions in a group, with state per partition: hooks load it when one comes, and save it when it goes.

A second member joins in the middle of the work and is stopped again. Nothing is counted twice and nothing is missing.
"""

from collections import Counter
from collections.abc import Callable

import anyio

import tarry

PARTITIONS = 6
TRIPS = 600
CITIES = [b"Bergen", b"Genoa", b"Porto", b"Split", b"Ghent"]

Places = frozenset[tarry.TopicPartition]
saved: dict[tarry.TopicPartition, Counter[bytes | None]] = {}  # Stands for a table in a database.


class Progress:
    """How many trips were counted, by member."""

    def __init__(self) -> None:
        self.counted = Counter[str]()
        self.moved = anyio.Event()

    def note(self, member: str) -> None:
        """One more."""
        self.counted[member] += 1
        self.moved.set()
        self.moved = anyio.Event()

    async def until(self, condition: Callable[[Counter[str]], bool]) -> None:
        """Wait until the counts are as wanted."""
        while not condition(self.counted):
            await self.moved.wait()


class Counting:
    """A member: it counts trips by city. Its counts are in memory, so they have to go where the partition goes."""

    def __init__(self, client: tarry.Client, name: str) -> None:
        self.name = name
        self.counts: dict[tarry.TopicPartition, Counter[bytes | None]] = {}
        self.lock = anyio.Lock()
        self.consumer = client.consumer(
            "trips",
            group="counting",
            member=name,
            commit=tarry.AutoCommit.on_poll(),
            poll=tarry.PollOptions(count=20),
            on_assigned=self.load,
            on_revoked=self.save,
        )

    async def load(self, partitions: Places) -> None:
        """Before anything of these partitions is delivered."""
        async with self.lock:
            self.counts |= {partition: saved.pop(partition, Counter()) for partition in partitions}
            print(f"{self.name} takes over {len(partitions)} partitions")

    async def save(self, partitions: Places) -> None:
        """When the message in hand is finished and nothing more comes of these partitions."""
        async with self.lock:
            saved.update({partition: self.counts.pop(partition) for partition in partitions})
            print(f"{self.name} hands over {len(partitions)} partitions")

    async def run(self, progress: Progress) -> None:
        """Count until the consumer is shut down."""
        async for trip in self.consumer:
            async with self.lock:
                self.counts[trip.topic_partition][trip.value] += 1
            await anyio.sleep(0.001)  # The rest of the work.
            progress.note(self.name)


async def produce(client: tarry.Client) -> None:
    await client.create_topic("trips", PARTITIONS)
    async with client.producer("trips") as producer:
        await producer.send_many([CITIES[number % len(CITIES)] for number in range(TRIPS)])


async def main() -> None:
    progress = Progress()
    async with tarry.connect("memory:") as client, anyio.create_task_group() as tasks:
        await produce(client)
        first, second = Counting(client, "first"), Counting(client, "second")
        async with first.consumer:
            tasks.start_soon(first.run, progress)
            await progress.until(lambda counted: counted["first"] >= 50)
            async with second.consumer:
                tasks.start_soon(second.run, progress)
                await progress.until(lambda counted: counted["second"] >= 50)
                await second.consumer.shutdown()
            await progress.until(lambda counted: counted.total() == TRIPS)
            await first.consumer.shutdown()
    counted = sum(saved.values(), Counter[bytes | None]())
    assert counted == Counter(dict.fromkeys(CITIES, TRIPS // len(CITIES)))
    print(f"all {counted.total()} trips were counted once, {progress.counted['second']} of them by the second member")


anyio.run(main)
