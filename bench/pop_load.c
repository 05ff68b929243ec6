// pop_load: consumers that pop from any broker of RocketMQ and acknowledge each message by a request of its own.
//
//   cc -O2 -D_GNU_SOURCE -o pop_load pop_load.c
//   ./pop_load HOST PORT TOPIC GROUP BROKER CONSUMERS BATCH SECONDS [PID_OF_BROKER]
//
// Every consumer has one request under way at a time, and all of them share one connection: a pop of BATCH messages of
// all queues (POP_MESSAGE, 200050), then an acknowledgement after the other (ACK_MESSAGE, 200051). What leaves in one
// turn is one write. Headers are JSON: a code of POP does not fit into the two bytes of the binary form. The handle of a message is made as RocketMQ's clients make it.
//
// One line of JSON comes out. A message that comes twice, an answer that is no success or a message without its place
// in the answer's strings ends the run without figures.
#include "remoting.h"

enum { CONSUMERS_MAX = 1024, BATCH_MAX = 32, RECEIVE_BYTES = 64 << 20, SAMPLES = 4 << 20, QUEUES_MAX = 64, OFFSETS_MAX = 1 << 24 };
enum { POP = 200050, ACK = 200051, NOT_FOUND = 19, POLLING_FULL = 209, POLLING_TIMEOUT = 210, INVISIBLE_MS = 60000 };

struct samples { float *values; long count; };
struct given { int queue; long offset, start; };
struct consumer { int count, next; long pop_time, revive; struct given given[BATCH_MAX]; double began; };

static struct consumer consumers[CONSUMERS_MAX];
static struct samples pops, acks;
static unsigned char *seen[QUEUES_MAX];  // a bit for each offset
static const char *topic, *group, *broker;
static int batch;

static void fail(const char *what, long number) { fprintf(stderr, "%s: %ld\n", what, number); exit(1); }

static void note(struct samples *s, double took) { if (s->count < SAMPLES) s->values[s->count++] = took * 1e6; }

static float percentile(struct samples *s, double q) {
    qsort(s->values, s->count, sizeof *s->values, by_value);
    return s->count ? s->values[(long)((s->count - 1) * q)] : 0;
}

static int pop_request(char *out, unsigned opaque) {
    struct request r = begin_request(out, 0, POP, opaque);
    text_field(&r, "consumerGroup", group, strlen(group)); text_field(&r, "topic", topic, strlen(topic));
    text_field(&r, "queueId", "-1", 2); number_field(&r, "maxMsgNums", batch); number_field(&r, "invisibleTime", INVISIBLE_MS);
    text_field(&r, "pollTime", "0", 1); text_field(&r, "bornTime", "0", 1); text_field(&r, "initMode", "0", 1);
    text_field(&r, "expType", "TAG", 3); text_field(&r, "exp", "*", 1); text_field(&r, "order", "false", 5);
    text_field(&r, "bname", broker, strlen(broker));
    return end_request(&r, "", 0);
}

static int ack_request(char *out, unsigned opaque, struct consumer *c) {
    struct given *g = &c->given[c->next];
    char handle[512];
    int bytes = snprintf(handle, sizeof handle, "%ld %ld %d %ld 0 %s %d %ld", g->start, c->pop_time, INVISIBLE_MS, c->revive, broker, g->queue, g->offset);
    struct request r = begin_request(out, 0, ACK, opaque);
    text_field(&r, "consumerGroup", group, strlen(group)); text_field(&r, "topic", topic, strlen(topic));
    number_field(&r, "queueId", g->queue); text_field(&r, "extraInfo", handle, bytes); number_field(&r, "offset", g->offset);
    text_field(&r, "bname", broker, strlen(broker));
    return end_request(&r, "", 0);
}

// Where the pop began to read in each queue: `mark queue start;...`
static void read_starts(struct answer *a, long *starts) {
    char text[4096] = {0}, wanted[] = "startOffsetInfo";
    char *found = memmem(a->header, a->header_bytes, wanted, sizeof wanted - 1);
    if (!found) fail("an answer with messages has no startOffsetInfo", a->code);
    found += sizeof wanted - 1;
    int bytes = 0;
    for (found += 3; found[bytes] != '"';) bytes++;
    if (bytes >= (int)sizeof text) fail("startOffsetInfo is too long", bytes);
    memcpy(text, found, bytes);
    for (char *entry = text; entry; entry = strchr(entry, ';')) {
        int mark, queue; long start;
        if (*entry == ';') entry++;
        if (sscanf(entry, "%d %d %ld", &mark, &queue, &start) != 3 || queue < 0 || queue >= QUEUES_MAX) fail("an entry of startOffsetInfo cannot be read", bytes);
        starts[queue] = start;
    }
}

