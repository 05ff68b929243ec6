// mixed: a load that differs from the uniform one of load.c in every way that a cache or a shortcut could live on.
//
//   cc -O2 -D_GNU_SOURCE -o mixed mixed.c
//   ./mixed fill HOST PORT STATE json|binary MEBIBYTES
//   ./mixed run  HOST PORT STATE json|binary SECONDS [PID_OF_BROKER]
//
// 64 topics of 8 queues; bodies of 0.1 to 16 KiB, log-uniform; 0 to 12 properties whose names vary; half of the messages
// have keys. `fill` writes the older log. `run` sends to random queues while three groups tail every queue with long
// polls, and a fourth reads the older log from its beginning, again and again. STATE keeps what every queue holds
// between runs.
//
// The one line of JSON comes out only if the broker delivered what it acknowledged: every group got every queue's messages
// in order, each once, with the count and the checksum (body and properties) of what was sent. The group behind is held
// against the older log in the same way, for each queue that it reads to the end.
#include "remoting.h"
#include <math.h>

enum {
    TOPICS = 64, QUEUES_EACH = 8, QUEUES = TOPICS * QUEUES_EACH, VARIANTS = 4096, BODY_MIN = 102, BODY_MAX = 16384, PROPERTIES_MAX = 12,
    PRODUCERS = 16, IN_FLIGHT = 4, TAILS = 3, TAIL_CONNECTIONS = 4, BEHIND_CONNECTIONS = 2, BEHIND_IN_FLIGHT = 2,
    GROUPS = TAILS + 1, BEHIND = TAILS, BATCH = 32, SLOTS = QUEUES, RECEIVE_BYTES = 4 << 20, SAMPLES = 4 << 20,
    CONNECTIONS = PRODUCERS + TAILS * TAIL_CONNECTIONS + BEHIND_CONNECTIONS,
};
static const double SETTLE_S = 0.5, DRAIN_S = 30;

struct mark { long count; uint64_t sum; };                           // how many messages, and the sum of their checksums
struct queue { long end; struct mark old, sent; };                   // `old`: what fill wrote; `sent`: what this run did
struct slot { int queue; double started; uint64_t sum; };            // one request on its way
struct variant { int body_at, body_bytes, properties_bytes, has_keys; char properties[768]; };
struct stamp { uint64_t sequence; double sent; int64_t queue; };     // how every body begins
struct samples { float *values; long count; };

struct connection {
    int fd, group, busy, have;                                       // group: -1 for a producer
    char *in;
    struct slot slots[SLOTS];
    int free[SLOTS], free_count;
} static connections[CONNECTIONS];

static struct pollfd polls[CONNECTIONS];
static struct queue queues[QUEUES];
static struct variant variants[VARIANTS];
static struct mark read_marks[GROUPS][QUEUES];
static long next_offset[GROUPS][QUEUES], delivered[GROUPS], pulls[GROUPS], errors, acknowledged, verified, passes, sequence;
static struct samples send_times, tail_times, behind_times;
static char topics[TOPICS][64], noise[BODY_MAX * 4], out[64 * (BODY_MAX + HEADER_BYTES_MAX)];
static int binary, measuring;
static int reached;                                                  // how many queues have got their first message
static int refused[PRODUCERS * IN_FLIGHT], refused_count;            // queues of messages that the broker refused: it gets others
static uint64_t random_state = 88172645463325252ull;

static uint64_t next_random(void) { random_state ^= random_state << 13; random_state ^= random_state >> 7; random_state ^= random_state << 17; return random_state; }
static int below(int n) { return next_random() % n; }
static void fail(const char *what, const char *topic, long a, long b) { fprintf(stderr, "NOT DELIVERED AS SENT: %s, %s: %ld, not %ld\n", topic, what, a, b); exit(1); }
static const char *topic_name(int queue) { return topics[queue / QUEUES_EACH]; }

static uint64_t checksum(const char *bytes, int count, uint64_t h) {
    for (; count >= 8; bytes += 8, count -= 8) { uint64_t w; memcpy(&w, bytes, 8); h = (h ^ w) * 0x9E3779B97F4A7C15ull; h ^= h >> 29; }
    for (; count; count--) h = (h ^ (unsigned char)*bytes++) * 0x100000001B3ull;
    return h;
}

