"""Does our server answer as the third-party server kinesis-local 0.6.2 does, field by field?

The same calls go to both through boto3: written cases, and sequences that a seed draws. Every difference is listed in
``differences.py`` with the reason and its source, or it is a bug. Every listed difference is observed here, so that the
table stays accurate. ``docs/tested/differences.md`` shows that table.
"""

from pathlib import Path

import pytest
from tests.interop import differences as table
from tests.interop.both_servers import Both, StuckError
from tests.interop.drawn_sequences import walk
from tests.interop.written_cases import CASES

from shardline.server.model.settings import Delays
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
DIFFERENCES = table.DIFFERENCES

SEEDS = range(4)
ATTEMPTS = 4


@pytest.fixture(scope="module")
def our_url():
    delays = Delays(create=0.05, delete=0.05, update=0.05, register=0.05, deregister=0.05)
    with LocalKinesis(limits=False, delays=delays) as kinesis:
        yield kinesis.endpoint_url


@pytest.fixture
def both(kinesis_local, our_url):
    servers = Both(kinesis_local.http_url, our_url)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def seen():
    """The observed part of the table: the operations and the cases of each entry."""
    return [(set(), set()) for _ in DIFFERENCES]


def unlisted(observed, seen):
    """Return the differences that the table does not explain, and note those that it does."""
    rest = []
    for one in observed:
        entries = [at for at, entry in enumerate(DIFFERENCES) if entry.explains(one)]
        for at in entries:
            seen[at][0].add(one.operation)
            seen[at][1].add(one.case)
        if not entries:
            rest.append(one)
    return rest


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_servers_differ_only_as_listed(both, stream_name, seen, case):
    """kinesis-local sometimes fails on a busy machine; a real difference shows in every attempt."""
    odd = None
    for attempt in range(ATTEMPTS):
        both.observed.clear()
        try:
            case(both, f"{stream_name}-{attempt}")
        except StuckError:
            continue
        found = unlisted(both.observed, seen)
        odd = found if odd is None else [one for one in found if one in odd]
        if not odd:
            break
    assert odd == [], "None: it got stuck in every attempt"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_servers_differ_only_as_listed_whatever_a_seed_draws(both, stream_name, seen, seed):
    walk(both, stream_name, seed)
    assert unlisted(both.observed, seen) == []
    assert both.calls > 80
    assert both.theirs.order() == both.ours.order()


def test_every_listed_difference_was_seen(request, seen):
    ran = {item.name for item in request.session.items if item.path == Path(__file__)}
    if not {f"test_the_servers_differ_only_as_listed[{case.__name__}]" for case in CASES} <= ran:
        return  # some of the cases were not selected
    for entry, (operations, cases) in zip(DIFFERENCES, seen, strict=True):
        assert operations == set(entry.operations), entry
        assert cases == set(entry.cases) or (not entry.cases and cases), entry


def test_a_difference_that_is_not_listed_is_seen(both, stream_name, seen):
    both.create(stream_name, 1)
    both.ours.client.add_tags_to_stream(StreamName=stream_name, Tags={"ours": "alone"})
    both("list_tags_for_stream", StreamName=stream_name)
    assert [(one.operation, one.path) for one in unlisted(both.observed, seen)] == [("list_tags_for_stream", "Tags")]


def test_every_listed_difference_rests_on_what_aws_says_or_answered():
    for entry in DIFFERENCES:
        assert entry.source.startswith("https://docs.aws.amazon.com/"), entry
        assert entry.basis == table.DOCUMENTED or (entry.basis == table.RECORDED and entry.records), entry
