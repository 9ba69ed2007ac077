/* The load of the echo and HTTP benchmarks: connections that each keep one message in flight, and check every byte that comes
 * back. The connections are TCP, Unix or UDP sockets, or (compiled with -DWITH_TLS -lssl -lcrypto) TLS over TCP.
 *
 * It is written against the plain socket interface and shares no code with what it measures, so that a mistake in ringloop
 * can't cancel itself out here. A message carries its connection's number and its own sequence number, in a header and in the
 * choice of its filler; an echo that belongs to another connection, to an earlier message, or that is damaged, is an error.
 * With --http-get the message is a request, and its response must have the status 200, a Content-Length and the right body.
 *
 * Times: the server's CPU time is read from the server process's own CPU clock (clock_getcpuclockid(3): user and system time of
 * all its threads, io_uring's workers included) in the instants in which the measured window opens and closes.
 *
 * Output: one JSON object on stdout. Errors: one line on stderr. Exit status: 0, or 1 if the server failed, or 2 for bad usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

enum {
    HEADER_BYTES = 16,
    FILLER_VARIANTS = 4093, /* A prime, so that no regular pattern of sequence numbers reuses few fillers. */
    RECEIVE_BYTES = 256 * 1024,
    EVENTS_PER_WAIT = 256,
    SIZE_BYTES_MAX = 64 * 1024 * 1024,
    CONNECTIONS_MAX = 100000,
    DURATION_S_MAX = 3600,
    DESCRIPTORS_SPARE = 16,
    RESPONSE_BYTES_MAX = 16 * 1024,
    DATAGRAM_BYTES_MAX = 65507,
};

static const int64_t NS_PER_S = 1000000000;

enum failure { REFUSED, HANG_UP, WRONG_ECHO, WRONG_RESPONSE, STALLED, OTHER, FAILURE_KINDS };
static const char *const failure_names[FAILURE_KINDS] = {"refused", "hang_up", "wrong_echo", "wrong_response", "stalled", "other"};

enum transport { TCP, UNIX, UDP, TLS, TRANSPORTS };
static const char *const transport_names[TRANSPORTS] = {"tcp", "unix", "udp", "tls"};

struct options {
    enum transport transport;
    const char *host;
    uint16_t port;
    const char *path;        /* Of a Unix socket. */
    const char *certificate; /* That the TLS server must show. */
    const char *http_get;    /* The target of the requests; NULL: messages that are echoed. */
    const char *body;        /* That each response must have. */
    uint32_t connections;
    size_t size_bytes;
    int64_t duration_ns;
    uint64_t messages; /* 0: the window ends by time. */
    int64_t warm_up_ns;
    int64_t interval_ns; /* 0: the next message leaves as soon as the echo is complete. */
    int64_t patience_ns;
    bool idle;
    uint64_t seed;
    pid_t server_pid; /* 0: the server's CPU time isn't read. */
};

struct connection {
    int descriptor;
    uint32_t number;
    uint32_t sequence;
    bool in_flight;
    size_t sent_bytes;
    size_t received_bytes;
    int64_t started_ns;
    int64_t due_ns; /* With --interval-us: when the next message is to leave. */
    size_t filler_offset;
    unsigned char header[HEADER_BYTES];
    char *response; /* With --http-get: what has come of it. */
#ifdef WITH_TLS
    SSL *tls;
#endif
};

static struct options options = {
    .host = "127.0.0.1",
    .connections = 1,
    .size_bytes = 1024,
    .duration_ns = 1000000000,
    .warm_up_ns = 200000000,
    .patience_ns = 5000000000,
    .seed = 1,
};
static struct connection *connections;
static uint32_t connections_open;
static uint32_t connections_in_flight;
static int epoll_descriptor;
static unsigned char *filler;
static char *request; /* With --http-get; its length stands in options.size_bytes. */
static unsigned char receive_buffer[RECEIVE_BYTES];

static bool sending; /* A completed echo is followed by the next message. */
static bool counting;
static int64_t window_begin_ns, window_end_ns;
static int64_t server_cpu_begin_ns, server_cpu_end_ns;
static int64_t client_cpu_begin_ns, client_cpu_end_ns;
static uint64_t messages_counted;
static uint64_t failures[FAILURE_KINDS];

/* --- latencies: a histogram with buckets of at most 1/256 of their value --- */

enum { SUB_BITS = 8, SUB_BUCKETS = 1 << SUB_BITS, BUCKETS = (64 - SUB_BITS) * SUB_BUCKETS };

struct histogram {
    uint64_t counts[BUCKETS];
    uint64_t total;
    int64_t sum_ns, max_ns;
};
static struct histogram latencies, cold_latencies;