// A broker may reorder properties and add its own, so each of the user's counts by itself: their names begin with "u".
static uint64_t properties_sum(const char *text, int count) {
    uint64_t sum = 0;
    for (const char *end = text + count; text < end;) {
        const char *stop = memchr(text, 2, end - text);
        if (!stop) stop = end;
        if (*text == 'u') sum += checksum(text, stop - text, 7);
        text = stop + 1;
    }
    return sum;
}

static void make_variants(void) {
    for (int i = 0; i < TOPICS; i++) snprintf(topics[i], sizeof topics[i], "mixed_%.*s%02d", i % 17, "of_a_longer_name_", i);
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = 32 + below(95);
    for (int i = 0; i < VARIANTS; i++) {
        struct variant *v = &variants[i];
        v->body_bytes = BODY_MIN * exp(log((double)BODY_MAX / BODY_MIN) * below(1 << 20) / (1 << 20));
        v->body_at = below(sizeof noise - v->body_bytes); v->has_keys = i % 2;
        char *at = v->properties;
        if (below(4)) at += sprintf(at, "TAGS\001tag%d\002", below(8));
        for (int left = below(PROPERTIES_MAX + 1), first = below(200); left; left--) {
            at += sprintf(at, "u%.*s%d\001", below(12), "sernamedfield", first + 7 * left);
            for (int n = 1 + below(24); n; n--) *at++ = 'a' + below(26);
            *at++ = 2;
        }
        v->properties_bytes = at - v->properties;
    }
}

static int free_slot(struct connection *c, int queue, uint64_t sum) {
    int slot = c->free[--c->free_count];
    c->slots[slot] = (struct slot){queue, now(), sum};
    return slot;
}

static int next_queue(void) { return refused_count ? refused[--refused_count] : reached < QUEUES ? reached++ : below(QUEUES); }

static int send_request(struct connection *c, char *at, int queue) {
    static char body[BODY_MAX]; char properties[1024], *end = properties;
    struct variant *v = &variants[below(VARIANTS)];
    struct stamp stamp = {++sequence, now(), queue};
    memcpy(body, noise + v->body_at, v->body_bytes); memcpy(body, &stamp, sizeof stamp);
    end += sprintf(end, "UNIQ_KEY\0017F0000010001%016lX%08lX\002", (unsigned long)(stamp.sent * 1e6), (unsigned long)stamp.sequence & 0xffffffff);
    if (v->has_keys) end += sprintf(end, "KEYS\001order-%lu\002", (unsigned long)next_random() >> 24);
    end += sprintf(end, "WAIT\001true\002");
    memcpy(end, v->properties, v->properties_bytes); end += v->properties_bytes;
    int slot = free_slot(c, queue, checksum(body, v->body_bytes, 1) + properties_sum(v->properties, v->properties_bytes));
    struct request r = begin_request(at, binary, 310, slot);
    const char *topic = topic_name(queue);
    text_field(&r, "a", "mixed_producer", 14); text_field(&r, "b", topic, strlen(topic)); text_field(&r, "c", "TBW102", 6);
    number_field(&r, "d", QUEUES_EACH); number_field(&r, "e", queue % QUEUES_EACH); text_field(&r, "f", "0", 1);
    number_field(&r, "g", 1763165000123 + sequence); text_field(&r, "h", "0", 1); text_field(&r, "i", properties, end - properties);
    text_field(&r, "j", "0", 1); text_field(&r, "k", "false", 5); text_field(&r, "m", "false", 5); text_field(&r, "n", "broker-a", 8);
    return end_request(&r, body, v->body_bytes);
}

