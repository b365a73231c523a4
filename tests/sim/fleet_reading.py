"""How a worker reads one shard: the loop around a ``PollingReader`` that ``core/consumer/__init__`` describes."""

from producer_endpoint import STREAM

from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import NEVER
from shardline.core.consumer import consumer_events as told
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.failures import Failure
from shardline.core.requests import GetRecords
from shardline.model.stream import StreamRef


class ShardReading:
    """One reader. What it brings goes to the hand-out."""

    def __init__(self, worker, gained):
        self.worker = worker
        self.shard = None  # that of the hand-out
        number = self.done = gained.checkpoint.sequence_number  # what is at or before it must not come again
        self.begin = None if number is None else (number.number, number.sub_sequence)
        self.began_at = worker.world.now
        self.delivered, self.told = set(), set()  # places
        self.reported, self.checked = None, 0  # the last watermark, and the places up to it
        config = worker.config
        self.reader = PollingReader(
            StreamRef(STREAM),
            gained.shard_id,
            gained.start,
            budget=worker.hand_out.budget,
            pace=ReadPace(
                config.calls_per_second, config.bytes_per_second, config.idle_poll_interval, worker.chance, worker.now
            ),
            deaggregator=Deaggregator(
                STREAM,
                gained.shard_id,
                hash_range=gained.hash_range,
                done=gained.checkpoint.sequence_number,
                drop=config.out_of_range == "drop",
            ),
            trims=worker.machine.trims,
            lease=gained.grant,
            page_max_records=config.page_max_records,
        )

    def go_on(self, armed_at=None):
        """Send what the reader wants to be sent, or come again when it does."""
        worker, reader = self.worker, self.reader
        if self.shard.is_stopping or (armed_at is not None and reader.next_deadline() != armed_at):
            return
        self._take_pages()
        request = reader.poll_request(worker.now)
        if request is not None:
            service = worker.world.service
            serve = service.get_records if isinstance(request, GetRecords) else service.get_shard_iterator
            worker.send(serve, (request,), self._answered)
            return
        deadline = reader.next_deadline()
        if deadline != NEVER:
            worker.at_local(deadline, self.go_on, deadline)
        elif reader._blocked:
            worker.world.reached.add("prefetch full")

    def _answered(self, answer):
        worker, reader, hand_out = self.worker, self.reader, self.worker.hand_out
        if isinstance(answer, Failure):
            worker.world.reached.see_failure(answer)
            reader.handle_failure(answer, worker.now)
        elif isinstance(answer, GetShardIteratorResponse):
            reader.handle_iterator(answer, worker.now)
        else:
            assert isinstance(answer, GetRecordsResponse)
            self._see_gap()
            reader.handle_page(answer, worker.now)
        for event in reader.take_events():
            worker.note(type(event).__name__, *event[:2])
            if isinstance(event, told.PositionLost | told.RecordsTrimmed):
                worker.world.reached.add("trimmed position")
                worker.world.watch.see_position_lost(reader.shard_id, event, self.done)
                self.done = None if isinstance(event, told.PositionLost) else self.done
        if worker.machine.trims.summary_by < NEVER:
            worker.wake()
        hand_out.handle_read()
        self._take_pages()
        if not self.shard.is_stopping:
            if reader.is_over:
                hand_out.handle_reader_over(self.shard, worker.now)
            else:
                self.go_on()
        worker.drain()

    def _take_pages(self):
        """What there is room for. If that is not all of it, the budget names the shard when there is more room."""
        while pages := self.reader.take_pages():
            self.worker.hand_out.handle_pages(self.shard, pages, self.worker.now)
            if self.reader.has_unopened:
                self.worker.world.reached.add("a page opened in slices")

    def _see_gap(self):
        """Tell the oracle where the reader stood when this page came."""
        worker, since = self.worker, self.reader._unread_since
        if since is not None and self.reader._expected is None:
            worker.world.watch.see_page(self.reader.shard_id, worker.clock.world_time(since))
