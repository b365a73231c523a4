"""How a worker reads one shard: the loop around a reader that ``core/consumer/__init__`` describes."""

from fleet_scenario import passes

from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse, SubscribeToShardEvent
from shardline.core.clock import NEVER
from shardline.core.consumer import consumer_events as told
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.fanout_reader import FanOutReader
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.record_filter import leave_out
from shardline.core.error_codes import Failure
from shardline.core.requests import GetRecords, SubscribeToShard
from shardline.model.stream import StreamRef


class ShardReading:
    """One reader. It passes its pages to the hand-out."""

    def __init__(self, worker, gained):
        self.worker = worker
        self.shard = None  # the reader's number in the hand-out
        number = self.done = gained.checkpoint.sequence_number  # records at or before this position must not come again
        self.begin = None if number is None else (number.number, number.sub_sequence)
        self.began_at = worker.world.now
        self.delivered, self.told, self.handled = set(), set(), set()  # places of records
        self.furthest = (0, 0)  # the last of the delivered places
        self.reported, self.checked = None, 0  # the last watermark, and the places up to it
        self.reader = self._make_reader(
            StreamRef(worker.stream),
            gained.shard_id,
            gained.start,
            budget=worker.hand_out.budget,
            deaggregator=Deaggregator(
                worker.stream,
                gained.shard_id,
                hash_range=gained.hash_range,
                done=gained.checkpoint.sequence_number,
                drop=worker.config.out_of_range == "drop",
                window=worker.machine.held.window_of(gained.grant),
            ),
            trims=worker.machine.trims,
            lease=gained.grant,
        )

    def _make_reader(self, *place, **settings):
        config, worker = self.worker.config, self.worker
        pace = ReadPace(
            config.calls_per_second, config.bytes_per_second, config.idle_poll_interval, worker.rng, worker.now
        )
        return PollingReader(*place, pace=pace, page_max_records=config.page_max_records, **settings)

    def stop(self):
        """Stop reading, because the hand-out has stopped the reader. A response that is still on its way is ignored."""

    def go_on(self, armed_at=None):
        """Send the next request of the reader, or call this again when the request is due."""
        worker, reader = self.worker, self.reader
        if self.shard.is_stopping or (armed_at is not None and reader.next_deadline() != armed_at):
            return
        self._take_pages()
        request = reader.poll_request(worker.now)
        if request is not None:
            self._carry_out(request)
            return
        deadline = reader.next_deadline()
        if deadline != NEVER:
            worker.at_local(deadline, self.go_on, deadline)
        elif reader._blocked:
            worker.world.reached.add("prefetch full")

    def _carry_out(self, request):
        service = self.worker.world.service
        serve = service.get_records if isinstance(request, GetRecords) else service.get_shard_iterator
        self.worker.send(serve, (request,), self._answered)

    def _handle(self, answer):
        worker, reader = self.worker, self.reader
        if isinstance(answer, Failure):
            worker.world.reached.see_failure(answer)
            reader.handle_failure(answer, worker.now)
        elif isinstance(answer, GetShardIteratorResponse):
            reader.handle_iterator(answer, worker.now)
        else:
            assert isinstance(answer, GetRecordsResponse)
            self._see_gap()
            reader.handle_page(answer, worker.now)

    def _answered(self, answer):
        worker, reader, hand_out = self.worker, self.reader, self.worker.hand_out
        self._handle(answer)
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
        """Take the pages that there is room for. If some are left, the budget names the shard when there is more room."""
        while pages := self.reader.take_pages():
            if self.worker.world.fleet.user.filters:
                pages = [leave_out(page, [passes(record.data) for record in page.records]) for page in pages]
                if any(page.filtered and not page.records for page in pages):
                    self.worker.world.reached.add("a page of which no record passed the filter")
            self.worker.hand_out.handle_pages(self.shard, pages, self.worker.now)
            if self.reader.has_unopened:
                self.worker.world.reached.add("a page opened in slices")

    def _see_gap(self):
        """Pass the reader's place before this page to the oracle."""
        worker, since = self.worker, self.reader._unread_since
        if since is not None and self.reader._expected is None:
            worker.world.watch.see_page(self.reader.shard_id, worker.clock.world_time(since))


class FanOutReading(ShardReading):
    """One reader with a subscription. Events that come after it has given up the subscription are dropped."""

    subscription = None
    turn = 0  # the number of the pending request

    def _make_reader(self, *place, **settings):
        worker = self.worker
        arn = worker.world.service.consumer_arn
        return FanOutReader(*place, consumer_arn=arn, rng=worker.rng, now=worker.now, **settings)

    def stop(self):
        self._close()

    def _carry_out(self, request):
        worker, world = self.worker, self.worker.world
        if isinstance(request, SubscribeToShard):
            worker.send(world.service.subscribe, (request,), self._answered)
            return
        worker.at_local(worker.now + request.timeout, self._give_up, self.turn)
        self._look(self.turn)

    def _look(self, turn):
        """Act for the service: push an event if there is one, and check again later."""
        worker, world = self.worker, self.worker.world
        if turn != self.turn or worker.is_dead:
            return
        answer, late = world.service.next_event(self.subscription, world.time)
        if answer == "nothing":
            world.at(world.now + late, self._look, turn)
        elif answer == "stalled":
            world.reached.add("a subscription stalled")
        else:
            world.at(world.now + late + world.service.latency(), worker.run, self._event_came, turn, answer)

    def _event_came(self, turn, answer):
        if turn == self.turn:
            self.turn += 1
            self._answered(answer)
        elif isinstance(answer, SubscribeToShardEvent):
            self.worker.world.reached.add("an event of an older subscription came too late")

    def _give_up(self, turn):
        if turn == self.turn:
            self.turn += 1
            self.worker.world.reached.add("a silent subscription was replaced")
            self._answered("silence")

    def _handle(self, answer):
        worker, reader, reached = self.worker, self.reader, self.worker.world.reached
        if isinstance(answer, Failure):
            is_live = reader.is_subscribed
            reached.add("a subscription broke" if is_live else "a subscription was refused")
            if answer.code == "ResourceInUseException":
                reached.add("a live subscription was taken over" if is_live else "a subscription came too early")
            reader.handle_failure(answer, worker.now)
        elif answer == "silence":
            reader.handle_silence(worker.now)
        elif answer is None:
            reached.add("a subscription was ended by the service")
            reader.handle_end(worker.now)
        elif isinstance(answer, SubscribeToShardEvent):
            self._see_gap()
            before = reader.position
            reader.handle_event(answer, worker.now)
            if not answer.records and reader.position != before:
                reached.add("an event without records moved the position")
            if answer.continuation_sequence_number is None:
                reached.add("a shard was read to its end by a subscription")
        elif self.shard.is_stopping:
            worker.world.service.close(answer)
        else:
            self.subscription = answer
            reader.handle_subscribed(worker.now)
            others = [other for other in worker.world.processes if other.plan.fan_out != worker.plan.fan_out]
            if any(other.hand_out.shards for other in others):
                reached.add("both kinds of readers in one group")
        if not reader.is_subscribed:
            self._close()

    def _close(self):
        self.turn += 1
        if self.subscription is not None:
            self.worker.world.service.close(self.subscription)
            self.subscription = None