static int pull_request(struct connection *c, char *at, int queue) {
    char group[32]; int group_bytes = sprintf(group, "mixed_group_%d", c->group);
    const char *topic = topic_name(queue);
    struct request r = begin_request(at, binary, 11, free_slot(c, queue, 0));
    text_field(&r, "consumerGroup", group, group_bytes); text_field(&r, "topic", topic, strlen(topic));
    number_field(&r, "queueId", queue % QUEUES_EACH); number_field(&r, "queueOffset", next_offset[c->group][queue]); number_field(&r, "maxMsgNums", BATCH);
    number_field(&r, "sysFlag", c->group == BEHIND ? 4 : 6);  // 4: the subscription is here; 2: wait for messages
    text_field(&r, "commitOffset", "0", 1); text_field(&r, "suspendTimeoutMillis", "15000", 5);
    text_field(&r, "subscription", "*", 1); text_field(&r, "subVersion", "0", 1); text_field(&r, "expressionType", "TAG", 3);
    return end_request(&r, "", 0);
}

static void sample(struct samples *s, double seconds) { if (measuring && s->count < SAMPLES) s->values[s->count++] = seconds * 1e6; }

static void take_sent(struct slot *slot, struct answer *a, double arrived) {
    if (a->code) { errors++; refused[refused_count++] = slot->queue; return; }
    struct queue *q = &queues[slot->queue];
    long offset = answer_field(a, "queueOffset");
    if (offset < 0) fail("queue offset in the answer of a send", topic_name(slot->queue), offset, q->end);
    if (offset >= q->end) q->end = offset + 1;
    q->sent.count++; q->sent.sum += slot->sum; acknowledged++;
    sample(&send_times, arrived - slot->started);
}

static void take_records(struct connection *c, int queue, struct answer *a, double arrived) {
    struct mark *mark = &read_marks[c->group][queue];
    long *offset = &next_offset[c->group][queue];
    const char *end = a->body + a->body_bytes;
    for (char *record = a->body; record + 88 <= end; record += get32(record)) {
        if (c->group == BEHIND && *offset == queues[queue].old.count) return;  // newer ones come along
        int body_bytes = get32(record + 84); char *body = record + 88, *topic = body + body_bytes, *properties = topic + 1 + *topic + 2;
        struct stamp stamp; memcpy(&stamp, body, sizeof stamp);
        if (get32(record + 36) & 0x30) fail("an address of IPv6", topic_name(queue), get32(record + 36), 0);
        if (get64(record + 20) != *offset) fail("queue offset of a record", topic_name(queue), get64(record + 20), *offset);
        if (stamp.queue != queue) fail("queue of a message", topic_name(queue), stamp.queue, queue);
        mark->count++; mark->sum += checksum(body, body_bytes, 1) + properties_sum(properties, get16(properties - 2));
        ++*offset; delivered[c->group]++;
        if (c->group != BEHIND) sample(&tail_times, arrived - stamp.sent);
    }
}

static void compare(const char *what, int queue, struct mark got, struct mark wanted) {
    if (got.count != wanted.count) fail(what, topic_name(queue), got.count, wanted.count);
    if (got.sum != wanted.sum) fail("checksum", topic_name(queue), got.sum, wanted.sum);
    verified += got.count;
}

static void take_pulled(struct connection *c, struct slot *slot, struct answer *a, double arrived) {
    int queue = slot->queue;
    pulls[c->group]++;
    if (c->group == BEHIND) sample(&behind_times, arrived - slot->started);
    if (a->code == 0) take_records(c, queue, a, arrived);
    else if (a->code != 19) { fprintf(stderr, "a pull of %s at %ld was answered with code %d\n", topic_name(queue), next_offset[c->group][queue], a->code); exit(1); }
    if (c->group != BEHIND || next_offset[BEHIND][queue] < queues[queue].old.count) return;
    compare("messages of the older log", queue, read_marks[BEHIND][queue], queues[queue].old);
    read_marks[BEHIND][queue] = (struct mark){0, 0}; next_offset[BEHIND][queue] = 0; passes++;
    slot->queue = (queue + BEHIND_CONNECTIONS * BEHIND_IN_FLIGHT) % QUEUES;
}

