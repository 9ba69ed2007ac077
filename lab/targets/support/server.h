/* What the C servers have in common: all but how they wait for the kernel. Included once, by each of them.
 *
 *   SERVER echo|http|discard [--port P] [--workers N] [--buffer BYTES]
 *   SERVER bind [--mode bind|listen|accept] [--count N] [--concurrent N]
 *
 * Each worker is a thread with a listening socket of its own. An includer defines serve().
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, WORKERS_MAX = 1024 };

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
enum { ANSWER_BYTES = sizeof answer - 1 };
static const char end_of_request[] = "\r\n\r\n";
enum { END_BYTES = sizeof end_of_request - 1 };

static const char *program;
static bool serves_http, discards;
static struct in_addr host;
static size_t buffer_bytes = 64 * 1024;

/* Serves the connections of a listening socket, which does not block, for ever. */
static void serve(int listener);

static void die(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", program, what, strerror(errno));
    exit(1);
}

static int make_listener(uint16_t port, bool shares_port, bool listens) {
    int on = 1, descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = host};
    if (descriptor < 0 || setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (shares_port && setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0 || (listens && listen(descriptor, BACKLOG) != 0))
        die("listening failed");
    return descriptor;
}

static struct sockaddr_in address_of(int descriptor) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &length) != 0)
        die("getsockname failed");
    return address;
}

/* --- a connection --- */

struct connection {
    int descriptor;
    /* How much of the end of a request has been seen, so that it is found across packets. */
    unsigned matched;
    /* Of discard: how much has been received. */
    uint64_t received_bytes;
    /* What the socket didn't take; nothing is read meanwhile, so the peer is slowed down and this stays bounded. */
    unsigned char *unsent;
    size_t unsent_offset, unsent_bytes;
    /* For the includer. */
    unsigned references;
    bool is_closing;
    /* The peer has sent its last: a short read doesn't mean that nothing is left, because the end is not reported again. */
    bool has_ended;
};

enum next { WAIT_READABLE, READ_AGAIN, WAIT_WRITABLE, CLOSE };

static struct connection *make_connection(int descriptor) {
    int on = 1;
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        die("no memory");
    connection->descriptor = descriptor;
    /* A peer may be gone already; reading will tell. */
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connection;
}

static void drop_connection(struct connection *connection) {
    close(connection->descriptor);
    free(connection->unsent);
    free(connection);
}

/* Returns what was sent, or -1 after a failure that ends the connection. */
static ssize_t send_some(int descriptor, const void *data, size_t length) {
    size_t sent = 0;
    while (sent < length) {
        ssize_t result = send(descriptor, (const unsigned char *)data + sent, length - sent, MSG_NOSIGNAL);
        if (result >= 0)
            sent += (size_t)result;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            return -1;
    }
    return (ssize_t)sent;
}

/* Sends bytes, and keeps what there is no room for. */
static bool send_all(struct connection *connection, const void *data, size_t length) {
    ssize_t sent = send_some(connection->descriptor, data, length);
    if (sent < 0)
        return false;
    if ((size_t)sent == length)
        return true;
    connection->unsent_bytes = length - (size_t)sent;
    connection->unsent_offset = 0;
    connection->unsent = malloc(connection->unsent_bytes);
    if (connection->unsent == NULL)
        die("no memory");
    memcpy(connection->unsent, (const unsigned char *)data + sent, connection->unsent_bytes);
    return true;
}

static unsigned requests_in(struct connection *connection, const unsigned char *data, size_t length) {
    /* The usual packet is one whole request. */
    if (connection->matched == 0 && length >= END_BYTES &&
        memmem(data, length, end_of_request, END_BYTES) == data + length - END_BYTES)
        return 1;
    unsigned requests = 0;
    for (size_t index = 0; index < length; index++) {
        if (data[index] == end_of_request[connection->matched])
            connection->matched++;
        else
            connection->matched = data[index] == '\r';
        if (connection->matched == END_BYTES) {
            connection->matched = 0;
            requests++;
        }
    }
    return requests;
}

