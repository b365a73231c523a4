"""A producer without a network, whose puts take the compiled path."""

from shardline._speedups import native, pure_twins
from shardline.aio.producer.delivery import Delivery
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_config import ProducerConfig
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH

PureRoom = pure_twins["Room"]
LOOP = object()


async def slowly(self, data, *, key=None, **options):
    """Return what was passed to the pure method."""
    self.slow.append((data, key, options))
    return "slow"


def slowly_blocking(self, data, *, key=None, **options):
    self.slow.append((data, key, options))
    return "slow"


def make_class():
    """Return the class. It exists only where the extension does."""

    class FakeProducer(native.Putter):
        put = native.make_method("put_async", slowly)
        put_blocking = native.make_method("put_blocking", slowly_blocking)

    return FakeProducer


def putter(records=1_000, size=100_000, **settings):
    """Return a producer whose gate lets this many records and bytes through."""
    made = make_class()()
    made.slow = []
    made._intake = intake = Intake(ProducerConfig(**settings))
    intake.mark(records, size)
    made._delivery_type, made._loop, made._running_loop = Delivery, LOOP, lambda: LOOP
    made._ttl, made._until_yield, made._key_max_length = 30.0, 10_000, PARTITION_KEY_MAX_LENGTH
    return made


def sent(awaitable):
    """Return the result of an awaitable that does not wait."""
    try:
        awaitable.send(None) if hasattr(awaitable, "send") else next(awaitable)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")
