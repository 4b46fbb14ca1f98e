"""docs/reference/format.md says what the code does: bytes, numbers, tables and columns."""

from __future__ import annotations

import re
import sqlite3
from importlib.resources import files
from pathlib import Path

from tarry._wire.batch import HEAD, RUN_OVERHEAD
from tarry.brokers.local.database import APPLICATION_ID, VERSION
from tarry.types import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from tests.unit.wire.golden import golden

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "format.md").read_text(encoding="utf-8")


def test_it_shows_the_pinned_bytes():
    text = " ".join(PAGE.split())
    for name, value in golden("batch-v1").items():
        assert value.hex(" ") in text, name


def test_it_takes_the_first_record_apart_without_a_gap():
    block = PAGE.split("```text")[1].split("```")[0]
    lines = [re.match(r"((?:[0-9a-f]{2} )+) {2,}", line) for line in block.splitlines()]
    assert bytes.fromhex("".join(found[1] for found in lines if found)) == golden("batch-v1")["record 0"]


def test_its_numbers_are_right():
    assert f"**head**: {HEAD.size} bytes." in PAGE
    assert f"plus {RUN_OVERHEAD} bytes for each partition" in PAGE
    assert f"`max_bytes=1000` brings at most {1000 - RUN_OVERHEAD} bytes" in PAGE
    assert f"{BATCH_RECORDS_MAX:,} records of one partition, and at most {BATCH_BYTES_MAX // 1024} KiB" in PAGE
    assert f"`{APPLICATION_ID:#010x}`" in PAGE
    assert f"| `user_version` | {VERSION}, " in PAGE


def test_the_fields_of_the_head_lie_where_it_says():
    places = re.findall(r"^\| (\d+)(?:-(\d+))? \| ", PAGE, re.MULTILINE)
    sizes = [int(last or first) - int(first) + 1 for first, last in places]
    assert sizes == [1, 1, 1, 1, 4, 4, 8, 8]
    assert sum(sizes) == HEAD.size


def test_it_has_every_table_and_column_of_the_schema_and_no_other():
    db = sqlite3.connect(":memory:")
    db.executescript(files("tarry.brokers.local").joinpath("schema.sql").read_text(encoding="utf-8"))
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    tables = {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for (name,) in db.execute(query)}
    db.close()
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(tables)
    for table, columns in tables.items():
        cells = re.findall(r"^\| (`[^|]+`) \|", sections[table], re.MULTILINE)
        assert re.findall(r"`(\w+)`", " ".join(cells)) == columns, table


def test_its_query_reads_a_log():
    db = sqlite3.connect(":memory:")
    db.executescript(files("tarry.brokers.local").joinpath("schema.sql").read_text(encoding="utf-8"))
    db.executescript("""
        INSERT INTO topic VALUES (1, 'orders', NULL, NULL, 1000);
        INSERT INTO partition VALUES (7, 1, 0, 0, 3, 5);
        INSERT INTO batch VALUES (1, 7, 2, 1, 2, 0, 0, 0, '', '', 'cd'), (2, 7, 0, 2, 3, 0, 0, 0, '', '', 'abc');
    """)
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert db.execute(query).fetchall() == [(0, 2, "abc"), (2, 1, "cd")]
    db.close()
