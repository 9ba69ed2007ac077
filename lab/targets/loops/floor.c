/* The floor of the benchmarks: what the same work costs in plain C, without an event loop around it.
 *
 *   floor echo            An echo server on epoll: one thread, one hot buffer for all connections, read, then write. Prints its
 *                         port as {"port": N} on stdout. Ends at SIGTERM, or when its stdin ends (the program that started it
 *                         has gone).
 *   floor echo-unix PATH  The same on a Unix socket.
 *   floor echo-udp        The same on one UDP socket.
 *   floor echo-tls CERTIFICATE KEY   The same under TLS, with OpenSSL (compiled with -DWITH_TLS -lssl -lcrypto).
 *   floor sink            A server that reads and answers nothing.
 *   floor server COUNT    Makes and closes a listening socket COUNT times; prints the time of one in ns.
 *   floor connect PORT COUNT   Connects to 127.0.0.1:PORT and closes COUNT times; prints the time of one in ns.
 *
 * Sockets are set up exactly as those of the measured loops: TCP_NODELAY, a backlog of 1024.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
#endif

enum { BUFFER_BYTES = 256 * 1024, BACKLOG = 1024, EVENTS_PER_WAIT = 256 };

static void die(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_anywhere(int flags, struct sockaddr_in *address) {
    int on = 1, descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (descriptor < 0 || setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        bind(descriptor, (struct sockaddr *)address, length) != 0 || listen(descriptor, BACKLOG) != 0 ||
        getsockname(descriptor, (struct sockaddr *)address, &length) != 0)
        die("listening on 127.0.0.1 failed");
    return descriptor;
}

static int listen_at(const char *path) {
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(address.sun_path, path);
    if (descriptor < 0 || bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0 || listen(descriptor, BACKLOG) != 0)
        die("listening on a Unix socket failed");
    return descriptor;
}

/* --- echo --- */

struct connection {
    int descriptor;
    /* What the socket didn't take; nothing is read meanwhile, so the peer is slowed down and this stays bounded. */
    unsigned char *unsent;
    size_t unsent_offset, unsent_bytes;
#ifdef WITH_TLS
    SSL *tls;
#endif
};

static int epoll_descriptor;
static bool discarding;
static unsigned char buffer[BUFFER_BYTES];
#ifdef WITH_TLS
static SSL_CTX *tls_context; /* NULL: no TLS. */
#endif

static void watch(int operation, int descriptor, uint32_t events, void *data) {
    struct epoll_event interest = {.events = events, .data.ptr = data};
    if (epoll_ctl(epoll_descriptor, operation, descriptor, &interest) != 0)
        die("epoll_ctl failed");
}

static void drop(struct connection *connection) {
#ifdef WITH_TLS
    SSL_free(connection->tls);
#endif
    close(connection->descriptor);
    free(connection->unsent);
    free(connection);
}

#ifdef WITH_TLS
/* Turns the outcome of SSL_read into that of recv(2). */
static ssize_t tls_result(const struct connection *connection, int result, size_t moved) {
    if (result > 0)
        return (ssize_t)moved;
    int error = SSL_get_error(connection->tls, result);
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
    return -1;
}
#endif

/* What answers `length` bytes in the buffer (none: nothing but what a handshake has to say): they themselves, or their records. */
static ssize_t seal(struct connection *connection, size_t length, unsigned char **sealed) {
#ifdef WITH_TLS
    if (connection->tls) {
        size_t moved = 0;
        if (length && SSL_write_ex(connection->tls, buffer, length, &moved) != 1)
            return -1;
        return BIO_get_mem_data(SSL_get_wbio(connection->tls), (char **)sealed);
    }
#endif
    (void)connection;
    *sealed = buffer;
    return (ssize_t)length;
}

/* Forgets what has been sealed. */
static void unseal(struct connection *connection) {
#ifdef WITH_TLS
    if (connection->tls)
        (void)BIO_reset(SSL_get_wbio(connection->tls));
#endif
    (void)connection;
}

/* Returns what was sent, or -1 after a failure that ends the connection. */
static ssize_t send_some(int descriptor, const unsigned char *data, size_t length) {
    size_t sent = 0;
    while (sent < length) {
        ssize_t result = send(descriptor, data + sent, length - sent, MSG_NOSIGNAL);
        if (result >= 0)
            sent += (size_t)result;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            return -1;
    }
    return (ssize_t)sent;
}

