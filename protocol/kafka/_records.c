/* Walk through the records of a Kafka record batch, and check each of them as Kafka's LogValidator does.
 *
 * protocol/kafka/record_walk.py is the same function in Python, for installations without a C compiler, and explains
 * what is checked. tests/unit/protocol/kafka/test_record_walk.py holds both to the same results: change them together.
 *
 *     record   size varint | attributes i8 | timestamp delta varlong | offset delta varint |
 *              key size varint, key | value size varint, value | header count varint,
 *              { key size varint, key | value size varint, value }                            size -1: null
 *
 * Bounds: only `read_varint` and `is_name` look into the body, and each of them compares the position with the
 * size of the body first. A position may lie behind the body, because a field is skipped without a look at the rest of
 * the body; the next read then reports it. Positions cannot overflow: a size has at most 35 bits, a position that is
 * skipped from is at most the size of the body, and a size is added to it once.
 *
 * Speed: the position is a local variable of `check_record`, and the next record is read from where this one ends by its
 * size, so that the processor can begin with it before it has added up the fields of this one.
 *
 * The module uses the stable ABI of Python 3.11, so one build serves all later versions.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define SIZE_BYTES_MAX 5      /* ByteUtils.java#readVarint */
#define TIMESTAMP_BYTES_MAX 9 /* Those of record_batch.TIMESTAMP_MS_MAX are not further apart; Kafka allows ten bytes. */
#define NAMES_MAX 8

#ifdef __GNUC__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE
#endif

/* What is wrong with a record. record_walk.py has the same numbers in `Fault`, and record_check.py the messages. */
enum fault {
    FAULT_NONE = 0,
    FAULT_END = 1,          /* The body ends within the record. */
    FAULT_VARINT = 2,       /* A varint has too many bytes. */
    FAULT_OFFSET = 3,       /* The offset delta is not the record's index. */
    FAULT_KEY = 4,          /* The size of the key is below -1. */
    FAULT_VALUE = 5,        /* The size of the value is below -1. */
    FAULT_COUNT = 6,        /* The count of the headers is negative. */
    FAULT_HEADER_KEY = 7,   /* The size of a header's key is negative; unlike the others it must not be null. */
    FAULT_HEADER_VALUE = 8, /* The size of a header's value is below -1. */
    FAULT_SIZE = 9,         /* The fields do not end where the record's size says. */
    FAULT_HEADERS = 10,     /* The batch has more headers than are allowed. */
    FAULT_REST = 11,        /* Bytes follow the last record. */
};

struct name {
    const char *text;
    Py_ssize_t size;
};

struct walk {
    const uint8_t *body;
    int64_t size;
    int64_t at, value; /* with a fault: where it was found, and the value that is wrong */

    int64_t headers, headers_max;
    int64_t earliest, latest; /* of the timestamp deltas */
    int has_null_key;

    const struct name *names; /* the beginnings of header keys that are looked for */
    Py_ssize_t name_count;
    int has_name;
};

static enum fault found(struct walk *walk, enum fault fault, int64_t at, int64_t value)
{
    walk->at = at;
    walk->value = value;
    return fault;
}

/* Read a zig-zag varint of any size. Not inlined, because most varints have one or two bytes. */
static NOINLINE enum fault read_long_varint(struct walk *walk, int64_t *at, int bytes_max, int64_t *value)
{
    const int64_t start = *at;
    uint64_t bits = 0;
    for (int i = 0; i < bytes_max; i++) {
        if (start + i >= walk->size)
            return found(walk, FAULT_END, walk->size, 0);
        const uint8_t byte = walk->body[start + i];
        bits |= (uint64_t)(byte & 0x7f) << (7 * i); /* At most 63 bits, because bytes_max is at most 9. */
        if (byte < 0x80) {
            *at = start + i + 1;
            *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
            return FAULT_NONE;
        }
    }
    return found(walk, FAULT_VARINT, start, bytes_max);
}

/* Read a zig-zag varint at *at into *value. */
static inline enum fault read_varint(struct walk *walk, int64_t *at, int bytes_max, int64_t *value)
{
    const int64_t start = *at;
    if (start + 1 < walk->size) {
        int bits = walk->body[start];
        int size = 1;
        if (bits >= 0x80) {
            bits += (walk->body[start + 1] << 7) - 0x80;
            size = 2;
        }
        if (bits < 0x4000) { /* The second byte is the last one. */
            *at = start + size;
            *value = (bits >> 1) ^ -(bits & 1);
            return FAULT_NONE;
        }
    }
    return read_long_varint(walk, at, bytes_max, value);
}

/* Skip a field with its size, which is put into *size; size_min is -1 where the field may be null. */
static inline enum fault skip_field(struct walk *walk, int64_t *at, int64_t size_min, enum fault fault, int64_t *size)
{
    const enum fault end = read_varint(walk, at, SIZE_BYTES_MAX, size);
    if (end)
        return end;
    if (*size < size_min)
        return found(walk, fault, *at, *size);
    if (*size > 0)
        *at += *size;
    return FAULT_NONE;
}