static bool answer_requests(struct connection *connection, unsigned requests) {
    if (requests < 2)
        return requests == 0 || send_all(connection, answer, ANSWER_BYTES);
    char *answers = malloc((size_t)requests * ANSWER_BYTES);
    if (answers == NULL)
        die("no memory");
    for (unsigned index = 0; index < requests; index++)
        memcpy(answers + (size_t)index * ANSWER_BYTES, answer, ANSWER_BYTES);
    bool is_sent = send_all(connection, answers, (size_t)requests * ANSWER_BYTES);
    free(answers);
    return is_sent;
}

/* Tells the peer, which has sent its last, how much of it has been received. */
static void answer_count(const struct connection *connection) {
    char count[24];
    int length = snprintf(count, sizeof count, "%" PRIu64 "\n", connection->received_bytes);
    /* The socket has room, because nothing has been sent on it before. */
    (void)send_some(connection->descriptor, count, (size_t)length);
}

/* Reads once and answers. */
static enum next converse(struct connection *connection, unsigned char *buffer) {
    ssize_t length = recv(connection->descriptor, buffer, buffer_bytes, 0);
    if (length < 0)
        return errno == EAGAIN || errno == EINTR ? WAIT_READABLE : CLOSE;
    if (length == 0 && discards)
        answer_count(connection);
    if (length == 0)
        return CLOSE;
    connection->received_bytes += (uint64_t)length;
    if (discards)
        return (size_t)length == buffer_bytes || connection->has_ended ? READ_AGAIN : WAIT_READABLE;
    bool is_sent = serves_http ? answer_requests(connection, requests_in(connection, buffer, (size_t)length))
                               : send_all(connection, buffer, (size_t)length);
    if (!is_sent)
        return CLOSE;
    if (connection->unsent)
        return WAIT_WRITABLE;
    return (size_t)length == buffer_bytes || connection->has_ended ? READ_AGAIN : WAIT_READABLE;
}

/* Sends what was kept, as far as there is room. */
static enum next send_rest(struct connection *connection) {
    ssize_t sent = send_some(connection->descriptor, connection->unsent + connection->unsent_offset,
                             connection->unsent_bytes - connection->unsent_offset);
    if (sent < 0)
        return CLOSE;
    connection->unsent_offset += (size_t)sent;
    if (connection->unsent_offset < connection->unsent_bytes)
        return WAIT_WRITABLE;
    free(connection->unsent);
    connection->unsent = NULL;
    return READ_AGAIN;
}

/* --- making listeners --- */

struct operation {
    int listener, client, server;
};

