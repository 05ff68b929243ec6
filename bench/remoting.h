// remoting.h: requests and answers of the remoting protocol in both header forms, and the clocks of the load generators.
//
// A request is written in three steps: begin_request, one field call for each extension field, end_request. The form is
// JSON (serialize type 0) or ROCKETMQ's binary one (type 1); an answer is read in the form that it has.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 8192, CLIENT_VERSION = 433, JAVA = 0 };

struct request { char *start, *at; int binary; unsigned opaque; };
struct answer { int code; long opaque; char *header; int header_bytes, binary; char *body; int body_bytes, frame_bytes; };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static inline int by_value(const void *a, const void *b) { float x = *(float *)a, y = *(float *)b; return (x > y) - (x < y); }
static inline void put16(char *at, int value) { uint16_t v = htons(value); memcpy(at, &v, 2); }
static inline void put32(char *at, long value) { uint32_t v = htonl(value); memcpy(at, &v, 4); }
static inline int get16(const char *at) { uint16_t v; memcpy(&v, at, 2); return ntohs(v); }
static inline long get32(const char *at) { uint32_t v; memcpy(&v, at, 4); return (int32_t)ntohl(v); }
static inline long get64(const char *at) { return ((long)(uint32_t)get32(at) << 32) | (uint32_t)get32(at + 4); }

static double cpu_seconds(const char *pid) {
    char path[64], line[1024]; unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *f = fopen(path, "r"); if (!f) return 0;
    char *ok = fgets(line, sizeof line, f); fclose(f); if (!ok) return 0;
    char *after = strrchr(line, ')');
    if (!after || sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) return 0;
    return (user + system) / (double)sysconf(_SC_CLK_TCK);
}

static int connect_to(const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1 || connect(fd, (struct sockaddr *)&to, sizeof to)) { perror("connect"); exit(1); }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void write_all(int fd, const char *bytes, size_t count) {
    while (count) { ssize_t w = write(fd, bytes, count); if (w <= 0) { perror("write"); exit(1); } bytes += w; count -= w; }
}

static struct request begin_request(char *out, int binary, int code, unsigned opaque) {
    struct request r = {out, out + 8, binary, opaque};
    if (binary) {
        put16(r.at, code); r.at[2] = JAVA; put16(r.at + 3, CLIENT_VERSION); put32(r.at + 5, opaque);
        memset(r.at + 9, 0, 12);  // flag 0, no remark, and the length of the fields, which end_request fills in
        r.at += 21;
    } else r.at += sprintf(r.at, "{\"code\":%d,\"extFields\":{", code);
    return r;
}

static void text_field(struct request *r, const char *name, const char *value, int value_bytes) {
    int name_bytes = strlen(name);
    if (r->binary) {
        put16(r->at, name_bytes); memcpy(r->at + 2, name, name_bytes); r->at += 2 + name_bytes;
        put32(r->at, value_bytes); memcpy(r->at + 4, value, value_bytes); r->at += 4 + value_bytes;
        return;
    }
    *r->at++ = '"'; memcpy(r->at, name, name_bytes); r->at += name_bytes; memcpy(r->at, "\":\"", 3); r->at += 3;
    for (int i = 0; i < value_bytes; i++) {
        unsigned char c = value[i];
        if (c >= 0x20) *r->at++ = c;  // the generators use no quote and no backslash
        else { memcpy(r->at, "\\u000", 5); r->at[5] = "0123456789abcdef"[c & 15]; r->at += 6; }
    }
    *r->at++ = '"'; *r->at++ = ',';
}

static void number_field(struct request *r, const char *name, long value) {
    char text[24];
    text_field(r, name, text, sprintf(text, "%ld", value));
}

// The whole frame's size. The body goes where r->at points.
static int end_request(struct request *r, const char *body, int body_bytes) {
    if (r->binary) put32(r->start + 8 + 17, r->at - (r->start + 8 + 21));
    else r->at += sprintf(r->at - 1, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":%d}", r->opaque, CLIENT_VERSION) - 1;
    int header_bytes = r->at - (r->start + 8);
    put32(r->start, 4 + header_bytes + body_bytes); put32(r->start + 4, header_bytes | (long)r->binary << 24);
    memcpy(r->at, body, body_bytes);
    return 8 + header_bytes + body_bytes;
}

// 1: a whole answer stands at the beginning of these bytes.
static int read_answer(char *bytes, int have, struct answer *a) {
    if (have < 8) return 0;
    int length = get32(bytes);
    if (length < 4 || have < length + 4) return 0;
    a->frame_bytes = length + 4; a->header = bytes + 8; a->binary = bytes[4]; a->header_bytes = get32(bytes + 4) & 0xffffff;
    a->body = a->header + a->header_bytes; a->body_bytes = length - 4 - a->header_bytes;
    if (a->binary) { a->code = get16(a->header); a->opaque = get32(a->header + 5); return 1; }
    char *code = memmem(a->header, a->header_bytes, "\"code\":", 7), *opaque = memmem(a->header, a->header_bytes, "\"opaque\":", 9);
    a->code = code ? atoi(code + 7) : -1; a->opaque = opaque ? atol(opaque + 9) : -1;
    return 1;
}

// An extension field of an answer as a number, -1: it has none.
static inline long answer_field(struct answer *a, const char *name) {
    int name_bytes = strlen(name);
    if (!a->binary) {
        char wanted[64]; int bytes = sprintf(wanted, "\"%s\":\"", name);
        char *found = memmem(a->header, a->header_bytes, wanted, bytes);
        return found ? atol(found + bytes) : -1;
    }
    char *at = a->header + 13, *end = a->header + a->header_bytes;
    at += 4 + get32(at);
    for (at += 4; at < end;) {
        char *key = at + 2; int key_bytes = get16(at); char *value = key + key_bytes + 4; int value_bytes = get32(value - 4);
        if (key_bytes == name_bytes && !memcmp(key, name, name_bytes)) {
            char text[24] = {0}; memcpy(text, value, value_bytes < 23 ? value_bytes : 23); return atol(text);
        }
        at = value + value_bytes;
    }
    return -1;
}