/* Tell whether the header key from `at` on begins with one of the names. */
static int is_name(const struct walk *walk, int64_t at, int64_t size)
{
    if (size > walk->size - at)
        return 0; /* The key does not lie in the body: the next read reports it. */
    for (Py_ssize_t i = 0; i < walk->name_count; i++) {
        const struct name *name = &walk->names[i];
        if (size >= name->size && memcmp(walk->body + at, name->text, (size_t)name->size) == 0)
            return 1;
    }
    return 0;
}

static enum fault skip_headers(struct walk *walk, int64_t *at, int64_t count)
{
    int64_t size;
    enum fault fault;
    if (count < 0)
        return found(walk, FAULT_COUNT, *at, count);
    walk->headers += count; /* No overflow: the sum before it is within the limit, and a count has at most 35 bits. */
    if (walk->headers > walk->headers_max)
        return found(walk, FAULT_HEADERS, *at, 0);
    for (; count > 0; count--) {
        if ((fault = skip_field(walk, at, 0, FAULT_HEADER_KEY, &size)))
            return fault;
        if (!walk->has_name && is_name(walk, *at - size, size))
            walk->has_name = 1;
        if ((fault = skip_field(walk, at, -1, FAULT_HEADER_VALUE, &size)))
            return fault;
    }
    return FAULT_NONE;
}

/* Check the record at *next; then *next is where it ends. */
static inline enum fault check_record(struct walk *walk, int64_t *next, int64_t index)
{
    int64_t at = *next, size, end, delta;
    enum fault fault;
    if ((fault = read_varint(walk, &at, SIZE_BYTES_MAX, &size)))
        return fault;
    end = at + size;
    if (end > walk->size || at >= walk->size)
        return found(walk, FAULT_END, walk->size, 0);
    at++; /* The attributes have no meaning yet. */
    if ((fault = read_varint(walk, &at, TIMESTAMP_BYTES_MAX, &delta)))
        return fault;
    if (delta < walk->earliest)
        walk->earliest = delta;
    if (delta > walk->latest)
        walk->latest = delta;
    if ((fault = read_varint(walk, &at, SIZE_BYTES_MAX, &delta)))
        return fault;
    if (delta != index)
        return found(walk, FAULT_OFFSET, at, delta);
    if ((fault = skip_field(walk, &at, -1, FAULT_KEY, &size)))
        return fault;
    walk->has_null_key |= size < 0;
    if ((fault = skip_field(walk, &at, -1, FAULT_VALUE, &size)))
        return fault;
    if ((fault = read_varint(walk, &at, SIZE_BYTES_MAX, &size)))
        return fault;
    if (size != 0 && (fault = skip_headers(walk, &at, size)))
        return fault;
    if (at != end)
        return found(walk, FAULT_SIZE, at, end);
    *next = end;
    return FAULT_NONE;
}

static PyObject *walk_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data;
    Py_ssize_t start, count, headers_max;
    PyObject *tuple, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nnnO!:walk", &data, &start, &count, &headers_max, &PyTuple_Type, &tuple))
        return NULL;

    struct name names[NAMES_MAX];
    const Py_ssize_t name_count = PyTuple_Size(tuple);
    if (start < 0 || start > data.len || name_count > NAMES_MAX) {
        PyErr_SetString(PyExc_ValueError, "start is outside of the data, or there are too many names");
        goto done;
    }
    for (Py_ssize_t i = 0; i < name_count; i++) {
        char *text;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &text, &names[i].size) < 0)
            goto done;
        names[i].text = text;
    }

    struct walk walk = {
        .body = (const uint8_t *)data.buf + start,
        .size = data.len - start,
        .earliest = INT64_MAX,
        .latest = INT64_MIN,
        .headers_max = headers_max,
        .names = names,
        .name_count = name_count,
    };
    enum fault fault = FAULT_NONE;
    int64_t index = 0, at = 0;
    while (index < count && (fault = check_record(&walk, &at, index)) == FAULT_NONE)
        index++;
    if (fault == FAULT_NONE && at != walk.size)
        fault = found(&walk, FAULT_REST, at, 0);
    if (fault == FAULT_NONE)
        result = Py_BuildValue(
            "(LLLOO)", (long long)walk.earliest, (long long)walk.latest, (long long)walk.headers,
            walk.has_null_key ? Py_True : Py_False, walk.has_name ? Py_True : Py_False);
    else
        result = Py_BuildValue(
            "(iLLL)", (int)fault, (long long)index, (long long)walk.at, (long long)walk.value);
done:
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"walk", walk_records, METH_VARARGS, "Walk through the records of a batch; see protocol/kafka/record_walk.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_records", .m_doc = "The walk through a batch's records.", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__records(void)
{
    return PyModule_Create(&module);
}