static void begin_operation(struct operation *operation, const char *mode) {
    operation->listener = make_listener(0, false, strcmp(mode, "bind") != 0);
    operation->client = operation->server = -1;
    if (strcmp(mode, "accept") != 0)
        return;
    struct sockaddr_in address = address_of(operation->listener);
    operation->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Over loopback the connection stands when connect returns. */
    if (operation->client < 0 || connect(operation->client, (struct sockaddr *)&address, sizeof address) != 0)
        die("connecting failed");
    operation->server = accept4(operation->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    /* A reset leaves no port behind in TIME_WAIT: with thousands of those the kernel looks long for a free one. */
    struct linger reset = {.l_onoff = 1};
    if (operation->server < 0 || setsockopt(operation->client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0)
        die("accepting failed");
}

static void end_operation(const struct operation *operation) {
    if (operation->client >= 0) {
        close(operation->client);
        close(operation->server);
    }
    close(operation->listener);
}

static void time_binding(const char *mode, long count, long concurrent) {
    struct timespec begin, end;
    struct operation *held = calloc((size_t)concurrent, sizeof *held);
    if (held == NULL)
        die("no memory");
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long done = 0;
    for (; done < count; done += concurrent) {
        for (long index = 0; index < concurrent; index++)
            begin_operation(&held[index], mode);
        for (long index = 0; index < concurrent; index++)
            end_operation(&held[index]);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(held);
    long long ns = (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
    printf("{\"operations\": %ld, \"ns\": %lld}\n", done, ns);
}

/* --- the program --- */

static void *work(void *listener) {
    serve((int)(intptr_t)listener);
    return NULL;
}

static void end_process(int signal) {
    (void)signal;
    _exit(0);
}

static void start_workers(uint16_t port, long workers) {
    pthread_t threads[WORKERS_MAX];
    int listeners[WORKERS_MAX];
    struct sigaction action = {.sa_handler = end_process};
    sigaction(SIGTERM, &action, NULL);
    for (long index = 0; index < workers; index++) {
        listeners[index] = make_listener(port, workers > 1, true);
        port = ntohs(address_of(listeners[index]).sin_port);
    }
    printf("listening on %s:%u\n", inet_ntoa(host), port);
    fflush(stdout);
    for (long index = 1; index < workers; index++)
        if ((errno = pthread_create(&threads[index], NULL, work, (void *)(intptr_t)listeners[index])) != 0)
            die("starting a thread failed");
    serve(listeners[0]);
}

__attribute__((noreturn)) static void refuse_usage(void) {
    fprintf(stderr,
            "usage: %s echo|http|discard [--host ADDRESS] [--port P] [--workers N] [--buffer BYTES]\n"
            "       %s bind [--mode bind|listen|accept] [--count N] [--concurrent N]\n",
            program, program);
    exit(2);
}

static long parse_number(const char *text, long least, long most) {
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most) {
        fprintf(stderr, "%s: %s is not a number from %ld to %ld\n", program, text, least, most);
        exit(2);
    }
    return number;
}

int main(int count, char **arguments) {
    static const struct option known[] = {
        {"host", required_argument, NULL, 'h'},
        {"port", required_argument, NULL, 'p'}, {"workers", required_argument, NULL, 'w'},
        {"buffer", required_argument, NULL, 'b'}, {"mode", required_argument, NULL, 'm'},
        {"count", required_argument, NULL, 'c'}, {"concurrent", required_argument, NULL, 'n'},
        {NULL, 0, NULL, 0},
    };
    const char *mode = "listen";
    long port = 0, workers = 1, operations = 20000, concurrent = 1;
    int chosen;
    program = arguments[0];
    host.s_addr = htonl(INADDR_LOOPBACK);
    while ((chosen = getopt_long(count, arguments, "", known, NULL)) != -1) {
        switch (chosen) {
        case 'h':
            if (inet_pton(AF_INET, optarg, &host) != 1)
                refuse_usage();
            break;
        case 'p': port = parse_number(optarg, 0, 65535); break;
        case 'w': workers = parse_number(optarg, 1, WORKERS_MAX); break;
        case 'b': buffer_bytes = (size_t)parse_number(optarg, 1, 1 << 30); break;
        case 'm': mode = optarg; break;
        case 'c': operations = parse_number(optarg, 1, 1000000000); break;
        case 'n': concurrent = parse_number(optarg, 1, 1000000); break;
        default: refuse_usage();
        }
    }
    if (optind != count - 1)
        refuse_usage();
    const char *workload = arguments[optind];
    if (strcmp(workload, "bind") == 0) {
        if (strcmp(mode, "bind") != 0 && strcmp(mode, "listen") != 0 && strcmp(mode, "accept") != 0)
            refuse_usage();
        time_binding(mode, operations, concurrent);
        return 0;
    }
    serves_http = strcmp(workload, "http") == 0;
    discards = strcmp(workload, "discard") == 0;
    if (!serves_http && !discards && strcmp(workload, "echo") != 0)
        refuse_usage();
    start_workers((uint16_t)port, workers);
}
