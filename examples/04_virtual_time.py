"""Test code that waits for many minutes, in milliseconds: virtual time over the real log in memory.

Whenever every task waits, the clock jumps to the next deadline. The order of events depends on the seed alone.
"""

import anyio

import tarry
from tarry.testing import run_virtual


async def report(client: tarry.Client, reports: list[str]) -> None:
    """What is to be tested: a report each ten minutes, or as soon as there are 100 readings."""
    async with client.consumer("readings", name="reports") as consumer:
        while True:
            batch = await consumer.poll(min_count=100, max_wait=600.0)
            reports.append(f"after {anyio.current_time() / 60:.0f} min: {len(batch)} readings ({batch.reason})")
            await consumer.store_offset(batch)


async def test_reports() -> None:
    reports: list[str] = []
    async with tarry.connect("memory:") as client, anyio.create_task_group() as tasks:
        await client.create_topic("readings", partitions=3)
        tasks.start_soon(report, client, reports)
        async with client.producer("readings") as producer:
            await anyio.sleep(15 * 60)
            await producer.send_many([b"21.5"] * 100)
            await producer.send(b"21.6")
            await anyio.sleep(11 * 60)
        tasks.cancel_scope.cancel()
    print("\n".join(reports))
    assert [line.split("(")[1] for line in reports] == ["wait)", "count)", "wait)"]


run_virtual(test_reports, backend="asyncio")
