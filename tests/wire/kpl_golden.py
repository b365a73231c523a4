"""Aggregates that Amazon's own KPL wrote, and their contents: the reference for our codec.

This is data from python/test/test_deagg.py of github.com/awslabs/kinesis-aggregation at c2774b1 (Apache License 2.0).
"""

from base64 import b64decode
from typing import NamedTuple


class Golden(NamedTuple):
    blob: bytes
    records: list[tuple[str, bytes, str | None]]
    """Partition key, data, explicit hash key."""


# Four records, each with a partition key and an explicit hash key of its own.
WITH_EXPLICIT_HASH_KEYS = Golden(
    b64decode(
        "84mawgokZmMwM2RkODgtM2U3OS00NDhhLWIwMWEtN2NmMWJkNDdiNzg0CiRjYWU0MWIxYy1lYTYxLTQzZjItOTBiZS1iODc1NWVi"
        "Zjg4ZTIKJGQ0OTA2OTBjLWU3NGQtNGRiMi1hM2M4LWQ4ZjJmMTg0ZmQyMwokYzkyNGJjMDktYjg1ZS00N2YxLWIzMmUtMzM2NTIy"
        "ZWU1M2M4EiYzODQ4NjQ5NTg2NzUwODM5OTA3ODE1OTcyMzg0NjA1MTgwNzAyMBInMTkzNzg3NjAwMDM3NjgxNzA2OTUyMTQzMzU3"
        "MDcxOTE2MzUyNjA0EicyNjY4ODA0MzY5NjQ5MzI0MjQyNjU0NjY5MTY3MzQwNjg2ODQ0MzkSJzMzOTYwNjYwMDk0Mjk2NzM5MTg1"
        "NDYwMzU1MjQwMjAyMTg0NzI5MhomCAAQABogUkVDT1JEIDIyIHBlZW9iaGN6YnpkbXNrYm91cGd5cQoaJggBEAEaIFJFQ09SRCAy"
        "MyB1c3dreGZ0eHJvZXVzc2N4c2pobm8KGiYIAhACGiBSRUNPUkQgMjQgY2FzZWhkZ2l2ZmF4ZXVzdGx5c3p5ChomCAMQAxogUkVD"
        "T1JEIDI1IG52ZmZ2cG11b2dkb3BqaGFtZXZyawpRwVPQ3go0yp4Y6kvM0q3V"
    ),
    [
        (
            "fc03dd88-3e79-448a-b01a-7cf1bd47b784",
            b"RECORD 22 peeobhczbzdmskboupgyq\n",
            "38486495867508399078159723846051807020",
        ),
        (
            "cae41b1c-ea61-43f2-90be-b8755ebf88e2",
            b"RECORD 23 uswkxftxroeusscxsjhno\n",
            "193787600037681706952143357071916352604",
        ),
        (
            "d490690c-e74d-4db2-a3c8-d8f2f184fd23",
            b"RECORD 24 casehdgivfaxeustlyszy\n",
            "266880436964932424265466916734068684439",
        ),
        (
            "c924bc09-b85e-47f1-b32e-336522ee53c8",
            b"RECORD 25 nvffvpmuogdopjhamevrk\n",
            "339606600942967391854603552402021847292",
        ),
    ],
)

