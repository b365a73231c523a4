"""Do the parts of the demo count, order and read correctly?"""

import json
import random
import time
from collections import Counter

import anyio
import pytest

from shardline import aggregate
from shardline.cli.demo import story as demo_story
from shardline.cli.demo.demo_worker import Handled, WorkerSettings
from shardline.cli.demo.fleet import DemoFailedError, Worker
from shardline.cli.demo.independent_reader import Stored, open_record, read_stream
from shardline.cli.demo.loss_check import headline, judge, sentences
from shardline.cli.demo.orders import PRODUCERS, Shop, producer_of, resellers_of
from shardline.cli.demo.scene import Flow, Scene, ShardView, Waiting, listed, shards_named, short
from shardline.cli.quantities import counted
from shardline.model.hashing import HashRange, hash_key_of
from shardline.testing import LocalKinesis

# ---- the verdict


def stored(*names):
    return [Stored(name, ("shard", str(number), 0)) for number, name in enumerate(names)]


def handled(name, at, place=None, customer="c"):
    return Handled(name, customer, ("shard", place or name, 0), at)


def test_what_came_through_is_good():
    verdict = judge(["1", "2"], 0, stored("1", "2"), {"A": [handled("1", 1)], "B": [handled("2", 2)]})
    assert verdict.is_good
    assert (verdict.put, verdict.stored, verdict.delivered, verdict.lost, verdict.duplicates) == (2, 2, 2, 0, 0)
    assert headline(verdict) == "put 2   delivered 2   lost 0   duplicates 0"
    assert sentences(verdict, "B") == [
        "Nothing was lost, and every customer's orders came in order.",
        "No duplicates: what the killed worker had handled was committed.",
    ]


@pytest.mark.parametrize(
    ("in_stream", "in_journal"),
    [(("1", "2"), ("1",)), (("1",), ("1", "2")), (("1",), ("1",)), ((), ())],
    ids=["not handled", "not in the stream", "neither", "nothing at all"],
)
def test_a_receipt_for_what_did_not_come_through_is_a_loss(in_stream, in_journal):
    journal = [handled(name, at) for at, name in enumerate(in_journal)]
    verdict = judge(["1", "2"], 0, stored(*in_stream), {"A": journal})
    assert verdict.lost == (1 if "1" in in_journal else 2)
    assert not verdict.is_good
    assert "LOST" in sentences(verdict, "B")[0]
    assert verdict.missing[-1] == "2"


def test_only_the_first_few_losses_are_named():
    verdict = judge(map(str, range(10, 20)), 0, [], {})
    assert sentences(verdict, "B")[0] == "LOST 10: 10, 11, 12, ... had a receipt but did not arrive."


def test_duplicates_are_counted_by_cause():
    journals = {
        "B": [handled("1", 1, "x"), handled("2", 2, "y")],
        "A": [handled("1", 3, "x"), handled("2", 4, "y"), handled("2", 5, "z")],
    }
    verdict = judge(["1", "2"], 0, stored("1", "2", "2"), journals)
    assert (verdict.duplicates, verdict.replayed, verdict.stored_twice) == (3, 2, 1)
    assert verdict.is_good
    assert [text.partition(":")[0] for text in sentences(verdict, "B")[1:]] == [
        "2 orders handled twice",
        "1 order stored twice",
    ]


def test_an_order_that_comes_after_a_later_one_of_its_customer_is_seen():
    journals = {"A": [handled("2", 1), handled("1", 2), handled("3", 3, customer="d")]}
    verdict = judge(["1", "2", "3"], 0, stored("1", "2", "3"), journals)
    assert verdict.out_of_order == 1
    assert not verdict.is_good


def test_a_replay_is_not_out_of_order():
    journals = {"B": [handled("1", 1), handled("2", 2)], "A": [handled("1", 3), handled("2", 4), handled("3", 5)]}
    assert judge(["1", "2", "3"], 0, stored("1", "2", "3"), journals).is_good


def test_what_was_given_up_or_came_from_nowhere_is_not_good():
    assert not judge(["1"], 1, stored("1"), {"A": [handled("1", 1)]}).is_good
    assert not judge(["1"], 0, stored("1"), {"A": [handled("1", 1), handled("9", 2)]}).is_good
    assert not judge([], 0, [], {}).is_good


def test_a_line_of_a_journal_says_it_all():
    one = Handled("order-000001", "customer-1", ("shardId-000000000001", "4967", 3), 12.5)
    assert Handled.of_line(one.to_line()) == one


# ---- the reader


@pytest.mark.parametrize("seed", range(20))
def test_the_reader_opens_what_the_library_packs(seed):
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 127, 128, 300, 20_000]) for _ in range(draw.randint(1, 40))]
    payloads = [draw.randbytes(size) for size in sizes]
    hashed = (None, str(draw.randrange(1 << 128)))
    packed = aggregate([(f"key-{n % 3}", data, draw.choice(hashed)) for n, data in enumerate(payloads)])
    assert open_record(packed) == payloads


def test_the_reader_leaves_what_is_no_aggregate():
    packed = aggregate([("a", b"one"), ("a", b"two")])
    damaged = packed[:-1] + bytes([packed[-1] ^ 1])
    for data in (b"", b"{}", packed[:4], damaged):
        assert open_record(data) == [data]