static size_t bucket_of(uint64_t value) {
    if (value < SUB_BUCKETS)
        return (size_t)value;
    int shift = 63 - __builtin_clzll(value) - (SUB_BITS - 1);
    /* Above the first SUB_BUCKETS exact values, each doubling has SUB_BUCKETS / 2 buckets. */
    return (size_t)SUB_BUCKETS / 2 * (size_t)shift + (size_t)(value >> shift);
}

static uint64_t bucket_middle(size_t bucket) {
    if (bucket < SUB_BUCKETS)
        return bucket;
    size_t shift = bucket / (SUB_BUCKETS / 2) - 1;
    uint64_t low = (uint64_t)(bucket - SUB_BUCKETS / 2 * shift) << shift;
    return low + ((1ULL << shift) >> 1);
}

static void record(struct histogram *histogram, int64_t latency_ns) {
    if (latency_ns < 0)
        latency_ns = 0;
    histogram->counts[bucket_of((uint64_t)latency_ns)]++;
    histogram->total++;
    histogram->sum_ns += latency_ns;
    if (latency_ns > histogram->max_ns)
        histogram->max_ns = latency_ns;
}

static uint64_t percentile(const struct histogram *histogram, double fraction) {
    uint64_t rank = (uint64_t)(fraction * (double)histogram->total), seen = 0;
    if (rank >= histogram->total && histogram->total > 0)
        rank = histogram->total - 1;
    for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen > rank)
            return bucket_middle(bucket);
    }
    return 0;
}

/* --- the result, good or bad --- */

static void print_result(void) {
    int64_t window_ns = window_end_ns - window_begin_ns;
    double seconds = (double)window_ns / (double)NS_PER_S;
    double average_ns = latencies.total ? (double)latencies.sum_ns / (double)latencies.total : 0;
    double messages_per_s = seconds > 0 ? (double)messages_counted / seconds : 0;
    printf("{\"connections\": %" PRIu32 ", \"size_bytes\": %zu, \"seed\": %" PRIu64 ", \"window_ns\": %" PRId64
           ", \"messages\": %" PRIu64 ", \"messages_per_s\": %.1f, \"megabytes_per_s\": %.3f",
           connections_open, options.size_bytes, options.seed, window_ns, messages_counted, messages_per_s,
           messages_per_s * (double)options.size_bytes / 1e6);
    printf(", \"latency_ns_average\": %.0f, \"latency_ns_p50\": %" PRIu64 ", \"latency_ns_p95\": %" PRIu64
           ", \"latency_ns_p99\": %" PRIu64 ", \"latency_ns_max\": %" PRId64 ", \"first_echo_ns_p50\": %" PRIu64,
           average_ns, percentile(&latencies, 0.50), percentile(&latencies, 0.95), percentile(&latencies, 0.99),
           latencies.max_ns, percentile(&cold_latencies, 0.50));
    /* Little's law: in a closed loop this is the number of connections, or the figures above contradict each other. */
    printf(", \"in_flight_average\": %.3f", messages_per_s * average_ns / (double)NS_PER_S);
    printf(", \"client_cpu_ns\": %" PRId64, client_cpu_end_ns - client_cpu_begin_ns);
    if (options.server_pid)
        printf(", \"server_cpu_ns\": %" PRId64, server_cpu_end_ns - server_cpu_begin_ns);
    printf(", \"errors\": {");
    for (int kind = 0; kind < FAILURE_KINDS; kind++)
        printf("%s\"%s\": %" PRIu64, kind ? ", " : "", failure_names[kind], failures[kind]);
    printf("}}\n");
}