// Read what has come, and give each pull's successor its place in `out`. The bytes of these.
static int take_answers(struct connection *c, int is_open) {
    ssize_t r = read(c->fd, c->in + c->have, RECEIVE_BYTES - c->have);
    if (r <= 0) { fprintf(stderr, "the broker closed a connection\n"); exit(1); }
    c->have += r;
    double arrived = now(); int taken = 0, bytes = 0;
    for (struct answer a; read_answer(c->in + taken, c->have - taken, &a); taken += a.frame_bytes) {
        if (a.opaque < 0 || a.opaque >= SLOTS) { fprintf(stderr, "an answer to request %ld, which was not sent\n", a.opaque); exit(1); }
        struct slot *slot = &c->slots[a.opaque];
        c->free[c->free_count++] = a.opaque;
        if (c->group < 0) { take_sent(slot, &a, arrived); c->busy--; continue; }
        take_pulled(c, slot, &a, arrived);
        if (c->group == BEHIND && !is_open) c->busy--;
        else bytes += pull_request(c, out + bytes, slot->queue);
    }
    memmove(c->in, c->in + taken, c->have - taken); c->have -= taken;
    return bytes;
}

static void open_connections(const char *host, int port, int count) {
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        int reader = i - PRODUCERS;
        c->group = reader < 0 ? -1 : reader < TAILS * TAIL_CONNECTIONS ? reader / TAIL_CONNECTIONS : BEHIND;
        c->fd = connect_to(host, port); c->in = malloc(RECEIVE_BYTES);
        for (int k = 0; k < SLOTS; k++) c->free[c->free_count++] = SLOTS - 1 - k;
        polls[i] = (struct pollfd){.fd = c->fd, .events = POLLIN};
        if (reader < 0) continue;
        int bytes = 0, first = c->group == BEHIND ? reader - TAILS * TAIL_CONNECTIONS : reader % TAIL_CONNECTIONS;
        int step = c->group == BEHIND ? BEHIND_CONNECTIONS : TAIL_CONNECTIONS, many = c->group == BEHIND ? BEHIND_IN_FLIGHT : QUEUES / TAIL_CONNECTIONS;
        for (int k = 0; k < many; k++, c->busy++) bytes += pull_request(c, out + bytes, first + step * k);
        write_all(c->fd, out, bytes);
    }
}

static void turn(int count, int is_open) {
    for (int i = 0; i < PRODUCERS && is_open; i++) {
        struct connection *c = &connections[i];
        int bytes = 0;
        for (; c->busy < IN_FLIGHT; c->busy++) bytes += send_request(c, out + bytes, next_queue());
        write_all(c->fd, out, bytes);
    }
    poll(polls, count, 100);
    for (int i = 0; i < count; i++)
        if (polls[i].revents & (POLLIN | POLLHUP)) write_all(connections[i].fd, out, take_answers(&connections[i], is_open));
}

static int is_drained(int count) {
    for (int i = 0; i < count; i++) if ((connections[i].group < 0 || connections[i].group == BEHIND) && connections[i].busy) return 0;
    if (count > PRODUCERS)
        for (int g = 0; g < TAILS; g++) for (int q = 0; q < QUEUES; q++) if (next_offset[g][q] < queues[q].end) return 0;
    return 1;
}

static void drain(int count) {
    for (double deadline = now() + DRAIN_S; !is_drained(count) && now() < deadline;) turn(count, 0);
}

static double percentile(struct samples *s, double q) {
    qsort(s->values, s->count, sizeof *s->values, by_value);
    return s->count ? s->values[(long)((s->count - 1) * q)] : 0;
}

static void fill(const char *host, int port, long bytes) {
    open_connections(host, port, PRODUCERS);
    for (double mean = (BODY_MAX - BODY_MIN) / log((double)BODY_MAX / BODY_MIN); acknowledged < QUEUES || acknowledged * mean < bytes;) turn(PRODUCERS, 1);
    drain(PRODUCERS);
    for (int q = 0; q < QUEUES; q++) {
        if (queues[q].end != queues[q].sent.count) fail("end of the queue, which was to be new", topic_name(q), queues[q].end, queues[q].sent.count);
        queues[q].old = queues[q].sent;
    }
    printf("{\"messages\":%ld,\"refused\":%ld}\n", acknowledged, errors);
}

