// Echo and HTTP servers on kio, with a coroutine for each connection. Measured by ringlab.
//
//   server echo|http [--host ADDRESS] [--port P] [--workers N]

#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/tcp.h>
#include <span>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "kio/core/coro.h"
#include "kio/core/worker_pool.h"

using namespace kio;
using namespace kio::io;

namespace {

constexpr std::size_t buffer_bytes = 65536;
constexpr int backlog = 1024;
constexpr std::string_view end_of_head = "\r\n\r\n";
constexpr std::string_view answer =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

// Sends back what arrives.
DetachedTask echo(Worker& worker, const int connection) {
    std::vector<char> buffer(buffer_bytes);
    for (;;) {
        const auto read = co_await worker.async_read(connection, std::span(buffer));
        if (!read.has_value() || *read <= 0) {
            break;
        }
        const auto sent = co_await worker.async_write_exact(connection, std::span<const char>(buffer.data(), *read));
        if (!sent.has_value()) {
            break;
        }
    }
    close(connection);
}

// Answers each request with the same bytes, and looks at nothing but where a request ends.
DetachedTask hello(Worker& worker, const int connection) {
    std::vector<char> buffer(buffer_bytes);
    std::string answers;
    std::size_t matched = 0;  // Of the end of a head, which may arrive in parts.
    for (;;) {
        const auto read = co_await worker.async_read(connection, std::span(buffer));
        if (!read.has_value() || *read <= 0) {
            break;
        }
        answers.clear();
        for (const char byte : std::span(buffer).first(*read)) {
            matched = byte == end_of_head[matched] ? matched + 1 : byte == '\r' ? 1 : 0;
            if (matched == end_of_head.size()) {
                answers += answer;
                matched = 0;
            }
        }
        if (!answers.empty()) {
            const auto sent =
                co_await worker.async_write_exact(connection, std::span<const char>(answers.data(), answers.size()));
            if (!sent.has_value()) {
                break;
            }
        }
    }
    close(connection);
}

DetachedTask accept_all(Worker& worker, const int listener, const bool http) {
    for (;;) {
        sockaddr_storage address{};
        socklen_t length = sizeof(address);
        const auto accepted = co_await worker.async_accept(listener, reinterpret_cast<sockaddr*>(&address), &length);
        if (!accepted.has_value()) {
            continue;
        }
        const int on = 1;
        setsockopt(*accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (http) {
            hello(worker, *accepted).detach();
        } else {
            echo(worker, *accepted).detach();
        }
    }
}

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}

int listen_at(const in_addr host, const int port, const bool shared) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (shared) {
        setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr = host;
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        fail("cannot listen");
    }
    if (listen(listener, backlog) != 0) {
        fail("cannot listen");
    }
    return listener;
}

int port_of(const int listener) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin_port);
}

}  // namespace

int main(int count, char** words) {
    const std::string_view kind = count > 1 ? words[1] : "";
    const char* host = "127.0.0.1";
    int port = 0;
    int workers = 1;
    for (int index = 2; index + 1 < count; index += 2) {
        const std::string_view name = words[index];
        if (name == "--host") {
            host = words[index + 1];
        } else {
            (name == "--port" ? port : workers) = std::atoi(words[index + 1]);
        }
    }
    if ((kind != "echo" && kind != "http") || workers < 1) {
        std::fputs("usage: server echo|http [--host ADDRESS] [--port P] [--workers N]\n", stderr);
        return 2;
    }
    in_addr address{};
    if (inet_pton(AF_INET, host, &address) != 1) {
        std::fprintf(stderr, "--host %s is not an IPv4 address\n", host);
        return 1;
    }
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGTERM, [](int) { _exit(0); });

    std::vector<int> listeners{listen_at(address, port, workers > 1)};
    port = port_of(listeners[0]);
    while (static_cast<int>(listeners.size()) < workers) {
        listeners.push_back(listen_at(address, port, true));
    }
    WorkerConfig config{};
    config.uring_queue_depth = 4096;
    config.default_op_slots = 8192;
    std::atomic<std::size_t> next{0};
    IOPool pool(static_cast<std::size_t>(workers), config, [&](Worker& worker) {
        accept_all(worker, listeners[next++], kind == "http").detach();
    });
    std::printf("listening on %s:%d\n", host, port);
    std::fflush(stdout);
    for (;;) {
        pause();
    }
}
