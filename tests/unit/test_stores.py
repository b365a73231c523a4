"""The public names for lease stores: everything that the protocol and the rules mention."""

from typing import get_args

import shardline
from shardline import ports, stores
from shardline.core import leases


def test_the_names_can_be_had_once():
    assert len(set(stores.__all__)) == len(stores.__all__)
    assert all(hasattr(stores, name) for name in stores.__all__)


def test_every_operation_and_answer_is_public():
    kinds = [*get_args(leases.LeaseOperation), *get_args(ports.LeaseAnswer)]
    assert len(kinds) == 15
    assert [kind for kind in kinds if kind is not type(None) and getattr(stores, kind.__name__) is not kind] == []


def test_the_store_is_also_a_name_of_the_package():
    assert shardline.LeaseStore is stores.LeaseStore is ports.LeaseStore


def test_a_row_survives_its_encoding():
    lease = stores.Lease("shardId-000000000000", counter=3, owner="a")
    assert stores.decode_row(stores.encode_row(lease)) == lease