__attribute__((noreturn, format(printf, 2, 3))) static void fail(enum failure kind, const char *format, ...) {
    va_list arguments;
    failures[kind]++;
    fputs("load: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    print_result();
    exit(1);
}

__attribute__((noreturn, format(printf, 1, 2))) static void refuse_usage(const char *format, ...) {
    va_list arguments;
    fputs("load: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputs(" (see --help)\n", stderr);
    exit(2);
}

/* --- clocks --- */

static int64_t read_clock_ns(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        fail(OTHER, "the CPU clock of the server (process %d) can't be read: %s; has it exited?", (int)options.server_pid,
             strerror(errno));
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int64_t now_ns(void) { return read_clock_ns(CLOCK_MONOTONIC); }

static int64_t server_cpu_ns(void) {
    clockid_t clock;
    if (options.server_pid == 0)
        return 0;
    int error = clock_getcpuclockid(options.server_pid, &clock);
    if (error != 0)
        fail(OTHER, "the server (process %d) has no CPU clock: %s; has it exited?", (int)options.server_pid, strerror(error));
    return read_clock_ns(clock);
}

static void open_window(void) {
    messages_counted = 0;
    client_cpu_begin_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    server_cpu_begin_ns = server_cpu_ns();
    window_begin_ns = now_ns();
    counting = true;
}

static void close_window(void) {
    window_end_ns = now_ns();
    server_cpu_end_ns = server_cpu_ns();
    client_cpu_end_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    counting = false;
}

/* --- contents --- */

static uint64_t mix(uint64_t value) { /* splitmix64, by Sebastiano Vigna, in the public domain. */
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

static void make_filler(void) {
    size_t length = options.size_bytes + FILLER_VARIANTS;
    filler = malloc(length);
    if (filler == NULL)
        fail(OTHER, "no memory for messages of %zu bytes", options.size_bytes);
    uint64_t state = options.seed;
    for (size_t position = 0; position < length; position++) {
        if (position % 8 == 0)
            state = mix(state);
        filler[position] = (unsigned char)(state >> (position % 8 * 8));
    }
}

static void make_request(void) {
    int length = asprintf(&request, "GET %s HTTP/1.1\r\nHost: %s:%u\r\nAccept: */*\r\nUser-Agent: load\r\n\r\n", options.http_get,
                          options.host, options.port);
    if (length < 0)
        fail(OTHER, "no memory for a request");
    options.size_bytes = (size_t)length;
}

static size_t header_bytes(void) { return options.size_bytes < HEADER_BYTES ? options.size_bytes : HEADER_BYTES; }

static void compose(struct connection *connection) {
    uint64_t mark = mix(options.seed ^ mix((uint64_t)connection->number << 32 | connection->sequence));
    memcpy(connection->header, &mark, sizeof mark);
    memcpy(connection->header + 8, &connection->number, sizeof connection->number);
    memcpy(connection->header + 12, &connection->sequence, sizeof connection->sequence);
    connection->filler_offset = mark % FILLER_VARIANTS;
}

static unsigned char expected_byte(const struct connection *connection, size_t position) {
    return position < header_bytes() ? connection->header[position]
                                     : filler[connection->filler_offset + position - header_bytes()];
}

/* Compares `length` received bytes, which stand at `connection->received_bytes` of the message. */
static bool is_echo(const struct connection *connection, const unsigned char *received, size_t length) {
    size_t position = connection->received_bytes;
    if (position < header_bytes()) {
        size_t part = header_bytes() - position < length ? header_bytes() - position : length;
        if (memcmp(received, connection->header + position, part) != 0)
            return false;
        received += part, position += part, length -= part;
    }
    return length == 0 || memcmp(received, filler + connection->filler_offset + position - header_bytes(), length) == 0;
}

__attribute__((noreturn)) static void report_wrong_echo(const struct connection *connection, const unsigned char *received,
                                                        size_t length) {
    size_t wrong = 0;
    while (wrong < length && received[wrong] == expected_byte(connection, connection->received_bytes + wrong))
        wrong++;
    size_t position = connection->received_bytes + wrong;
    fail(WRONG_ECHO, "wrong echo: connection %" PRIu32 ", message %" PRIu32 ", byte %zu of %zu: sent 0x%02x, received 0x%02x",
         connection->number, connection->sequence, position, options.size_bytes,
         expected_byte(connection, position), received[wrong]);
}

/* --- one connection --- */

/* How much of the answer to the message in flight has come. */
static const char *describe_progress(const struct connection *connection) {
    static char text[100];
    if (request)
        snprintf(text, sizeof text, "after %zu bytes of its response", connection->received_bytes);
    else
        snprintf(text, sizeof text, "after %zu of %zu bytes of its echo", connection->received_bytes, options.size_bytes);
    return text;
}

__attribute__((noreturn)) static void report_hang_up(const struct connection *connection, const char *how) {
    fail(HANG_UP, "the server hung up (%s): connection %" PRIu32 ", message %" PRIu32 ", %s", how, connection->number,
         connection->sequence, describe_progress(connection));
}

/* What of the message has not been sent yet; returns the number of parts. */
static size_t unsent_parts(struct connection *connection, struct iovec parts[2]) {
    size_t count = 0, sent = connection->sent_bytes;
    if (request) {
        parts[0] = (struct iovec){request + sent, options.size_bytes - sent};
        return 1;
    }
    if (sent < header_bytes()) {
        parts[count++] = (struct iovec){connection->header + sent, header_bytes() - sent};
        sent = header_bytes();
    }
    if (sent < options.size_bytes)
        parts[count++] = (struct iovec){filler + connection->filler_offset + sent - header_bytes(), options.size_bytes - sent};
    return count;
}

#ifdef WITH_TLS
__attribute__((noreturn)) static void report_tls(const struct connection *connection, const char *what) {
    unsigned long error = ERR_get_error();
    fail(OTHER, "TLS %s on connection %" PRIu32 " failed: %s", what, connection->number,
         error ? ERR_reason_error_string(error) : "no reason given");
}

/* Turns the outcome of SSL_read or SSL_write into that of recv(2) or send(2). */
static ssize_t tls_result(const struct connection *connection, int result, size_t moved, const char *what) {
    if (result > 0)
        return (ssize_t)moved;
    switch (SSL_get_error(connection->tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: return errno ? -1 : 0;
    default: report_tls(connection, what);
    }
}

/* In one call, so that a message becomes as few records as it can. */
static ssize_t tls_send(struct connection *connection, const struct iovec *parts, size_t count) {
    static unsigned char *whole;
    size_t length = 0, moved = 0;
    if (whole == NULL && (whole = malloc(options.size_bytes)) == NULL)
        fail(OTHER, "no memory for messages of %zu bytes", options.size_bytes);
    for (size_t index = 0; index < count; index++) {
        memcpy(whole + length, parts[index].iov_base, parts[index].iov_len);
        length += parts[index].iov_len;
    }
    ERR_clear_error();
    errno = 0;
    int result = SSL_write_ex(connection->tls, whole, length, &moved);
    return tls_result(connection, result, moved, "sending");
}

static ssize_t tls_receive(struct connection *connection) {
    size_t moved = 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_read_ex(connection->tls, receive_buffer, sizeof receive_buffer, &moved);
    return tls_result(connection, result, moved, "receiving");
}
#endif

/* As sendmsg(2). */
static ssize_t send_parts(struct connection *connection, struct iovec *parts, size_t count) {
#ifdef WITH_TLS
    if (connection->tls)
        return tls_send(connection, parts, count);
#endif
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return sendmsg(connection->descriptor, &message, MSG_NOSIGNAL);
}

/* As recv(2), into receive_buffer. */
static ssize_t receive_bytes(struct connection *connection) {
#ifdef WITH_TLS
    if (connection->tls)
        return tls_receive(connection);
#endif
    return recv(connection->descriptor, receive_buffer, sizeof receive_buffer, 0);
}

/* Sends what is left of the message, as far as the socket takes it; edge-triggered EPOLLOUT brings the rest. */
static void send_rest(struct connection *connection) {
    while (connection->sent_bytes < options.size_bytes) {
        struct iovec parts[2];
        ssize_t result = send_parts(connection, parts, unsent_parts(connection, parts));
        if (result >= 0) {
            connection->sent_bytes += (size_t)result;
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EINTR)
            continue;
        if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED)
            report_hang_up(connection, strerror(errno));
        fail(OTHER, "sending on connection %" PRIu32 " failed: %s", connection->number, strerror(errno));
    }
}

static void start_message(struct connection *connection, int64_t started_ns) {
    connection->sequence++;
    connection->sent_bytes = 0;
    connection->received_bytes = 0;
    connection->in_flight = true;
    connection->started_ns = started_ns;
    connections_in_flight++;
    compose(connection);
    send_rest(connection);
}

static void complete_message(struct connection *connection) {
    int64_t completed_ns = now_ns();
    connection->in_flight = false;
    connections_in_flight--;
    if (counting) {
        messages_counted++;
        record(&latencies, completed_ns - connection->started_ns);
    } else if (connection->sequence == 1) {
        record(&cold_latencies, completed_ns - connection->started_ns);
    }
    if (sending && options.interval_ns == 0)
        start_message(connection, completed_ns);
}

/* --- the responses of HTTP/1.1 --- */

__attribute__((noreturn)) static void report_wrong_response(const struct connection *connection, const char *what) {
    const char *line_end = memchr(connection->response, '\r', connection->received_bytes);
    size_t length = line_end ? (size_t)(line_end - connection->response) : connection->received_bytes;
    fail(WRONG_RESPONSE, "wrong response: connection %" PRIu32 ", request %" PRIu32 ": %s; it begins with '%.*s'",
         connection->number, connection->sequence, what, length < 100 ? (int)length : 100, connection->response);
}

/* Returns the value of Content-Length in a head, which ends with an empty line; there must be exactly one. */
static size_t content_length(const struct connection *connection, const char *head_end) {
    static const char name[] = "content-length:";
    const char *value = NULL;
    for (const char *line = connection->response; line < head_end; line = strstr(line, "\r\n") + 2) {
        if (strncasecmp(line, "transfer-encoding:", strlen("transfer-encoding:")) == 0)
            report_wrong_response(connection, "it has a Transfer-Encoding");
        if (strncasecmp(line, name, strlen(name)) != 0)
            continue;
        if (value)
            report_wrong_response(connection, "it has two Content-Lengths");
        value = line + strlen(name);
    }
    char *end;
    unsigned long length = value ? strtoul(value, &end, 10) : 0;
    if (value == NULL || end == value || *end != '\r')
        report_wrong_response(connection, "it has no Content-Length");
    return length;
}

/* Takes received bytes; returns true once the response is complete, and right. */
static bool take_response(struct connection *connection, const unsigned char *received, size_t length) {
    static const char status[] = "HTTP/1.1 200 ";
    if (!connection->in_flight)
        fail(WRONG_RESPONSE, "wrong response: connection %" PRIu32 ": %zu bytes after response %" PRIu32, connection->number, length,
             connection->sequence);
    if (length >= RESPONSE_BYTES_MAX - connection->received_bytes)
        report_wrong_response(connection, "it is too long");
    memcpy(connection->response + connection->received_bytes, received, length);
    connection->received_bytes += length;
    connection->response[connection->received_bytes] = '\0';
    char *head_end = strstr(connection->response, "\r\n\r\n");
    if (head_end == NULL)
        return false;
    if (strncmp(connection->response, status, strlen(status)) != 0)
        report_wrong_response(connection, "its status is not 200");
    size_t head = (size_t)(head_end - connection->response) + 4, body = strlen(options.body);
    if (content_length(connection, head_end + 2) != body)
        report_wrong_response(connection, "its Content-Length is not that of the body asked for");
    if (connection->received_bytes < head + body)
        return false;
    if (connection->received_bytes > head + body)
        report_wrong_response(connection, "more bytes came than Content-Length says");
    if (memcmp(connection->response + head, options.body, body) != 0)
        report_wrong_response(connection, "its body is not the one asked for");
    return true;
}

/* --- receiving --- */

/* Takes received bytes of an echo; returns true once it is complete. */
static bool take_echo(struct connection *connection, const unsigned char *received, size_t length) {
    size_t wanted = connection->in_flight ? options.size_bytes - connection->received_bytes : 0;
    if (!is_echo(connection, received, length < wanted ? length : wanted))
        report_wrong_echo(connection, received, length < wanted ? length : wanted);
    if (length > wanted)
        fail(WRONG_ECHO, "wrong echo: connection %" PRIu32 ", message %" PRIu32 ": %zu bytes more than were sent",
             connection->number, connection->sequence, length - wanted);
    if (options.transport == UDP && length < wanted)
        fail(WRONG_ECHO, "wrong echo: connection %" PRIu32 ", message %" PRIu32 ": a datagram of %zu bytes instead of %zu",
             connection->number, connection->sequence, length, wanted);
    connection->received_bytes += length;
    return length == wanted;
}

/* Receives until the message is complete or the socket empty. Bytes that nobody asked for are noticed as well. */
static void receive_some(struct connection *connection) {
    for (;;) {
        ssize_t result = receive_bytes(connection);
        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0 && errno == EAGAIN)
            return;
        if (result < 0 && (errno == ECONNRESET || errno == ECONNREFUSED))
            report_hang_up(connection, strerror(errno));
        if (result < 0)
            fail(OTHER, "receiving on connection %" PRIu32 " failed: %s", connection->number, strerror(errno));
        if (result == 0)
            report_hang_up(connection, "end of file");
        bool complete = request ? take_response(connection, receive_buffer, (size_t)result)
                                : take_echo(connection, receive_buffer, (size_t)result);
        if (complete) {
            /* A whole echo empties the socket; what may still follow makes a new edge. */
            complete_message(connection);
            return;
        }
    }
}

/* --- all connections --- */

static void wait_until(int64_t deadline_ns) {
    struct pollfd watched = {.fd = epoll_descriptor, .events = POLLIN};
    int64_t left_ns = deadline_ns - now_ns();
    struct timespec timeout = {left_ns > 0 ? left_ns / NS_PER_S : 0, left_ns > 0 ? left_ns % NS_PER_S : 0};
    /* epoll_wait(2) counts in milliseconds; epoll_pwait2(2), which doesn't, is missing in older C libraries. */
    if (ppoll(&watched, 1, &timeout, NULL) < 0 && errno != EINTR)
        fail(OTHER, "ppoll failed: %s", strerror(errno));
}

static bool serve_events(int timeout_ms) {
    struct epoll_event events[EVENTS_PER_WAIT];
    int count = epoll_wait(epoll_descriptor, events, EVENTS_PER_WAIT, timeout_ms);
    if (count < 0 && errno != EINTR)
        fail(OTHER, "epoll_wait failed: %s", strerror(errno));
    for (int index = 0; index < count; index++) {
        struct connection *connection = &connections[events[index].data.u32];
        if (events[index].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            receive_some(connection);
        if (events[index].events & EPOLLOUT && connection->in_flight)
            send_rest(connection);
    }
    return count > 0;
}

/* Sends what is due under --interval-us; returns when the next message is. */
static int64_t send_due(int64_t before_ns) {
    int64_t next_ns = before_ns;
    for (uint32_t number = 0; number < connections_open; number++) {
        struct connection *connection = &connections[number];
        int64_t current_ns = now_ns();
        if (!connection->in_flight && connection->due_ns <= current_ns) {
            start_message(connection, current_ns);
            connection->due_ns += options.interval_ns;
            if (connection->due_ns < current_ns) /* Far behind: don't catch up in a burst. */
                connection->due_ns = current_ns + options.interval_ns;
        }
        if (!connection->in_flight && connection->due_ns < next_ns)
            next_ns = connection->due_ns;
    }
    return next_ns;
}

__attribute__((noreturn)) static void report_stall(void) {
    for (uint32_t number = 0; number < connections_open; number++) {
        struct connection *connection = &connections[number];
        if (connection->in_flight)
            fail(STALLED,
                 "no byte came for %.1f s on any of %" PRIu32 " waiting connections; the first is connection %" PRIu32
                 ", message %" PRIu32 ", %s",
                 (double)options.patience_ns / (double)NS_PER_S, connections_in_flight, number, connection->sequence,
                 describe_progress(connection));
    }
    fail(OTHER, "stalled with nothing in flight: a mistake in the load program");
}

/* Runs until `deadline_ns`, or until `messages` were counted (if not 0), or (with `until_quiet`) nothing is in flight. */
static void run(int64_t deadline_ns, uint64_t messages, bool until_quiet) {
    int64_t progress_ns = now_ns();
    while (!(until_quiet && connections_in_flight == 0) && !(messages && messages_counted >= messages)) {
        int64_t current_ns = now_ns();
        if (current_ns >= deadline_ns)
            return;
        if (sending && options.interval_ns)
            wait_until(send_due(deadline_ns));
        else if (options.idle && !until_quiet)
            wait_until(deadline_ns);
        int64_t left_ms = (deadline_ns - current_ns) / 1000000 + 1;
        bool polled = sending && options.interval_ns;
        if (serve_events(polled || (options.idle && !until_quiet) ? 0 : left_ms < 200 ? (int)left_ms : 200) ||
            connections_in_flight == 0)
            progress_ns = now_ns();
        else if (now_ns() - progress_ns > options.patience_ns)
            report_stall();
    }
}

static const int64_t FOREVER_NS = INT64_MAX / 2;

/* Where the server is. */
struct place {
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_un un;
    } address;
    socklen_t length;
    char name[128]; /* For people. */
};

static struct place find_server(void) {
    struct place place = {.length = sizeof place.address.in};
    if (options.transport == UNIX) {
        place.address.un.sun_family = AF_UNIX;
        if (strlen(options.path) >= sizeof place.address.un.sun_path)
            refuse_usage("--path %s is longer than %zu bytes", options.path, sizeof place.address.un.sun_path - 1);
        strcpy(place.address.un.sun_path, options.path);
        place.length = sizeof place.address.un;
        snprintf(place.name, sizeof place.name, "%s", options.path);
        return place;
    }
    place.address.in.sin_family = AF_INET;
    place.address.in.sin_port = htons(options.port);
    if (inet_pton(AF_INET, options.host, &place.address.in.sin_addr) != 1)
        refuse_usage("--host %s is not an IPv4 address", options.host);
    snprintf(place.name, sizeof place.name, "%s:%u", options.host, options.port);
    return place;
}

#ifdef WITH_TLS
static SSL_CTX *tls_context;

/* Only the given certificate is trusted, and it must name the host: what answers is the server that was started. */
static void make_tls_context(void) {
    tls_context = SSL_CTX_new(TLS_client_method());
    if (tls_context == NULL || SSL_CTX_load_verify_locations(tls_context, options.certificate, NULL) != 1)
        fail(OTHER, "the certificate %s can't be used: %s", options.certificate, ERR_reason_error_string(ERR_get_error()));
    SSL_CTX_set_verify(tls_context, SSL_VERIFY_PEER, NULL);
    /* What is sent again after a refusal is composed anew, at the same address or not. */
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

static void shake_hands(struct connection *connection) {
    connection->tls = SSL_new(tls_context);
    if (connection->tls == NULL || SSL_set_fd(connection->tls, connection->descriptor) != 1 ||
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection->tls), options.host) != 1)
        report_tls(connection, "set-up");
    if (SSL_connect(connection->tls) != 1)
        report_tls(connection, "handshake");
}
#endif

static void connect_one(uint32_t number, const struct place *place) {
    struct connection *connection = &connections[number];
    int on = 1, kind = options.transport == UDP ? SOCK_DGRAM : SOCK_STREAM;
    *connection = (struct connection){.number = number};
    if (request && (connection->response = malloc(RESPONSE_BYTES_MAX)) == NULL)
        fail(OTHER, "no memory for the responses of connection %" PRIu32, number);
    connection->descriptor = socket(place->address.any.sa_family, kind | SOCK_CLOEXEC, 0);
    if (connection->descriptor < 0)
        fail(OTHER, "socket for connection %" PRIu32 " failed: %s", number, strerror(errno));
    if ((options.transport == TCP || options.transport == TLS) &&
        setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        fail(OTHER, "TCP_NODELAY on connection %" PRIu32 " failed: %s", number, strerror(errno));
    /* A time limit for sending is one for connecting as well (socket(7)); that for receiving is one for a handshake. */
    struct timeval patience = {options.patience_ns / NS_PER_S, options.patience_ns % NS_PER_S / 1000};
    setsockopt(connection->descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(connection->descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(connection->descriptor, &place->address.any, place->length) != 0) {
        if (errno == ECONNREFUSED)
            fail(REFUSED, "connection %" PRIu32 " to %s was refused: is a server listening there?", number, place->name);
        if (errno == EINPROGRESS)
            fail(STALLED, "connection %" PRIu32 " to %s was not accepted within %.1f s", number, place->name,
                 (double)options.patience_ns / (double)NS_PER_S);
        fail(OTHER, "connection %" PRIu32 " to %s failed: %s", number, place->name, strerror(errno));
    }
#ifdef WITH_TLS
    if (options.transport == TLS)
        shake_hands(connection);
#endif
    if (fcntl(connection->descriptor, F_SETFL, fcntl(connection->descriptor, F_GETFL) | O_NONBLOCK) != 0)
        fail(OTHER, "fcntl failed: %s", strerror(errno));
    struct epoll_event interest = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = number};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, connection->descriptor, &interest) != 0)
        fail(OTHER, "epoll_ctl failed: %s", strerror(errno));
    connections_open++;
}

/* Opens the connections one after another, each with one echo, which shows that the server has really accepted it. */
static void connect_all(void) {
    struct place place = find_server();
    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(options.connections, sizeof *connections);
    if (epoll_descriptor < 0 || connections == NULL)
        fail(OTHER, "no resources for %" PRIu32 " connections: %s", options.connections, strerror(errno));
    for (uint32_t number = 0; number < options.connections; number++) {
        connect_one(number, &place);
        start_message(&connections[number], now_ns());
        run(FOREVER_NS, 0, true);
    }
}

static void start_all(void) {
    int64_t current_ns = now_ns();
    sending = true;
    for (uint32_t number = 0; number < connections_open; number++) {
        if (options.interval_ns) /* Spread over one interval. */
            connections[number].due_ns = current_ns + options.interval_ns * number / connections_open;
        else
            start_message(&connections[number], current_ns);
    }
}

/* Every message that left must come back whole, and nothing after it. */
static void finish_all(void) {
    sending = false;
    run(FOREVER_NS, 0, true);
    if (options.idle) { /* Were they still served? */
        for (uint32_t number = 0; number < connections_open; number++)
            start_message(&connections[number], now_ns());
        run(FOREVER_NS, 0, true);
    }
    for (uint32_t number = 0; number < connections_open; number++) {
        receive_some(&connections[number]);
#ifdef WITH_TLS
        if (connections[number].tls)
            SSL_shutdown(connections[number].tls);
#endif
        close(connections[number].descriptor);
    }
}

/* --- the program --- */

static void check_descriptors(void) {
    struct rlimit limit;
    rlim_t needed = options.connections + DESCRIPTORS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    if (limit.rlim_max >= needed) {
        limit.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
            return;
    }
    fprintf(stderr,
            "load: %" PRIu32 " connections need %ju descriptors, and the limit is %ju; raise it with: ulimit -n %ju\n",
            options.connections, (uintmax_t)needed, (uintmax_t)limit.rlim_max, (uintmax_t)needed);
    exit(2);
}

static const char help[] =
    "usage: load --port PORT [options]\n"
    "Keeps one message in flight on each connection to an echo server, checks every byte, prints one JSON object.\n"
    "  --transport NAME    tcp, unix, udp or tls (tcp)\n"
    "  --host ADDRESS      IPv4 address of the server (127.0.0.1)\n"
    "  --path PATH         of the server, with unix, instead of --port\n"
    "  --certificate FILE  with tls: what the server must show (PEM)\n"
    "  --http-get TARGET   send requests for this to an HTTP/1.1 server, instead of messages to be echoed\n"
    "  --body TEXT         that each response must have\n"
    "  --connections N     (1)\n"
    "  --size BYTES        of a message (1024)\n"
    "  --duration SECONDS  of the measured window (1)\n"
    "  --messages N        end the window after N messages instead, all connections together\n"
    "  --warm-up SECONDS   the same load before the window, not measured (0.2)\n"
    "  --interval-us US    one message per connection every US microseconds, instead of as fast as the echoes come\n"
    "  --idle              send nothing in the window; check afterwards that the connections still live\n"
    "  --server-pid PID    read the CPU time of this process at both ends of the window\n"
    "  --seed N            of the contents (1)\n"
    "  --patience SECONDS  give up when nothing came for this time (5)\n";

static double parse_number(const char *name, const char *text, double least, double most) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= least && value <= most))
        refuse_usage("--%s %s: not a number from %g to %g", name, text, least, most);
    return value;
}

