/* The floor on io_uring: multishot accept, a multishot poll per connection, and then direct reads and writes with one buffer per
 * thread, which costs less than receiving by operation (see docs/performance.md). Linux 6.1 or later.
 * cc -O2 -pthread -o server server.c -luring
 */
#define _GNU_SOURCE
#include "../support/server.h"
#include <liburing.h>
#include <poll.h>

enum { SUBMISSIONS = 1024, COMPLETIONS = 8192 };

/* The lowest bits of user_data say what has completed; the others are the connection. */
enum kind { READABLE, WRITABLE, ACCEPTED, CANCELLED, KINDS };

static struct io_uring_sqe *next_entry(struct io_uring *ring) {
    struct io_uring_sqe *entry = io_uring_get_sqe(ring);
    if (entry == NULL) {
        io_uring_submit(ring);
        entry = io_uring_get_sqe(ring);
    }
    if (entry == NULL)
        die("the submission queue is full");
    return entry;
}

static void mark(struct io_uring_sqe *entry, struct connection *connection, enum kind kind) {
    io_uring_sqe_set_data64(entry, (uintptr_t)connection | (uintptr_t)kind);
}

static void await_connections(struct io_uring *ring, int listener) {
    struct io_uring_sqe *entry = next_entry(ring);
    io_uring_prep_multishot_accept(entry, listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    mark(entry, NULL, ACCEPTED);
}

static void await_input(struct io_uring *ring, struct connection *connection) {
    struct io_uring_sqe *entry = next_entry(ring);
    io_uring_prep_poll_multishot(entry, connection->descriptor, POLLIN | POLLRDHUP);
    mark(entry, connection, READABLE);
    connection->references++;
}

static void await_room(struct io_uring *ring, struct connection *connection) {
    struct io_uring_sqe *entry = next_entry(ring);
    io_uring_prep_poll_add(entry, connection->descriptor, POLLOUT);
    mark(entry, connection, WRITABLE);
    connection->references++;
}

/* The kernel's requests hold the socket open: it is closed when the last of them has ended. */
static void close_later(struct io_uring *ring, struct connection *connection) {
    struct io_uring_sqe *entry = next_entry(ring);
    io_uring_prep_cancel_fd(entry, connection->descriptor, IORING_ASYNC_CANCEL_ALL);
    mark(entry, NULL, CANCELLED);
    connection->is_closing = true;
}

static void go_on(struct io_uring *ring, struct connection *connection, unsigned char *buffer, enum next next) {
    while (next == READ_AGAIN)
        next = converse(connection, buffer);
    if (next == WAIT_WRITABLE)
        await_room(ring, connection);
    else if (next == CLOSE)
        close_later(ring, connection);
}

static void take_connection(struct io_uring *ring, int listener, const struct io_uring_cqe *completion) {
    if (completion->res >= 0)
        await_input(ring, make_connection(completion->res));
    else if (completion->res != -ECONNABORTED && completion->res != -EAGAIN) {
        errno = -completion->res;
        die("accepting failed");
    }
    if (!(completion->flags & IORING_CQE_F_MORE))
        await_connections(ring, listener);
}

static void take_completion(struct io_uring *ring, int listener, unsigned char *buffer, const struct io_uring_cqe *completion) {
    enum kind kind = completion->user_data % KINDS;
    struct connection *connection = (struct connection *)(uintptr_t)(completion->user_data - kind);
    if (kind == ACCEPTED)
        take_connection(ring, listener, completion);
    if (connection == NULL)
        return;
    bool is_last = !(completion->flags & IORING_CQE_F_MORE);
    connection->references -= is_last;
    if (connection->is_closing) {
        if (connection->references == 0)
            drop_connection(connection);
        return;
    }
    if (kind == READABLE && is_last)
        await_input(ring, connection);
    if (kind == READABLE && completion->res > 0 && (completion->res & (POLLRDHUP | POLLHUP)))
        connection->has_ended = true;
    /* While something is unsent nothing is read; once it is sent, whatever has come meanwhile is. */
    if (kind == WRITABLE)
        go_on(ring, connection, buffer, send_rest(connection));
    else if (connection->unsent == NULL)
        go_on(ring, connection, buffer, READ_AGAIN);
}

static void serve(int listener) {
    struct io_uring ring;
    struct io_uring_params parameters = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE, .cq_entries = COMPLETIONS};
    unsigned char *buffer = malloc(buffer_bytes);
    int error = io_uring_queue_init_params(SUBMISSIONS, &ring, &parameters);
    if (error || buffer == NULL) {
        errno = error ? -error : ENOMEM;
        die("io_uring is refused");
    }
    await_connections(&ring, listener);
    for (;;) {
        struct io_uring_cqe *completion;
        unsigned head, count = 0;
        error = io_uring_submit_and_wait(&ring, 1);
        if (error < 0 && error != -EINTR) {
            errno = -error;
            die("io_uring_enter failed");
        }
        io_uring_for_each_cqe(&ring, head, completion) {
            take_completion(&ring, listener, buffer, completion);
            count++;
        }
        io_uring_cq_advance(&ring, count);
    }
}