static void take(struct consumer *c, struct answer *a) {
    long starts[QUEUES_MAX];
    c->count = c->next = 0;
    if (a->code == NOT_FOUND || a->code == POLLING_FULL || a->code == POLLING_TIMEOUT) return;
    if (a->code) fail("a pop was answered with code", a->code);
    for (int q = 0; q < QUEUES_MAX; q++) starts[q] = -1;
    read_starts(a, starts);
    c->pop_time = answer_field(a, "popTime"); c->revive = answer_field(a, "reviveQid");
    int left = a->body_bytes;
    for (char *record = a->body; left > 28; ) {
        int bytes = get32(record), queue = get32(record + 12);
        long offset = get64(record + 20);
        if (bytes <= 0 || bytes > left || c->count >= batch) fail("a record of a pop has the length", bytes);
        if (queue < 0 || queue >= QUEUES_MAX || starts[queue] < 0 || offset < 0 || offset >= OFFSETS_MAX) fail("a message has no place in startOffsetInfo; its queue", queue);
        if (!seen[queue]) seen[queue] = calloc(1, OFFSETS_MAX / 8);
        if (seen[queue][offset >> 3] >> (offset & 7) & 1) fail("a message came twice; its offset", offset);
        seen[queue][offset >> 3] |= 1 << (offset & 7);
        c->given[c->count++] = (struct given){queue, offset, starts[queue]};
        record += bytes; left -= bytes;
    }
}

int main(int argc, char **argv) {
    if (argc < 9) { fprintf(stderr, "usage: pop_load HOST PORT TOPIC GROUP BROKER CONSUMERS BATCH SECONDS [PID]\n"); return 2; }
    int count = atoi(argv[6]), have = 0, asked = 0;
    const char *pid = argc > 9 ? argv[9] : NULL;
    double seconds = atof(argv[8]);
    topic = argv[3]; group = argv[4]; broker = argv[5]; batch = atoi(argv[7]);
    if (count > CONSUMERS_MAX || batch > BATCH_MAX) { fprintf(stderr, "at most %d consumers and batches of %d\n", CONSUMERS_MAX, BATCH_MAX); return 2; }
    char *in = malloc(RECEIVE_BYTES), *out = malloc((size_t)count * 4096);
    pops.values = malloc(SAMPLES * sizeof(float)); acks.values = malloc(SAMPLES * sizeof(float));
    int fd = connect_to(argv[1], atoi(argv[2])), bytes = 0, under_way = count;
    long acknowledged = 0, empty = 0;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double cpu = pid ? cpu_seconds(pid) : 0, begin = now(), arrived = begin;
    for (int i = 0; i < count; i++) { consumers[i].began = begin; bytes += pop_request(out + bytes, i); }
    while (under_way) {
        write_all(fd, out, bytes);
        ssize_t r = read(fd, in + have, RECEIVE_BYTES - have);
        if (r <= 0) fail("the broker closed the connection; messages acknowledged", acknowledged);
        have += r; bytes = 0; arrived = now();
        int p = 0;
        for (struct answer a; read_answer(in + p, have - p, &a); p += a.frame_bytes) {
            if (a.opaque < 0 || a.opaque >= count) fail("an answer to nothing; its opaque", a.opaque);
            struct consumer *c = &consumers[a.opaque];
            if (c->next < c->count) {
                if (a.code) fail("an acknowledgement was answered with code", a.code);
                note(&acks, arrived - c->began); acknowledged++; c->next++;
            } else { note(&pops, arrived - c->began); take(c, &a); empty += !c->count; asked++; }
            c->began = arrived;
            if (c->next < c->count) bytes += ack_request(out + bytes, a.opaque, c);
            else if (arrived < begin + seconds) bytes += pop_request(out + bytes, a.opaque);
            else under_way--;
        }
        memmove(in, in + p, have - p); have -= p;
    }
    double took = arrived - begin;
    if (pid) cpu = cpu_seconds(pid) - cpu;
    getrusage(RUSAGE_SELF, &after);
    double own = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) + (after.ru_stime.tv_sec - before.ru_stime.tv_sec)
        + (after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec) * 1e-6;
    if (!acknowledged) fail("nothing was popped; empty answers", empty);
    printf("{\"messages_per_s\":%.0f,\"messages\":%ld,\"pops\":%d,\"empty\":%ld,\"pop_p50_us\":%.0f,\"pop_p99_us\":%.0f,\"ack_p50_us\":%.0f,\"ack_p99_us\":%.0f,\"generator_cores\":%.2f",
        acknowledged / took, acknowledged, asked, empty, percentile(&pops, .5), percentile(&pops, .99), percentile(&acks, .5), percentile(&acks, .99), own / took);
    if (pid) printf(",\"broker_cpu_us_per_message\":%.2f", cpu * 1e6 / acknowledged);
    printf("}\n");
    return 0;
}
