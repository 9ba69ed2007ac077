// Echo and HTTP servers on Asio with C++20 coroutines. Measured by ringlab.
#include <array>
#include <asio.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using asio::awaitable;
using asio::co_spawn;
using asio::detached;
using asio::use_awaitable;
using asio::ip::tcp;
using Options = std::map<std::string, std::string>;

constexpr int backlog = 1024;
constexpr std::size_t buffer_bytes = 65536;
constexpr std::string_view answer =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
constexpr std::string_view end_of_request = "\r\n\r\n";
const tcp::endpoint anywhere(asio::ip::address_v4::loopback(), 0);

// Sends back what it receives. That a connection ends, in whatever way, arrives as an exception and is nobody else's business.
awaitable<void> echo(tcp::socket socket) try {
    std::vector<char> buffer(buffer_bytes);
    for (;;) {
        const auto count = co_await socket.async_read_some(asio::buffer(buffer), use_awaitable);
        co_await asio::async_write(socket, asio::buffer(buffer, count), use_awaitable);
    }
} catch (const std::system_error&) {
}

// Answers each request with the same bytes, and looks at nothing but where a request ends.
awaitable<void> hello(tcp::socket socket) try {
    std::vector<char> buffer(buffer_bytes);
    std::string answers;
    std::size_t begun = 0;  // Bytes at the start of the buffer that may be the first of an end.
    for (;;) {
        const auto count = co_await socket.async_read_some(asio::buffer(buffer) + begun, use_awaitable);
        std::string_view data(buffer.data(), begun + count);
        answers.clear();
        for (std::size_t end; (end = data.find(end_of_request)) != data.npos;) {
            answers += answer;
            data.remove_prefix(end + end_of_request.size());
        }
        if (!answers.empty()) co_await asio::async_write(socket, asio::buffer(answers), use_awaitable);
        begun = std::min(data.size(), end_of_request.size() - 1);
        data.copy(buffer.data(), begun, data.size() - begun);
    }
} catch (const std::system_error&) {
}

awaitable<void> accept(tcp::acceptor acceptor, awaitable<void> (*converse)(tcp::socket)) {
    const auto executor = co_await asio::this_coro::executor;
    for (;;) {
        tcp::socket socket = co_await acceptor.async_accept(use_awaitable);
        socket.set_option(tcp::no_delay(true));
        co_spawn(executor, converse(std::move(socket)), detached);
    }
}

// Lets what a coroutine threw, and nobody handled, end the program with its text.
void rethrow(std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
}

void serve(const Options& options, awaitable<void> (*converse)(tcp::socket)) {
    const int workers = std::stoi(options.at("--workers"));
    asio::io_context context(workers);
    tcp::acceptor acceptor(context);
    acceptor.open(tcp::v4());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind({asio::ip::make_address_v4(options.at("--host")), static_cast<asio::ip::port_type>(std::stoi(options.at("--port")))});
    acceptor.listen(backlog);
    asio::signal_set signals(context, SIGTERM);
    signals.async_wait([](auto, auto) { std::_Exit(0); });
    std::cout << "listening on " << acceptor.local_endpoint() << std::endl;
    co_spawn(context, accept(std::move(acceptor), converse), rethrow);
    std::vector<std::jthread> threads;
    for (int thread = 1; thread < workers; ++thread) threads.emplace_back([&context] { context.run(); });
    context.run();
}

// One operation: bind to a port of the kernel's choice; listen; accept one connection; and close what was opened.
awaitable<void> bind_once(const std::string& mode) {
    const auto executor = co_await asio::this_coro::executor;
    tcp::acceptor acceptor(executor, tcp::v4());
    acceptor.bind(anywhere);
    if (mode == "bind") co_return;
    acceptor.listen(backlog);
    if (mode == "listen") co_return;
    tcp::socket client(executor);
    co_await client.async_connect(acceptor.local_endpoint(), use_awaitable);
    tcp::socket accepted = co_await acceptor.async_accept(use_awaitable);
    // With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind.
    client.set_option(asio::socket_base::linger(true, 0));
}

awaitable<void> bind_many(std::string mode, long count) {
    for (long done = 0; done < count; ++done) co_await bind_once(mode);
}

void time_binding(const Options& options) {
    const auto& mode = options.at("--mode");
    if (mode != "bind" && mode != "listen" && mode != "accept") throw std::runtime_error("--mode is bind, listen or accept");
    const long concurrent = std::stol(options.at("--concurrent"));
    const long each = (std::stol(options.at("--count")) + concurrent - 1) / concurrent;
    asio::io_context context(1);
    for (long task = 0; task < concurrent; ++task) {
        co_spawn(context, bind_many(mode, each), rethrow);
    }
    const auto begin = std::chrono::steady_clock::now();
    context.run();
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin;
    std::cout << "{\"operations\": " << each * concurrent << ", \"ns\": " << taken.count() << "}" << std::endl;
}

int main(int count, char** words) try {
    Options options{{"--host", "127.0.0.1"}, {"--port", "0"}, {"--workers", "1"}, {"--mode", "listen"}, {"--count", "10000"},
                    {"--concurrent", "1"}};
    const std::string command = count > 1 ? words[1] : "";
    for (int index = 2; index < count; index += 2) {
        if (!options.contains(words[index]) || index + 1 == count) throw std::runtime_error(std::string("what is ") + words[index] + "?");
        options[words[index]] = words[index + 1];
    }
    if (command == "echo") serve(options, echo);
    else if (command == "http") serve(options, hello);
    else if (command == "bind") time_binding(options);
    else throw std::runtime_error("usage: server echo|http|bind [--host H] [--port P] [--workers N] [--mode M] [--count N] [--concurrent N]");
} catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
}
