// Puts records with the Kinesis Producer Library and measures the CPU of the JVM and of the native daemon together.
//
// Its protocol is that of benchmarks/producer_clients.py: each line on standard input starts a round of that many records,
// and the program answers with a line of JSON. The records of a round come in slices, which are generated outside the
// measurement. One thread puts the records of a slice in a loop, then waits for every result and checks that it succeeded.
//
// Every record proves its own integrity: its data begins with its number (8 bytes), the UUID that is its partition key
// (16 bytes), and its explicit hash key or 16 zero bytes.
//
//     java -cp ... KplClient rounds  PORT SIZE SLICE TRACKED EXPLICIT
//     java -cp ... KplClient latency PORT SIZE SECONDS

import com.google.common.util.concurrent.ListenableFuture;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.KinesisProducerConfiguration;
import software.amazon.kinesis.producer.UserRecordResult;

public final class KplClient {
    private static final String STREAM = "bench";
    private static final long LIFTED = 100_000_000; // percent of a shard's limits
    private static final int NUMBERED_BYTES = 40;
    private static final double TICKS_PER_SECOND = 100.0; // what /proc counts CPU in, on every Linux
    private static final int RATE = 1_000; // records per second, when latency is measured

    private record Item(String key, String explicitHashKey, ByteBuffer data) {}

    private final KinesisProducer producer;
    private final int size;
    private final Random random = new Random(7);
    private long number = 0;

    private KplClient(KinesisProducerConfiguration settings, int size) {
        this.producer = new KinesisProducer(settings);
        this.size = size;
    }

    private static KinesisProducerConfiguration settings(int port) {
        // The daemon takes a host name, a port and nothing else, and always speaks TLS.
        return new KinesisProducerConfiguration()
            .setKinesisEndpoint("127.0.0.1")
            .setKinesisPort(port)
            .setCloudwatchEndpoint("127.0.0.1")
            .setCloudwatchPort(port)
            .setVerifyCertificate(false)
            .setRegion("us-east-1")
            .setMetricsLevel("none")
            .setLogLevel("warning")
            .setCredentialsProvider(StaticCredentialsProvider.create(
                AwsBasicCredentials.create(System.getenv("AWS_ACCESS_KEY_ID"), System.getenv("AWS_SECRET_ACCESS_KEY"))));
    }

    private Item newItem(boolean explicit) {
        byte[] data = new byte[Math.max(size, NUMBERED_BYTES)];
        random.nextBytes(data);
        UUID key = new UUID(random.nextLong() & ~0xF000L | 0x4000L, random.nextLong() & ~(3L << 62) | 1L << 63);
        byte[] hash = new byte[16];
        if (explicit) {
            random.nextBytes(hash);
        }
        ByteBuffer.wrap(data).putLong(number++).putLong(key.getMostSignificantBits())
            .putLong(key.getLeastSignificantBits()).put(hash);
        return new Item(key.toString(), explicit ? new BigInteger(1, hash).toString() : null, ByteBuffer.wrap(data));
    }

    private ListenableFuture<UserRecordResult> put(Item item) {
        return producer.addUserRecord(STREAM, item.key(), item.explicitHashKey(), item.data());
    }