/* As recv(2), into the buffer. */
static ssize_t receive(struct connection *connection) {
#ifdef WITH_TLS
    if (connection->tls) { /* Of which each call yields a record at most. */
        size_t length = 0, moved = 0;
        ssize_t result = -1;
        errno = EAGAIN;
        while (length < sizeof buffer) {
            int outcome = SSL_read_ex(connection->tls, buffer + length, sizeof buffer - length, &moved);
            if ((result = tls_result(connection, outcome, moved)) <= 0)
                break;
            length += moved;
        }
        return length ? (ssize_t)length : result;
    }
#endif
    return recv(connection->descriptor, buffer, sizeof buffer, 0);
}

/* Bytes have left the socket that are not in the buffer yet. */
static bool has_more(const struct connection *connection) {
#ifdef WITH_TLS
    return connection->tls && !connection->unsent && SSL_pending(connection->tls) > 0;
#else
    (void)connection;
    return false;
#endif
}

static void echo_some(struct connection *connection) {
    do {
        unsigned char *answer;
        ssize_t length = receive(connection);
        bool nothing = length < 0 && (errno == EAGAIN || errno == EINTR);
        if (length <= 0 && !nothing) {
            drop(connection);
            return;
        }
        ssize_t answer_bytes = discarding ? 0 : seal(connection, nothing ? 0 : (size_t)length, &answer);
        ssize_t sent = answer_bytes > 0 ? send_some(connection->descriptor, answer, (size_t)answer_bytes) : answer_bytes;
        if (sent < 0) {
            drop(connection);
            return;
        }
        if (sent < answer_bytes) {
            connection->unsent_bytes = (size_t)(answer_bytes - sent);
            connection->unsent_offset = 0;
            connection->unsent = malloc(connection->unsent_bytes);
            if (connection->unsent == NULL)
                die("no memory");
            memcpy(connection->unsent, answer + sent, connection->unsent_bytes);
            watch(EPOLL_CTL_MOD, connection->descriptor, EPOLLOUT, connection);
        }
        unseal(connection);
    } while (has_more(connection));
}

/* Every datagram that has come goes back to where it came from. */
static void echo_datagrams(int descriptor) {
    for (;;) {
        struct sockaddr_storage peer;
        socklen_t peer_bytes = sizeof peer;
        ssize_t length = recvfrom(descriptor, buffer, sizeof buffer, 0, (struct sockaddr *)&peer, &peer_bytes);
        if (length < 0)
            return; /* An error of an earlier datagram, or nothing left. */
        sendto(descriptor, buffer, (size_t)length, 0, (struct sockaddr *)&peer, peer_bytes);
    }
}

static void flush(struct connection *connection) {
    ssize_t sent = send_some(connection->descriptor, connection->unsent + connection->unsent_offset,
                             connection->unsent_bytes - connection->unsent_offset);
    if (sent < 0) {
        drop(connection);
        return;
    }
    connection->unsent_offset += (size_t)sent;
    if (connection->unsent_offset == connection->unsent_bytes) {
        free(connection->unsent);
        connection->unsent = NULL;
        watch(EPOLL_CTL_MOD, connection->descriptor, EPOLLIN, connection);
    }
}

static void accept_one(int listener) {
    int descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
            return;
        die("accept failed");
    }
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        die("no memory");
    connection->descriptor = descriptor;
#ifdef WITH_TLS
    if (tls_context) {
        connection->tls = SSL_new(tls_context);
        BIO *in = BIO_new_socket(descriptor, BIO_NOCLOSE), *out = BIO_new(BIO_s_mem());
        if (connection->tls == NULL || in == NULL || out == NULL)
            die("no memory");
        /* All records of an answer are sent at once, from memory; left to itself, OpenSSL writes each to the socket. */
        SSL_set_bio(connection->tls, in, out);
        SSL_set_accept_state(connection->tls);
    }
#endif
    watch(EPOLL_CTL_ADD, descriptor, EPOLLIN, connection);
}

static bool stdin_has_ended(void) {
    ssize_t length = read(STDIN_FILENO, buffer, sizeof buffer);
    return length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR);
}

static int bind_datagrams(struct sockaddr_in *address) {
    int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (descriptor < 0 || bind(descriptor, (struct sockaddr *)address, length) != 0 ||
        getsockname(descriptor, (struct sockaddr *)address, &length) != 0)
        die("binding a UDP socket to 127.0.0.1 failed");
    return descriptor;
}

