-- The file format of the embedded log, version 2 (docs/reference/format.md).
-- Runs in one transaction with the pragmas application_id and user_version; auto_vacuum is set before.

CREATE TABLE topic (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    retention_age REAL,                 -- seconds; NULL keeps
    retention_bytes INTEGER,            -- per partition; NULL: no limit
    max_record_bytes INTEGER NOT NULL
);

-- `id` is never used again, and is the history id. Offsets never come back either: log_end only grows.
CREATE TABLE partition (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL REFERENCES topic (id),
    number INTEGER NOT NULL,
    log_start INTEGER NOT NULL,         -- offset of the oldest retained record
    log_end INTEGER NOT NULL,           -- offset of the next record
    size INTEGER NOT NULL,              -- bytes of the retained records
    UNIQUE (topic_id, number)
);

-- One row per partition and transaction, `id` in order of arrival. `ends` before `records`: SQLite reads a row from its front.
CREATE TABLE batch (
    id INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL REFERENCES partition (id),
    base_offset INTEGER NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,             -- length of `records`
    max_ts INTEGER NOT NULL,            -- highest timestamp in the row, ms since 1970 UTC
    ts_high INTEGER NOT NULL,           -- highest max_ts of the partition up to this row
    appended_at INTEGER NOT NULL,       -- ms since 1970 UTC, never lower than in an earlier row
    head BLOB NOT NULL,
    ends BLOB NOT NULL,
    records BLOB NOT NULL
);
CREATE UNIQUE INDEX batch_place ON batch (partition_id, base_offset);

CREATE TABLE stored_offset (
    partition_id INTEGER NOT NULL REFERENCES partition (id),
    identity TEXT NOT NULL,             -- name:... or group:...
    record_offset INTEGER NOT NULL,     -- inclusive: this record is finished
    PRIMARY KEY (partition_id, identity)
) WITHOUT ROWID;

-- What stamped appends brought, one row per producer, partition and transaction: pairs of 64-bit little-endian numbers,
-- sequence and base offset. `last` is the highest sequence in the row.
CREATE TABLE sequence (
    partition_id INTEGER NOT NULL REFERENCES partition (id),
    producer BLOB NOT NULL,
    last INTEGER NOT NULL,
    last_base INTEGER NOT NULL,         -- highest base offset in the row
    used_at INTEGER NOT NULL,           -- ms since 1970 UTC
    pairs BLOB NOT NULL,
    PRIMARY KEY (partition_id, producer, last)
) WITHOUT ROWID;

-- Members, generation and ownerships of a group; opaque here. Its stored offsets are in stored_offset.
CREATE TABLE consumer_group (
    name TEXT NOT NULL PRIMARY KEY,
    state BLOB NOT NULL
);