static double own_cpu(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6; }

static void run(const char *host, int port, double seconds, const char *pid) {
    reached = QUEUES;  // every queue has its first message already
    for (int g = 0; g < TAILS; g++) for (int q = 0; q < QUEUES; q++) next_offset[g][q] = queues[q].end;
    open_connections(host, port, CONNECTIONS);
    for (double settled = now() + SETTLE_S; now() < settled;) turn(CONNECTIONS, 1);
    long sent = acknowledged, messages[GROUPS], requests[GROUPS], moved = 0;
    memcpy(messages, delivered, sizeof messages); memcpy(requests, pulls, sizeof requests);
    double began = now(), cpu = pid ? cpu_seconds(pid) : 0, own = own_cpu();
    for (measuring = 1; now() < began + seconds;) turn(CONNECTIONS, 1);
    measuring = 0;
    double took = now() - began;
    cpu = pid ? cpu_seconds(pid) - cpu : 0; own = own_cpu() - own; sent = acknowledged - sent; moved = sent;
    for (int g = 0; g < GROUPS; g++) { messages[g] = delivered[g] - messages[g]; requests[g] = pulls[g] - requests[g]; moved += messages[g]; }
    drain(CONNECTIONS);
    for (int q = 0; q < QUEUES; q++) for (int g = 0; g < TAILS; g++) compare("messages for a group that tails", q, read_marks[g][q], queues[q].sent);
    printf("{\"sends_per_s\":%.0f,\"refused\":%ld,\"send_p50_us\":%.0f,\"send_p99_us\":%.0f", sent / took, errors, percentile(&send_times, .5), percentile(&send_times, .99));
    for (int g = 0; g < TAILS; g++) printf(",\"tail_%d_messages_per_s\":%.0f,\"tail_%d_pulls_per_s\":%.0f", g + 1, messages[g] / took, g + 1, requests[g] / took);
    printf(",\"tail_p50_us\":%.0f,\"tail_p99_us\":%.0f", percentile(&tail_times, .5), percentile(&tail_times, .99));
    printf(",\"behind_messages_per_s\":%.0f,\"behind_pulls_per_s\":%.0f,\"behind_p50_us\":%.0f,\"behind_p99_us\":%.0f", messages[BEHIND] / took, requests[BEHIND] / took, percentile(&behind_times, .5), percentile(&behind_times, .99));
    printf(",\"moved_per_s\":%.0f,\"cpu_us_per_moved\":%.2f,\"generator_cores\":%.2f,\"verified\":%ld,\"older_queues_verified\":%ld}\n",
        moved / took, moved ? cpu * 1e6 / moved : 0, own / took, verified, passes);
}

int main(int argc, char **argv) {
    if (argc < 7) { fprintf(stderr, "usage: mixed fill|run HOST PORT STATE json|binary MEBIBYTES|SECONDS [PID]\n"); return 2; }
    binary = !strcmp(argv[5], "binary");
    struct samples *all[] = {&send_times, &tail_times, &behind_times};
    for (int i = 0; i < 3; i++) all[i]->values = malloc(SAMPLES * sizeof(float));
    make_variants();
    random_state += (uint64_t)time(NULL) << 20;  // the variants are the same in every run, their order is not
    int is_fill = !strcmp(argv[1], "fill");
    if (!is_fill) {
        FILE *f = fopen(argv[4], "r");
        if (!f || fread(queues, sizeof queues, 1, f) != 1) { fprintf(stderr, "%s: no state of a fill\n", argv[4]); return 2; }
        fclose(f);
    }
    if (is_fill) fill(argv[2], atoi(argv[3]), atol(argv[6]) << 20);
    else run(argv[2], atoi(argv[3]), atof(argv[6]), argc > 7 ? argv[7] : NULL);
    for (int q = 0; q < QUEUES; q++) queues[q].sent = (struct mark){0, 0};
    FILE *f = fopen(argv[4], "w");
    if (!f || fwrite(queues, sizeof queues, 1, f) != 1 || fclose(f)) { perror(argv[4]); return 1; }
    return 0;
}