    private void putSlice(List<Item> items) throws Exception {
        List<ListenableFuture<UserRecordResult>> results = new ArrayList<>(items.size());
        for (Item item : items) {
            results.add(put(item));
        }
        for (ListenableFuture<UserRecordResult> result : results) {
            check(result.get().isSuccessful());
        }
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new IllegalStateException("a record was not delivered");
        }
    }

    private static Path statOf(ProcessHandle process) {
        return Path.of("/proc", Long.toString(process.pid()), "stat");
    }

    private static ProcessHandle daemon() {
        return ProcessHandle.current().children()
            .filter(child -> child.info().command().orElse("").contains("kinesis_producer"))
            .findFirst().orElseThrow(() -> new IllegalStateException("the daemon does not run"));
    }

    private static double cpuSeconds(ProcessHandle process) throws IOException {
        String stat = Files.readString(statOf(process), StandardCharsets.US_ASCII);
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" "); // from the third field on
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / TICKS_PER_SECOND;
    }

    private static void print(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
        System.out.flush();
    }

    private static void ready() {
        print("{\"ready\": \"java %s\", \"daemon\": %d}", System.getProperty("java.version"), daemon().pid());
    }

    private void rounds(int sliceRecords, boolean explicit) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        ProcessHandle daemon = daemon();
        ProcessHandle self = ProcessHandle.current();
        for (String line; (line = input.readLine()) != null;) {
            int count = Integer.parseInt(line.strip());
            double jvm = 0;
            double native_ = 0;
            double seconds = 0;
            for (int begin = 0; begin < count; begin += sliceRecords) {
                List<Item> items = new ArrayList<>();
                for (int place = 0; place < Math.min(sliceRecords, count - begin); place++) {
                    items.add(newItem(explicit && place % 10 == 0));
                }
                System.gc();
                double jvmBefore = cpuSeconds(self);
                double nativeBefore = cpuSeconds(daemon);
                long startedAt = System.nanoTime();
                putSlice(items);
                seconds += (System.nanoTime() - startedAt) / 1e9;
                native_ += cpuSeconds(daemon) - nativeBefore;
                jvm += cpuSeconds(self) - jvmBefore;
            }
            print("{\"records\": %d, \"cpu\": %f, \"jvm\": %f, \"seconds\": %f}", count, jvm + native_, jvm, seconds);
        }
    }

    /** Puts at a steady rate. A latency counts from when the record was due, and those of the first second do not count. */
    private void latency(int seconds) throws Exception {
        List<Item> items = new ArrayList<>();
        for (int place = 0; place < (seconds + 1) * RATE; place++) {
            items.add(newItem(false));
        }
        for (int place = 0; place < 20; place++) { // the classes are loaded and compiled, and the connection is open
            putSlice(items.subList(0, 1_000));
        }
        double[] took = new double[items.size()];
        CountDownLatch left = new CountDownLatch(items.size());
        AtomicInteger failed = new AtomicInteger();
        long beginsAt = System.nanoTime() + 100_000_000;
        for (int place = 0; place < items.size(); place++) {
            long dueAt = beginsAt + place * 1_000_000_000L / RATE;
            long early = dueAt - System.nanoTime();
            if (early > 0) {
                Thread.sleep(early / 1_000_000, (int) (early % 1_000_000));
            }
            int at = place;
            ListenableFuture<UserRecordResult> result = put(items.get(place));
            result.addListener(() -> {
                took[at] = (System.nanoTime() - dueAt) / 1e6;
                try {
                    failed.addAndGet(result.get().isSuccessful() ? 0 : 1);
                } catch (Exception error) {
                    failed.incrementAndGet();
                }
                left.countDown();
            }, Runnable::run);
        }
        left.await();
        check(failed.get() == 0);
        double[] counted = Arrays.copyOfRange(took, RATE, took.length);
        Arrays.sort(counted);
        print("{\"p50\": %f, \"p90\": %f, \"p99\": %f, \"p99.9\": %f, \"max\": %f}", at(counted, 0.5), at(counted, 0.9),
            at(counted, 0.99), at(counted, 0.999), counted[counted.length - 1]);
    }

    private static double at(double[] sorted, double share) {
        return sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))];
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        int size = Integer.parseInt(arguments[2]);
        int number = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("rounds")) {
            // The tracker of the oldest future removes from a queue in linear time. The KPL allows to switch it off.
            KinesisProducerConfiguration settings = settings(port).setRateLimit(LIFTED)
                .setEnableOldestFutureTracker(Boolean.parseBoolean(arguments[4]));
            KplClient client = new KplClient(settings, size);
            ready();
            client.rounds(number, Boolean.parseBoolean(arguments[5]));
        } else {
            new KplClient(settings(port), size).latency(number);
        }
        System.exit(0); // ends the daemon, too
    }
}