/* Serves for ever: connections to a listening socket, or datagrams. */
static int serve(int listener, bool datagrams, uint16_t port) {
    static char listener_mark, stdin_mark;
    struct epoll_event events[EVENTS_PER_WAIT];
    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_descriptor < 0)
        die("epoll_create1 failed");
    watch(EPOLL_CTL_ADD, listener, EPOLLIN, &listener_mark);
    /* Files and /dev/null can't be watched (EPERM), and don't end in the sense that is meant here. */
    struct epoll_event interest = {.events = EPOLLIN, .data.ptr = &stdin_mark};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, STDIN_FILENO, &interest) != 0 && errno != EPERM && errno != EBADF)
        die("watching stdin failed");
    printf("{\"port\": %u}\n", port);
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll_descriptor, events, EVENTS_PER_WAIT, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait failed");
        for (int index = 0; index < count; index++) {
            if (events[index].data.ptr == &listener_mark && datagrams)
                echo_datagrams(listener);
            else if (events[index].data.ptr == &listener_mark)
                accept_one(listener);
            else if (events[index].data.ptr == &stdin_mark) {
                if (stdin_has_ended())
                    return 0;
            } else if (((struct connection *)events[index].data.ptr)->unsent)
                flush(events[index].data.ptr);
            else
                echo_some(events[index].data.ptr);
        }
    }
}

static int serve_tcp(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(SOCK_NONBLOCK, &address);
    return serve(listener, false, ntohs(address.sin_port));
}

static int serve_udp(void) {
    struct sockaddr_in address;
    int descriptor = bind_datagrams(&address);
    return serve(descriptor, true, ntohs(address.sin_port));
}

#ifdef WITH_TLS
static int serve_tls(const char *certificate, const char *key) {
    tls_context = SSL_CTX_new(TLS_server_method());
    if (tls_context == NULL || SSL_CTX_use_certificate_file(tls_context, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls_context, key, SSL_FILETYPE_PEM) != 1)
        die("the certificate or its key can't be used");
    /* Without these, each record takes two reads. */
    SSL_CTX_set_read_ahead(tls_context, 1);
    SSL_CTX_set_default_read_buffer_len(tls_context, BUFFER_BYTES);
    return serve_tcp();
}
#endif

/* --- single operations --- */

/* Time as it passes, less the time that this process waited for a CPU that others had: the same clock as in subject.py. */
static int64_t now_ns(void) {
    long long ran_ns, waited_ns = 0;
    struct timespec now;
    FILE *schedstat = fopen("/proc/self/schedstat", "re");
    if (schedstat) {
        if (fscanf(schedstat, "%lld %lld", &ran_ns, &waited_ns) != 2)
            waited_ns = 0;
        fclose(schedstat);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - waited_ns;
}

static int time_server(long count) {
    struct sockaddr_in address;
    int64_t begin_ns = now_ns();
    for (long done = 0; done < count; done++)
        close(listen_anywhere(SOCK_NONBLOCK, &address));
    printf("{\"operation_ns\": %.1f}\n", (double)(now_ns() - begin_ns) / (double)count);
    return 0;
}

static int time_connect(uint16_t port, long count) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    int64_t begin_ns = now_ns();
    for (long done = 0; done < count; done++) {
        int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0 ||
            setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 || close(descriptor) != 0)
            die("connecting failed");
    }
    printf("{\"operation_ns\": %.1f}\n", (double)(now_ns() - begin_ns) / (double)count);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 2 && (strcmp(arguments[1], "echo") == 0 || strcmp(arguments[1], "sink") == 0)) {
        discarding = strcmp(arguments[1], "sink") == 0;
        return serve_tcp();
    }
    if (count == 3 && strcmp(arguments[1], "echo-unix") == 0)
        return serve(listen_at(arguments[2]), false, 0);
    if (count == 2 && strcmp(arguments[1], "echo-udp") == 0)
        return serve_udp();
#ifdef WITH_TLS
    if (count == 4 && strcmp(arguments[1], "echo-tls") == 0)
        return serve_tls(arguments[2], arguments[3]);
#endif
    if (count == 3 && strcmp(arguments[1], "server") == 0 && atol(arguments[2]) > 0)
        return time_server(atol(arguments[2]));
    if (count == 4 && strcmp(arguments[1], "connect") == 0 && atol(arguments[3]) > 0)
        return time_connect((uint16_t)atoi(arguments[2]), atol(arguments[3]));
    fputs("usage: floor echo | echo-unix PATH | echo-udp | echo-tls CERTIFICATE KEY | sink | server COUNT | connect PORT COUNT\n",
          stderr);
    return 2;
}
