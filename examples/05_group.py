"""Share partitions in a group, and keep state per partition: hooks load it when a partition comes, save it when it goes.

A second member joins in the middle of the work and is stopped again. Nothing is counted twice and nothing is missing.
"""

from collections import Counter

import anyio

import tarry

PARTITIONS = 6
TRIPS = 3000
CITIES = [b"Bergen", b"Genoa", b"Porto", b"Split", b"Ghent", b"Gdynia", b"Malaga", b"Turku"]

Places = frozenset[tarry.TopicPartition]
saved: dict[tarry.TopicPartition, Counter[bytes]] = {}  # Stands for a table in a database.


class Counting:
    """A member: it counts trips by city. Its counts are in memory, so they have to go where the partition goes."""

    def __init__(self, client: tarry.Client, name: str) -> None:
        self.name = name
        self.counts: dict[tarry.TopicPartition, Counter[bytes]] = {}
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

    async def run(self) -> None:
        """Count until the consumer is shut down."""
        async for trip in self.consumer:
            async with self.lock:
                self.counts[trip.topic_partition][trip.key or b""] += 1
            await anyio.sleep(0)


async def produce(client: tarry.Client) -> None:
    await client.create_topic("trips", PARTITIONS)
    async with client.producer("trips") as producer:
        trips = [tarry.Outgoing(b"trip %d" % number, CITIES[number % len(CITIES)]) for number in range(TRIPS)]
        await producer.send_many(trips)


async def main() -> None:
    async with tarry.connect("memory:") as client:
        await produce(client)
        first, second = Counting(client, "first"), Counting(client, "second")
        async with first.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            async with second.consumer:
                tasks.start_soon(second.run)
                while not second.counts:
                    await anyio.sleep(0.01)
                await second.consumer.shutdown()
            while (await client.group("counting")).lag:
                await anyio.sleep(0.01)
            await first.consumer.shutdown()
    counted = sum(saved.values(), Counter[bytes]())
    assert counted == Counter({city: TRIPS // len(CITIES) for city in CITIES})
    print(f"all {counted.total()} trips were counted once")


anyio.run(main)