static enum transport parse_transport(const char *text) {
    for (int transport = 0; transport < TRANSPORTS; transport++)
        if (strcmp(text, transport_names[transport]) == 0)
            return (enum transport)transport;
    refuse_usage("--transport %s is not known", text);
}

static void check_transport(void) {
    if (options.transport == UNIX ? options.path == NULL : options.port == 0)
        refuse_usage("--%s is missing", options.transport == UNIX ? "path" : "port");
    if (options.transport == TLS && options.certificate == NULL)
        refuse_usage("--transport tls needs a --certificate");
    if (options.transport == UDP && options.size_bytes > DATAGRAM_BYTES_MAX)
        refuse_usage("--size %zu does not fit into a datagram", options.size_bytes);
    if ((options.http_get == NULL) != (options.body == NULL) || (options.http_get && options.transport == UDP))
        refuse_usage("--http-get and --body go together, and over a stream");
#ifndef WITH_TLS
    if (options.transport == TLS)
        refuse_usage("this program was compiled without TLS");
#endif
}

static void parse_options(int count, char **arguments) {
    static const struct option known[] = {
        {"host", required_argument, NULL, 'h'},       {"port", required_argument, NULL, 'p'},
        {"connections", required_argument, NULL, 'c'}, {"size", required_argument, NULL, 's'},
        {"duration", required_argument, NULL, 'd'},   {"messages", required_argument, NULL, 'm'},
        {"warm-up", required_argument, NULL, 'w'},    {"interval-us", required_argument, NULL, 'i'},
        {"idle", no_argument, NULL, 'I'},             {"server-pid", required_argument, NULL, 'P'},
        {"seed", required_argument, NULL, 'S'},       {"patience", required_argument, NULL, 't'},
        {"transport", required_argument, NULL, 'T'},  {"path", required_argument, NULL, 'u'},
        {"certificate", required_argument, NULL, 'C'}, {"http-get", required_argument, NULL, 'g'},
        {"body", required_argument, NULL, 'b'},       {"help", no_argument, NULL, 'H'},
        {NULL, 0, NULL, 0},
    };
    int chosen, index = 0;
    while ((chosen = getopt_long(count, arguments, "", known, &index)) != -1) {
        const char *name = known[index].name;
        switch (chosen) {
        case 'h': options.host = optarg; break;
        case 'p': options.port = (uint16_t)parse_number(name, optarg, 1, 65535); break;
        case 'c': options.connections = (uint32_t)parse_number(name, optarg, 1, CONNECTIONS_MAX); break;
        case 's': options.size_bytes = (size_t)parse_number(name, optarg, 1, SIZE_BYTES_MAX); break;
        case 'd': options.duration_ns = (int64_t)(parse_number(name, optarg, 0.001, DURATION_S_MAX) * 1e9); break;
        case 'm': options.messages = (uint64_t)parse_number(name, optarg, 1, 1e12); break;
        case 'w': options.warm_up_ns = (int64_t)(parse_number(name, optarg, 0, DURATION_S_MAX) * 1e9); break;
        case 'i': options.interval_ns = (int64_t)(parse_number(name, optarg, 1, 1e9) * 1e3); break;
        case 'I': options.idle = true; break;
        case 'P': options.server_pid = (pid_t)parse_number(name, optarg, 1, INT32_MAX); break;
        case 'S': options.seed = (uint64_t)parse_number(name, optarg, 0, 9007199254740992.0); break;
        case 't': options.patience_ns = (int64_t)(parse_number(name, optarg, 0.01, DURATION_S_MAX) * 1e9); break;
        case 'T': options.transport = parse_transport(optarg); break;
        case 'u': options.path = optarg; break;
        case 'C': options.certificate = optarg; break;
        case 'g': options.http_get = optarg; break;
        case 'b': options.body = optarg; break;
        case 'H': fputs(help, stdout); exit(0);
        default: exit(2); /* getopt has said what is wrong. */
        }
    }
    if (optind < count)
        refuse_usage("unexpected argument %s", arguments[optind]);
    check_transport();
    if (options.idle && (options.messages || options.interval_ns))
        refuse_usage("--idle sends nothing: it goes with neither --messages nor --interval-us");
}

int main(int count, char **arguments) {
    parse_options(count, arguments);
    check_descriptors();
    if (options.http_get)
        make_request();
    else
        make_filler();
#ifdef WITH_TLS
    /* OpenSSL writes to its socket by write(2), which knows no MSG_NOSIGNAL. */
    signal(SIGPIPE, SIG_IGN);
    if (options.transport == TLS)
        make_tls_context();
#endif
    /* The default slack of 50 us would be added to every pause of --interval-us. */
    prctl(PR_SET_TIMERSLACK, 1);

    connect_all();
    if (!options.idle)
        start_all();
    run(now_ns() + options.warm_up_ns, 0, false);
    open_window();
    run(options.messages ? window_begin_ns + DURATION_S_MAX * NS_PER_S : window_begin_ns + options.duration_ns, options.messages,
        false);
    close_window();
    finish_all();
    print_result();
    return 0;
}
