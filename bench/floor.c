/* The floor of the benchmarks: what the same work costs in plain C, without an event loop around it.
 *
 *   floor echo            An echo server on epoll: one thread, one hot buffer for all connections, read, then write. Prints its
 *                         port as {"port": N} on stdout. Ends at SIGTERM, or when its stdin ends (the program that started it
 *                         has gone).
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
#include <time.h>
#include <unistd.h>

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

/* --- echo --- */

struct connection {
    int descriptor;
    /* What the socket didn't take; nothing is read meanwhile, so the peer is slowed down and this stays bounded. */
    unsigned char *unsent;
    size_t unsent_offset, unsent_bytes;
};

static int epoll_descriptor;
static unsigned char buffer[BUFFER_BYTES];

static void watch(int operation, int descriptor, uint32_t events, void *data) {
    struct epoll_event interest = {.events = events, .data.ptr = data};
    if (epoll_ctl(epoll_descriptor, operation, descriptor, &interest) != 0)
        die("epoll_ctl failed");
}

static void drop(struct connection *connection) {
    close(connection->descriptor);
    free(connection->unsent);
    free(connection);
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

static void echo_some(struct connection *connection) {
    ssize_t length = recv(connection->descriptor, buffer, sizeof buffer, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length <= 0) {
        drop(connection);
        return;
    }
    ssize_t sent = send_some(connection->descriptor, buffer, (size_t)length);
    if (sent < 0) {
        drop(connection);
    } else if (sent < length) {
        connection->unsent_bytes = (size_t)(length - sent);
        connection->unsent_offset = 0;
        connection->unsent = malloc(connection->unsent_bytes);
        if (connection->unsent == NULL)
            die("no memory");
        memcpy(connection->unsent, buffer + sent, connection->unsent_bytes);
        watch(EPOLL_CTL_MOD, connection->descriptor, EPOLLOUT, connection);
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
    watch(EPOLL_CTL_ADD, descriptor, EPOLLIN, connection);
}

static bool stdin_has_ended(void) {
    ssize_t length = read(STDIN_FILENO, buffer, sizeof buffer);
    return length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR);
}

static int serve_echo(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(SOCK_NONBLOCK, &address);
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
    printf("{\"port\": %u}\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll_descriptor, events, EVENTS_PER_WAIT, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait failed");
        for (int index = 0; index < count; index++) {
            if (events[index].data.ptr == &listener_mark)
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
    if (count == 2 && strcmp(arguments[1], "echo") == 0)
        return serve_echo();
    if (count == 3 && strcmp(arguments[1], "server") == 0 && atol(arguments[2]) > 0)
        return time_server(atol(arguments[2]));
    if (count == 4 && strcmp(arguments[1], "connect") == 0 && atol(arguments[3]) > 0)
        return time_connect((uint16_t)atoi(arguments[2]), atol(arguments[3]));
    fputs("usage: floor echo | floor server COUNT | floor connect PORT COUNT\n", stderr);
    return 2;
}
