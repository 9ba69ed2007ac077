/* A second opinion on an echo server, which shares no code with the load generator: test_oracle.py compares the two.
 *
 *   oracle PORT PID CONNECTIONS BYTES SECONDS
 *
 * Each connection has one message in flight, every byte that comes back is compared, and messages differ by connection and by
 * number. After a warm-up of 0.1 s it counts for SECONDS, and reads the CPU clock of process PID (clock_getcpuclockid(3)) at both
 * ends. It polls by poll(2), keeps every latency and sorts them: as simple as can be, not fast.
 *
 * Prints {"operations_per_s": N, "server_cpu_us": N, "latency_ns_p50": N}, or a line on stderr and ends with status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 100, BYTES_MAX = 64 * 1024, LATENCIES_MAX = 1 << 24, GIVE_UP_S = 60 };

static struct {
    unsigned number, received;
    double started_ns;
    unsigned char message[BYTES_MAX];
} connections[CONNECTIONS_MAX];
static struct pollfd sockets[CONNECTIONS_MAX];
static double latencies_ns[LATENCIES_MAX];

static void require(int condition, const char *what) {
    if (condition)
        return;
    perror(what);
    exit(1);
}

static double clock_ns(clockid_t clock) {
    struct timespec now;
    require(clock_gettime(clock, &now) == 0, "oracle: a clock can't be read");
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void send_next(int index, int bytes) {
    unsigned number = ++connections[index].number;
    for (unsigned at = 0; at < (unsigned)bytes; at++)
        connections[index].message[at] = (unsigned char)(at * 31 + at / 256 + number * 17 + (unsigned)index * 101);
    connections[index].received = 0;
    connections[index].started_ns = clock_ns(CLOCK_MONOTONIC);
    require(send(sockets[index].fd, connections[index].message, (size_t)bytes, MSG_NOSIGNAL) == bytes, "oracle: send");
}

/* Receives what is there; returns whether the echo is complete. */
static int receive(int index, int bytes) {
    static unsigned char buffer[BYTES_MAX + 1]; /* One more than there may be. */
    ssize_t came = recv(sockets[index].fd, buffer, sizeof buffer, 0);
    require(came > 0, "oracle: recv");
    unsigned received = connections[index].received;
    if (came > (ssize_t)(bytes - (int)received) || memcmp(buffer, connections[index].message + received, (size_t)came) != 0) {
        fprintf(stderr, "oracle: wrong echo on connection %d, message %u\n", index, connections[index].number);
        exit(1);
    }
    connections[index].received += (unsigned)came;
    return connections[index].received == (unsigned)bytes;
}

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments) {
    if (count != 6) {
        fprintf(stderr, "usage: oracle PORT PID CONNECTIONS BYTES SECONDS\n");
        return 1;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((unsigned short)atoi(arguments[1]));
    int number = atoi(arguments[3]), bytes = atoi(arguments[4]);
    double window_ns = 1e9 * atof(arguments[5]);
    clockid_t server;
    require(number > 0 && number <= CONNECTIONS_MAX && bytes > 0 && bytes <= BYTES_MAX, "oracle: too many, or too large");
    require(clock_getcpuclockid(atoi(arguments[2]), &server) == 0, "oracle: the server has no CPU clock");
    alarm(GIVE_UP_S);
    for (int index = 0; index < number; index++) {
        sockets[index] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
        require(connect(sockets[index].fd, (struct sockaddr *)&address, sizeof address) == 0, "oracle: connect");
    }
    for (int index = 0; index < number; index++)
        send_next(index, bytes);

    long counted = -1; /* The warm-up. */
    double begin_ns = clock_ns(CLOCK_MONOTONIC) + 1e8, cpu_ns = 0, now_ns;
    while ((now_ns = clock_ns(CLOCK_MONOTONIC)) < begin_ns + window_ns) {
        if (counted < 0 && now_ns >= begin_ns) {
            counted = 0;
            cpu_ns = clock_ns(server);
            begin_ns = clock_ns(CLOCK_MONOTONIC);
        }
        require(poll(sockets, (nfds_t)number, 10) >= 0, "oracle: poll");
        for (int index = 0; index < number; index++) {
            if (sockets[index].revents == 0 || !receive(index, bytes))
                continue;
            if (counted >= 0 && counted < LATENCIES_MAX)
                latencies_ns[counted++] = clock_ns(CLOCK_MONOTONIC) - connections[index].started_ns;
            send_next(index, bytes);
        }
    }
    cpu_ns = clock_ns(server) - cpu_ns;
    require(counted > 0, "oracle: nothing came back");
    qsort(latencies_ns, (size_t)counted, sizeof *latencies_ns, compare);
    printf("{\"operations_per_s\": %.1f, \"server_cpu_us\": %.4f, \"latency_ns_p50\": %.0f}\n",
           1e9 * (double)counted / (now_ns - begin_ns), cpu_ns / 1000 / (double)counted, latencies_ns[counted / 2]);
    return 0;
}