# Eight records, each with a partition key of its own.
WITHOUT_EXPLICIT_HASH_KEYS = Golden(
    b64decode(
        "84mawgokNzhmZWIxMmEtZGJhMC00NWNhLWE5MWUtYmIxZjJmMTgxOWI0CiRjMmE3NTc4Ny00NjliLTQzMTAtODQwZC1kNDg2ZGNh"
        "N2ViNWUKJDY1MGU5MzYyLTU3MmItNDQyNy1iM2ZjLTEzNTQ5ZDdlNWFlNQokMWQ4ZDk2MDAtMDBiNy00NmYzLWE5ODMtZGU4MzQ3"
        "NzU0MGMwCiRmMmU3MThhMC0zODliLTQ5NGEtYjc5Ni0zMzU1YjA3NTY5Y2MKJDk2NWI4ZGE0LWE2YmQtNDc1NS04MWM5LWU3MTgx"
        "YWI3ZGM5YQokZDY5M2M1ZjAtNTc3Mi00NmM5LThkODYtMDhjNzA1NWJkYjc1CiQ4ZDkyNDc2Yi1lYjg5LTRlODEtOTlmYi1jMmJh"
        "NjNhZDZkOTAaJAgAGiBSRUNPUkQgMTggaWtscnBzdnloeG5lcm9kZmVoZXJ1ChokCAEaIFJFQ09SRCAxOSBsbm1udWR5aHZwdmNn"
        "cm9rZm16ZGgKGiQIAhogUkVDT1JEIDIwIHBqcXJjZmJ4YWZ6ZG5kem1iZ2FuZQoaJAgDGiBSRUNPUkQgMjEgYWFmcmV5cm50d3V3"
        "eGxpeWdrYmhrChokCAQaIFJFQ09SRCAyMiBxc2FhZGhic2dtdnFnZGlmZ3V5b3UKGiQIBRogUkVDT1JEIDIzIHdqb2tvaXd2enpo"
        "bGZ0bHpocWZqawoaJAgGGiBSRUNPUkQgMjQgem9wY2FzY3J0aGJicG5qaXd1aGpiChokCAcaIFJFQ09SRCAyNSB0eGJidm5venJ3"
        "c2JveHVvbXFib3EKvV1rrLdU+Sy2v8xkgZ5YaA=="
    ),
    [
        ("78feb12a-dba0-45ca-a91e-bb1f2f1819b4", b"RECORD 18 iklrpsvyhxnerodfeheru\n", None),
        ("c2a75787-469b-4310-840d-d486dca7eb5e", b"RECORD 19 lnmnudyhvpvcgrokfmzdh\n", None),
        ("650e9362-572b-4427-b3fc-13549d7e5ae5", b"RECORD 20 pjqrcfbxafzdndzmbgane\n", None),
        ("1d8d9600-00b7-46f3-a983-de83477540c0", b"RECORD 21 aafreyrntwuwxliygkbhk\n", None),
        ("f2e718a0-389b-494a-b796-3355b07569cc", b"RECORD 22 qsaadhbsgmvqgdifguyou\n", None),
        ("965b8da4-a6bd-4755-81c9-e7181ab7dc9a", b"RECORD 23 wjokoiwvzzhlftlzhqfjk\n", None),
        ("d693c5f0-5772-46c9-8d86-08c7055bdb75", b"RECORD 24 zopcascrthbbpnjiwuhjb\n", None),
        ("8d92476b-eb89-4e81-99fb-c2ba63ad6d90", b"RECORD 25 txbbvnozrwsboxuomqboq\n", None),
    ],
)

# Four records that share one partition key and one explicit hash key; seen through Kinesis Analytics.
SHARED_KEYS = Golden(
    b64decode(
        "84mawgoNMTU2MjYwMjA3NDg5NhInMzM5NjA2NjAwOTQyOTY3MzkxODU0NjAzNTUyNDAyMDIxODQ3MjkyGicIABAAGiFSRUNPUkQg"
        "MjAwNSBwanFyY2ZieGFmemRuZHptYmdhbmUaJwgAEAAaIVJFQ09SRCAyMDA2IHBqcXJjZmJ4YWZ6ZG5kem1iZ2FuZRonCAAQABoh"
        "UkVDT1JEIDIwMDcgcGpxcmNmYnhhZnpkbmR6bWJnYW5lGicIABAAGiFSRUNPUkQgMjAwOCBwanFyY2ZieGFmemRuZHptYmdhbmUH"
        "rLqXAgpJOT8v1lp81gM/"
    ),
    [
        ("1562602074896", b"RECORD 2005 pjqrcfbxafzdndzmbgane", "339606600942967391854603552402021847292"),
        ("1562602074896", b"RECORD 2006 pjqrcfbxafzdndzmbgane", "339606600942967391854603552402021847292"),
        ("1562602074896", b"RECORD 2007 pjqrcfbxafzdndzmbgane", "339606600942967391854603552402021847292"),
        ("1562602074896", b"RECORD 2008 pjqrcfbxafzdndzmbgane", "339606600942967391854603552402021847292"),
    ],
)

# One record that the KPL sent alone, and therefore not as an aggregate.
PLAIN = b64decode("UkVDT1JEIDc0OSBwanFyY2ZieGFmemRuZHptYmdhbmU=")
