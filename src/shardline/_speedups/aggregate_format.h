/* Reads the protobuf message of an aggregate. Plain C, without Python.
 *
 * codec/aggregation.py describes the format, and passes the magic bytes and the field tags to bind_format. The bytes come
 * from other writers, so nothing about them is trusted. A Cursor never leaves its bytes: every read
 * compares with the end first, and a length that reaches beyond the end makes the message broken. */
#ifndef SHARDLINE_AGGREGATE_FORMAT_H
#define SHARDLINE_AGGREGATE_FORMAT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VARINT_MAX_BYTES 10

/* The magic bytes of an aggregate, the field tags of AggregatedRecord and of Record, and the highest field number that
 * is refused under any other tag. */
typedef struct {
    uint8_t magic[4];
    uint8_t key, hash_key, record;
    uint8_t key_index, hash_key_index, data, tag;
    uint8_t known_fields;
} Format;

/* The bytes of a message that have not been read yet. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* A part of the message. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
} Span;

/* The kind of the next field. END and BROKEN are not fields: the message has ended, or is broken. */
typedef enum { BROKEN, END, KEY, HASH_KEY, RECORD } MessageField;

typedef struct {
    int has_key_index, has_hash_key_index, has_payload;
    uint64_t key_index, hash_key_index;
    Span payload;
    size_t tags_size; /* the length of all fields that hold tags, with their heads */
} RecordFields;

/* Read a varint of at most 10 bytes and 64 bits. Returns 0 if there is no such varint. */
static inline int read_varint(Cursor *cursor, uint64_t *value)
{
    uint64_t sum = 0;
    for (int place = 0; place < VARINT_MAX_BYTES; place++) {
        if (cursor->at == cursor->end) {
            return 0;
        }
        uint8_t byte = *cursor->at++;
        if (place == VARINT_MAX_BYTES - 1 && byte > 1) {
            return 0; /* more than 64 bits, or more than 10 bytes */
        }
        sum |= (uint64_t)(byte & 0x7F) << (7 * place);
        if (byte < 0x80) {
            *value = sum;
            return 1;
        }
    }
    return 0;
}

/* Move past `size` bytes. Returns 0 if fewer bytes are left. */
static inline int skip(Cursor *cursor, uint64_t size)
{
    if (size > (uint64_t)(cursor->end - cursor->at)) {
        return 0;
    }
    cursor->at += size;
    return 1;
}

/* Read a length and that many bytes. Returns 0 if the message ends earlier. */
static inline int read_span(Cursor *cursor, Span *span)
{
    uint64_t size;
    if (!read_varint(cursor, &size)) {
        return 0;
    }
    span->bytes = cursor->at;
    span->size = (size_t)size;
    return skip(cursor, size);
}

/* Skip a field with its tag. A known field is refused: its tag would have been recognised, unless the tag has a wrong
 * wire type or is padded. Groups are refused, too. Returns 0 if the message is broken. */
static inline int skip_unknown(const Format *format, Cursor *cursor)
{
    uint64_t tag, number;
    Span span;
    if (!read_varint(cursor, &tag) || tag >> 3 <= format->known_fields || tag >> 32 != 0) {
        return 0;
    }
    switch (tag & 7) {
    case 0:
        return read_varint(cursor, &number);
    case 1:
        return skip(cursor, 8);
    case 2:
        return read_span(cursor, &span);
    case 5:
        return skip(cursor, 4);
    default:
        return 0;
    }
}

/* Return the next known field of an AggregatedRecord, and its bytes. */
static inline MessageField next_field(const Format *format, Cursor *cursor, Span *span)
{
    while (cursor->at < cursor->end) {
        uint8_t tag = *cursor->at;
        if (tag == format->record || tag == format->key || tag == format->hash_key) {
            cursor->at++;
            MessageField field = tag == format->record ? RECORD : tag == format->key ? KEY : HASH_KEY;
            return read_span(cursor, span) ? field : BROKEN;
        }
        if (!skip_unknown(format, cursor)) {
            return BROKEN;
        }
    }
    return END;
}

/* Read one Record. If a field occurs twice, the last one counts. Returns 0 if the record is broken or has no key index
 * or no data. If `tags` is not NULL, the fields that hold tags are copied there. */
static inline int read_record(const Format *format, Span record, RecordFields *fields, uint8_t *tags)
{
    Cursor cursor = {record.bytes, record.bytes + record.size};
    memset(fields, 0, sizeof *fields);
    while (cursor.at < cursor.end) {
        const uint8_t *begin = cursor.at++;
        Span span;
        int is_read;
        if (*begin == format->key_index) {
            is_read = fields->has_key_index = read_varint(&cursor, &fields->key_index);
        }
        else if (*begin == format->data) {
            is_read = fields->has_payload = read_span(&cursor, &fields->payload);
        }
        else if (*begin == format->hash_key_index) {
            is_read = fields->has_hash_key_index = read_varint(&cursor, &fields->hash_key_index);
        }
        else if (*begin == format->tag) {
            is_read = read_span(&cursor, &span);
            size_t size = (size_t)(cursor.at - begin);
            if (is_read && tags != NULL) {
                memcpy(tags + fields->tags_size, begin, size);
            }
            fields->tags_size += size;
        }
        else {
            cursor.at = begin;
            is_read = skip_unknown(format, &cursor);
        }
        if (!is_read) {
            return 0;
        }
    }
    return fields->has_key_index && fields->has_payload;
}

#endif