def test_the_reader_reads_every_shard():
    with LocalKinesis(shards=3, stream="orders", limits=False) as kinesis:
        shop = Shop(1)
        orders = [shop.order() for _ in range(50)]

        async def put():
            async with kinesis.client() as client:
                for order in orders:
                    await client.put_record("orders", order.data, order.customer)
                await client.split_shard("orders", "shardId-000000000001", wait=True)

        anyio.run(put)
        found = read_stream("orders", kinesis.boto3_arguments)
    assert Counter(one.name for one in found) == Counter(order.name for order in orders)
    assert len({one.place for one in found}) == 50


def test_a_stream_that_cannot_be_read_back_is_no_verdict():
    with LocalKinesis() as kinesis, pytest.raises(DemoFailedError, match=r"could not be read back: .*not found"):
        anyio.run(demo_story._read_back, kinesis)


# ---- threads and processes


def test_a_worker_that_cannot_work_ends_and_says_why(tmp_path):
    """This holds although its input is still open."""
    settings = WorkerSettings(
        name="A",
        stream="orders",
        group="billing",
        store=f"sqlite:///{tmp_path}/nowhere/leases.db",
        journal=str(tmp_path / "A.journal"),
        endpoint_url="http://127.0.0.1:1",
        region="us-east-1",
        access_key="a",
        secret_key="b",
        lease_duration=2.0,
    )
    worker = Worker(settings)
    try:
        give_up_at = time.monotonic() + 60
        while not worker.has_ended:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        with pytest.raises(DemoFailedError, match=r"worker A ended with exit code 1: [^\n]*nowhere"):
            worker.check()
    finally:
        worker.end()


# ---- the orders


def test_a_seed_gives_the_same_orders():
    first, second, other = Shop(7), Shop(7), Shop(8)
    orders = [first.order() for _ in range(100)]
    assert orders == [second.order() for _ in range(100)]
    assert orders != [other.order() for _ in range(100)]
    assert [order.name for order in orders] == sorted({order.name for order in orders})
    for order in orders:
        read = json.loads(order.data)
        assert (read["order"], read["customer"]) == (order.name, order.customer)


def test_some_customers_are_hot():
    shop = Shop(1)
    counts = Counter(shop.order().customer for _ in range(5_000))
    ranks = counts.most_common()
    assert ranks[0][1] > 10 * ranks[len(ranks) // 2][1]
    assert len(counts) > 200


def test_resellers_fill_one_shard_from_every_producer_and_a_split_relieves_it():
    shard = HashRange((1 << 128) // 3, 2 * (1 << 128) // 3)
    resellers = resellers_of(shard)
    assert all(hash_key_of(one) in shard for one in resellers)
    assert len(set(resellers)) == len(resellers)
    places = Counter((hash_key_of(one) >= shard.middle, producer_of(one)) for one in resellers)
    assert set(places) == {(half, number) for half in (False, True) for number in range(PRODUCERS)}
    assert len(set(places.values())) == 1
    assert len(Shop(1).large_order(resellers[0]).data) > 2_000


# ---- the scene


def test_a_rate_is_of_the_last_second():
    flow = Flow()
    flow.sample(10.0)
    assert flow.rate == 0.0
    flow.add(50)
    flow.sample(10.5)
    assert flow.rate == 100.0
    flow.add(50)
    flow.sample(11.0)
    assert flow.rate == 100.0
    flow.sample(12.0)
    assert flow.rate == 0.0
    assert flow.total == 100
    assert list(flow.history) == [0.0, 100.0, 100.0, 0.0]


def test_an_order_waits_until_it_is_handled():
    waiting = Waiting()
    waiting.add_put("1", "s", 10.0)
    waiting.add_put("2", "s", 11.0)
    assert (waiting.count("s"), waiting.lag("s", 12.0)) == (2, 2.0)
    assert waiting.add_handled("1", "s")
    assert (waiting.count("s"), waiting.lag("s", 12.0)) == (1, 1.0)
    assert not waiting.add_handled("1", "s")
    assert not waiting.are_handled(["1", "2"])
    assert waiting.add_handled("2", "s")
    assert waiting.are_handled(["1", "2"])
    assert (waiting.count("s"), waiting.lag("s", 12.0), waiting.lag("other", 12.0)) == (0, 0.0, 0.0)


def test_a_worker_may_be_quicker_than_the_receipt():
    waiting = Waiting()
    assert waiting.add_handled("1", "s")
    waiting.add_put("1", "s", 10.0)
    assert waiting.count("s") == 0


def test_children_stand_below_their_parents():
    scene = Scene(16.0, 2.0, 10.0)
    for number, start, parent in ((0, 0.0, None), (1, 0.5, None), (2, 0.0, 0), (3, 0.25, 0), (4, 0.0, 2), (5, 0.1, 2)):
        shard_id = f"shardId-{number:012}"
        above = None if parent is None else f"shardId-{parent:012}"
        scene.shards[shard_id] = ShardView(shard_id, start, 0.1, above)
    assert [branch + shard.name for branch, shard in scene.shard_tree()] == ["0", "├ 2", "│ ├ 4", "│ └ 5", "└ 3", "1"]


def test_words():
    assert (listed([]), listed(["1"]), listed(["1", "2"]), listed("123")) == ("", "1", "1 and 2", "1, 2 and 3")
    assert (shards_named(["1"]), shards_named(["1", "2"])) == ("shard 1", "shards 1 and 2")
    assert [counted(count, "shard") for count in (0, 1, 2_000)] == ["0 shards", "1 shard", "2,000 shards"]
    assert short("shardId-000000000012") == "12"
