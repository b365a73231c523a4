// A worker of a drill that reads with the Kinesis Client Library (KCL) that is on the class path: 2.x or 3.x.
//
// It writes the journal of a drill's worker (tests/drills/worker.py), so that the same reader counts what both did, and it
// commits after every batch. Endpoints and credentials come from the environment. CloudWatch is switched off.
//
//     java -cp ... KclWorker STREAM APPLICATION WORKER JOURNAL POLLING|FANOUT IDLE_MILLIS

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Locale;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

public final class KclWorker {
    private KclWorker() {}

    /** Every line is one write to a file that is opened for appending, so that a killed worker leaves all of its lines. */
    private static final class Journal {
        private final FileChannel file;

        Journal(String path) throws IOException {
            file = FileChannel.open(Path.of(path), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }

        synchronized void write(String kind, Object... cells) {
            StringBuilder line = new StringBuilder(kind);
            line.append(String.format(Locale.ROOT, "\t%.6f", System.nanoTime() / 1e9)); // CLOCK_MONOTONIC
            for (Object cell : cells) {
                line.append('\t').append(cell);
            }
            try {
                file.write(ByteBuffer.wrap(line.append('\n').toString().getBytes(StandardCharsets.UTF_8)));
            } catch (IOException error) {
                Runtime.getRuntime().halt(3);
            }
        }
    }

    private static final class Processor implements ShardRecordProcessor {
        private final Journal journal;
        private String shard;

        Processor(Journal journal) {
            this.journal = journal;
        }

        private void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
                journal.write("E", "Checkpointed", shard, "");
            } catch (ShutdownException | InvalidStateException error) {
                journal.write("E", "CheckpointFailed", shard, error.getClass().getSimpleName());
            }
        }

        @Override
        public void initialize(InitializationInput input) {
            shard = input.shardId();
            journal.write("E", "LeaseGained", shard, input.extendedSequenceNumber());
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            List<KinesisClientRecord> records = input.records();
            for (KinesisClientRecord record : records) {
                String name = StandardCharsets.US_ASCII.decode(record.data()).toString();
                journal.write("R", shard, "'" + record.partitionKey() + "'", name, record.sequenceNumber(),
                    record.subSequenceNumber());
            }
            if (!records.isEmpty()) {
                checkpoint(input.checkpointer());
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {
            journal.write("E", "LeaseLost", shard, "");
        }

        @Override
        public void shardEnded(ShardEndedInput input) {
            checkpoint(input.checkpointer());
            journal.write("E", "shardEnded", shard, "");
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {
            checkpoint(input.checkpointer());
            journal.write("E", "shutdownRequested", shard, "");
        }
    }

    public static void main(String[] arguments) throws Exception {
        String stream = arguments[0];
        Journal journal = new Journal(arguments[3]);
        KinesisAsyncClient kinesis = KinesisClientUtil.createKinesisAsyncClient(KinesisAsyncClient.builder());
        SingleStreamTracker tracker = new SingleStreamTracker(stream,
            InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON));
        ConfigsBuilder configs = new ConfigsBuilder(tracker, arguments[1], kinesis, DynamoDbAsyncClient.create(),
            CloudWatchAsyncClient.create(), arguments[2], () -> new Processor(journal));
        boolean isFanOut = arguments[4].equals("FANOUT");
        Scheduler scheduler = new Scheduler(
            configs.checkpointConfig(),
            configs.coordinatorConfig(),
            configs.leaseManagementConfig(),
            configs.lifecycleConfig(),
            configs.metricsConfig().metricsLevel(MetricsLevel.NONE),
            configs.processorConfig(),
            configs.retrievalConfig().retrievalSpecificConfig(isFanOut
                ? new FanOutConfig(kinesis).streamName(stream).applicationName(arguments[1])
                : new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(Long.parseLong(arguments[5]))));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                scheduler.startGracefulShutdown().get();
            } catch (Exception error) {
                journal.write("E", "ShutdownFailed", "", error.getClass().getSimpleName());
            }
        }));
        scheduler.run();
    }
}
