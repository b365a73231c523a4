/* Fuzzes the reader of aggregates (src/shardline/_speedups/aggregate_format.h) alone, without Python.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
 *         -I src/shardline/_speedups tests/fuzz/aggregate_format.c -o build/fuzz/aggregate_format
 *     build/fuzz/aggregate_format -max_total_time=60
 */
#include <stdlib.h>

#include "aggregate_format.h"

/* As codec/aggregation.py passes it to bind_format. */
static const Format format = {{0xf3, 0x89, 0x9a, 0xc2}, 0x0a, 0x12, 0x1a, 0x08, 0x10, 0x1a, 0x22, 3};

static volatile uint8_t last; /* so that no read is optimized away */

/* Read every byte of a span: the sanitizer reports a span that leaves the input. */
static void touch(Span span)
{
    for (size_t i = 0; i < span.size; i++) {
        last ^= span.bytes[i];
    }
}

static void check(int holds)
{
    if (!holds) {
        abort();
    }
}

static void read_one(Span record)
{
    RecordFields fields, again;
    if (!read_record(&format, record, &fields, NULL)) {
        return;
    }
    check(fields.has_key_index && fields.has_payload && fields.tags_size <= record.size);
    touch(fields.payload);
    uint8_t *tags = malloc(fields.tags_size); /* a byte too many would be reported */
    if (tags == NULL && fields.tags_size > 0) {
        return;
    }
    check(read_record(&format, record, &again, tags));
    check(memcmp(&fields, &again, sizeof fields) == 0);
    touch((Span){tags, fields.tags_size});
    free(tags);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Cursor cursor = {data, data + size};
    const uint8_t *before = data;
    for (;;) {
        Span span = {NULL, 0};
        MessageField field = next_field(&format, &cursor, &span);
        check(cursor.at >= before && cursor.at <= data + size);
        if (field == END || field == BROKEN) {
            check(field == BROKEN || cursor.at == data + size);
            return 0;
        }
        check(cursor.at > before); /* it always advances */
        before = cursor.at;
        touch(span);
        if (field == RECORD) {
            read_one(span);
        }
    }
}
