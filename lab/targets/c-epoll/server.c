/* The floor on epoll: level-triggered, one buffer per thread, read, then write. cc -O2 -pthread -o server server.c */
#define _GNU_SOURCE
#include "../support/server.h"
#include <sys/epoll.h>

enum { EVENTS_PER_WAIT = 256 };

static void watch(int epoll, int operation, int descriptor, uint32_t events, void *data) {
    struct epoll_event interest = {.events = events, .data.ptr = data};
    if (epoll_ctl(epoll, operation, descriptor, &interest) != 0)
        die("epoll_ctl failed");
}

static void accept_one(int epoll, int listener) {
    int descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0)
        watch(epoll, EPOLL_CTL_ADD, descriptor, EPOLLIN, make_connection(descriptor));
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        die("accepting failed");
}

static void serve_connection(int epoll, struct connection *connection, unsigned char *buffer) {
    bool was_full = connection->unsent != NULL;
    enum next next = was_full ? send_rest(connection) : converse(connection, buffer);
    if (next == CLOSE)
        drop_connection(connection);
    else if (was_full != (next == WAIT_WRITABLE))
        watch(epoll, EPOLL_CTL_MOD, connection->descriptor, was_full ? EPOLLIN : EPOLLOUT, connection);
}

static void serve(int listener) {
    static char listener_mark;
    struct epoll_event events[EVENTS_PER_WAIT];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    unsigned char *buffer = malloc(buffer_bytes);
    if (epoll < 0 || buffer == NULL)
        die("no resources");
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, &listener_mark);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_PER_WAIT, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait failed");
        for (int index = 0; index < count; index++) {
            if (events[index].data.ptr == &listener_mark)
                accept_one(epoll, listener);
            else
                serve_connection(epoll, events[index].data.ptr, buffer);
        }
    }
}
