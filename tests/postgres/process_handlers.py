"""Exactly-once handlers that other processes import. Each adds its records to a table."""

import os

from shardline.exactly_once import in_postgres

DATABASE = "SHARDLINE_TEST_DATABASE"
ROW = "INSERT INTO seen (number, key, sequence_number, sub_sequence, process) VALUES (%s, %s, %s, %s, %s)"


def row_of(record):
    return int(record.data), record.key, record.sequence_number, record.sub_sequence, os.getpid()


def add(record, connection):
    connection.execute(ROW, row_of(record))


def add_batch(batch, connection):
    for record in batch:
        connection.execute(ROW, row_of(record))


async def add_later(record, connection):
    await connection.execute(ROW, row_of(record))


def make(handler):
    return in_postgres(handler, os.environ[DATABASE], group="billing")
