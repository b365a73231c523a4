"""Does async-kinesis read the packs of Shardline, and make packs that Shardline reads?

Run as ``async_kinesis_packing.py FORMAT``. Stdin has packs as JSON: lists of byte values, in base64. Prints, as JSON,
the values that async-kinesis finds in them, and its own packs of the same values.
"""

import base64
import json
import sys

from kinesis import JsonSerializer, ListAggregator, NetstringAggregator, NewlineAggregator

AGGREGATORS = {"json-lines": NewlineAggregator, "json-list": ListAggregator, "netstrings": NetstringAggregator}


def main(name):
    class Processor(AGGREGATORS[name], JsonSerializer):
        pass

    read, packed = [], []
    for text in json.load(sys.stdin):
        found = list(Processor().parse(base64.b64decode(text)))
        values = found[0] if name == "json-list" else found
        writer = Processor()
        items = [item for value in values for item in writer.add_item(value)] + list(writer.get_items())
        read.append(values)
        packed.append(base64.b64encode(b"".join(item.data for item in items)).decode())
    sys.stdout.write(json.dumps({"read": read, "packed": packed}))


main(*sys.argv[1:])
