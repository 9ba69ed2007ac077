//! How should a stream receive? Compares echo servers with 50 connections, one for each way that the driver offers, by
//! the CPU time of the server's thread per message.
//!
//! Rounds alternate the ways, and ratios are computed within a round, because single runs drift by 20 to 30%. `cargo
//! bench -p ringloop-driver --bench receive` runs all of it. With `--quick`, or under `cargo test`, it runs one small
//! round.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use ringloop_driver::{
    BackendChoice, Buffer, Config, Driver, Event, Interest, Mode, Op, SharedFd, Token,
};

const CONNECTIONS: usize = 50;
const HOT_BUFFER: usize = 256 * 1024;

/// A way to receive and echo.
#[derive(Clone, Copy)]
enum Way {
    /// Level-triggered epoll without the driver: the lower bound.
    Raw,
    /// An edge watch per connection. Reads and writes directly, all into one hot buffer.
    Watch(BackendChoice),
    /// A read operation per connection, into a buffer of its own. Writes directly.
    ReadOperation(BackendChoice),
}

const WAYS: [(&str, Way); 4] = [
    ("raw epoll, read into one hot buffer", Way::Raw),
    (
        "epoll watch, read into one hot buffer",
        Way::Watch(BackendChoice::Epoll),
    ),
    (
        "io_uring watch, read into one hot buffer",
        Way::Watch(BackendChoice::IoUring),
    ),
    (
        "io_uring read operation per connection",
        Way::ReadOperation(BackendChoice::IoUring),
    ),
];

/// The arm that the others are compared with.
const REFERENCE: usize = 1;

struct Plan {
    rounds: usize,
    /// Messages of each size per arm and round.
    loads: [(usize, usize); 3],
}

const FULL: Plan = Plan {
    rounds: 7,
    loads: [(1024, 60_000), (16 * 1024, 50_000), (100 * 1024, 15_000)],
};
const QUICK: Plan = Plan {
    rounds: 1,
    loads: [(1024, 1000), (16 * 1024, 1000), (100 * 1024, 500)],
};

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench")
        && !std::env::args().any(|argument| argument == "--quick");
    let plan = if full { FULL } else { QUICK };
    println!(
        "{CONNECTIONS} connections, server CPU per echoed message in us: median of {} rounds",
        plan.rounds
    );
    println!(
        "(and the median of its ratios to \"{}\" within a round)\n",
        WAYS[REFERENCE].0
    );
    print!("{:<44}", "");
    for (size, _) in plan.loads {
        print!("{:>18}", format!("{} KB", size / 1024));
    }
    println!();

    let refused = Driver::new(&Config::with_backend(BackendChoice::IoUring)).err();
    let usable = |way: Way| refused.is_none() || !uses_io_uring(way);
    // For each way and load, one figure per round.
    let mut costs = vec![vec![Vec::new(); plan.loads.len()]; WAYS.len()];
    for round in 0..plan.rounds {
        for (load, (size, messages)) in plan.loads.into_iter().enumerate() {
            for turn in 0..WAYS.len() {
                let index = (turn + round) % WAYS.len();
                if usable(WAYS[index].1) {
                    costs[index][load].push(run(WAYS[index].1, size, messages));
                }
            }
        }
    }
    for (index, (name, way)) in WAYS.into_iter().enumerate() {
        print!("{name:<44}");
        if !usable(way) {
            println!(
                "  SKIPPED: {}",
                refused
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string)
            );
            continue;
        }
        for (own, reference) in costs[index].iter().zip(&costs[REFERENCE]) {
            let ratios = own
                .iter()
                .zip(reference)
                .map(|(cost, reference)| cost / reference);
            let cell = format!(
                "{:.2} ({:.2}x)",
                median(own.clone()),
                median(ratios.collect())
            );
            print!("{cell:>18}");
        }
        println!();
    }
    println!(
        "{:<44}  not offered: the driver has no such operation",
        "io_uring multishot receive, buffer ring"
    );
}

fn uses_io_uring(way: Way) -> bool {
    matches!(
        way,
        Way::Watch(BackendChoice::IoUring) | Way::ReadOperation(BackendChoice::IoUring)
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// Runs one server and its load. Returns the server's CPU time per message in microseconds.
fn run(way: Way, size: usize, messages: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let servers: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| listener.accept().unwrap().0)
        .collect();
    for stream in clients.iter().chain(&servers) {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    let server = thread::spawn(move || {
        let before = thread_cpu();
        match way {
            Way::Raw => serve_raw(servers),
            Way::Watch(choice) => serve_by_watch(choice, servers),
            Way::ReadOperation(choice) => serve_by_operation(choice, servers),
        }
        thread_cpu().saturating_sub(before)
    });
    let echoed = load(clients, size, messages);
    let used = server.join().unwrap();
    used.as_secs_f64() * 1e6 / echoed as f64
}

/// The CPU time of this thread so far.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec to `time`, which outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

// ---- the servers

/// A connection, and the bytes that could not be written at once.
struct Connection {
    stream: TcpStream,
    unsent: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            unsent: Vec::new(),
        }
    }

    /// Writes directly, and keeps what the socket does not accept.
    fn echo(&mut self, bytes: &[u8]) {
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return self.resume();
        }
        let sent = written(self.stream.write(bytes));
        self.unsent.extend_from_slice(&bytes[sent..]);
    }

    /// Writes what was kept.
    fn resume(&mut self) {
        let sent = written(self.stream.write(&self.unsent));
        self.unsent.drain(..sent);
    }
}

fn written(result: io::Result<usize>) -> usize {
    match result {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Polls. A signal is not a failure.
fn poll(driver: &mut Driver, timeout: Option<Duration>, events: &mut Vec<Event>) {
    match driver.poll(timeout, events) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => panic!("{error}"),
        _ => {}
    }
}

fn serve_by_watch(choice: BackendChoice, streams: Vec<TcpStream>) {
    let mut driver = Driver::new(&Config::with_backend(choice)).unwrap();
    let mut connections: Vec<Option<(Token, Connection)>> = Vec::new();
    for stream in streams {
        let token = driver
            .watch(
                stream.as_raw_fd(),
                Interest::READ | Interest::WRITE,
                Mode::Edge,
            )
            .unwrap();
        let index = token.index() as usize;
        connections.resize_with(connections.len().max(index + 1), || None);
        connections[index] = Some((token, Connection::new(stream)));
    }
    let mut open = CONNECTIONS;
    let mut hot = vec![0; HOT_BUFFER];
    let mut events: Vec<Event> = Vec::new();
    // If the buffer was filled, there may be more to read without a new event.
    let mut returning: Vec<usize> = Vec::new();
    while open > 0 {
        events.clear();
        let timeout = if returning.is_empty() {
            None
        } else {
            Some(Duration::ZERO)
        };
        poll(&mut driver, timeout, &mut events);
        let again = std::mem::take(&mut returning);
        let ready = events
            .iter()
            .map(|event| (event.token().index() as usize, event.readiness()));
        let again = again
            .into_iter()
            .map(|index| (index, ringloop_driver::Readiness::READABLE));
        for (index, readiness) in ready.chain(again) {
            let Some((token, connection)) = &mut connections[index] else {
                continue;
            };
            if readiness.is_writable() && !connection.unsent.is_empty() {
                connection.resume();
            }
            if !readiness.is_readable() {
                continue;
            }
            match connection.stream.read(&mut hot) {
                Ok(0) => {
                    driver.unwatch(*token);
                    connections[index] = None;
                    open -= 1;
                }
                Ok(count) => {
                    connection.echo(&hot[..count]);
                    if count == hot.len() {
                        returning.push(index);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn serve_by_operation(choice: BackendChoice, streams: Vec<TcpStream>) {
    let mut driver = Driver::new(&Config::with_backend(choice)).unwrap();
    let mut connections: HashMap<RawFd, Connection> = HashMap::new();
    let receive = |fd: RawFd, mut buffer: Vec<u8>| {
        buffer.clear();
        // SAFETY: the connections are closed when all operations on them are over.
        let fd = unsafe { SharedFd::borrow_raw(fd) };
        Op::Read {
            fd,
            buffer: Buffer::new(buffer),
            offset: None,
        }
    };
    for stream in streams {
        let fd = stream.as_raw_fd();
        driver.watch(fd, Interest::WRITE, Mode::Edge).unwrap();
        driver
            .submit(receive(fd, Vec::with_capacity(HOT_BUFFER)))
            .unwrap();
        connections.insert(fd, Connection::new(stream));
    }
    let mut open = CONNECTIONS;
    let mut events: Vec<Event> = Vec::new();
    while open > 0 {
        events.clear();
        poll(&mut driver, None, &mut events);
        for event in &events {
            if event.is_watch() {
                // Only a socket that was full becomes writable. This is rare, so there is no table for it.
                for connection in connections
                    .values_mut()
                    .filter(|connection| !connection.unsent.is_empty())
                {
                    connection.resume();
                }
                continue;
            }
            let count = event.io_result().unwrap();
            let Some(Op::Read { fd, buffer, .. }) = driver.take(event.token()) else {
                panic!("no buffer")
            };
            if count == 0 {
                open -= 1;
                continue;
            }
            let buffer: Vec<u8> = buffer.into_owner().unwrap();
            connections.get_mut(&fd.as_raw_fd()).unwrap().echo(&buffer);
            driver.submit(receive(fd.as_raw_fd(), buffer)).unwrap();
        }
    }
}

/// An epoll set without the driver, for the lower bound and for the load.
struct RawEpoll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl RawEpoll {
    fn new() -> RawEpoll {
        // SAFETY: takes no memory of ours.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(set >= 0, "{}", io::Error::last_os_error());
        RawEpoll {
            // SAFETY: a new descriptor, which nobody else has.
            set: unsafe { OwnedFd::from_raw_fd(set) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; 256],
        }
    }

    fn control(
        &self,
        operation: libc::c_int,
        stream: &TcpStream,
        events: libc::c_int,
        index: usize,
    ) {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: index as u64,
        };
        // SAFETY: the kernel copies `event`, which outlives the call.
        let result = unsafe {
            libc::epoll_ctl(
                self.set.as_raw_fd(),
                operation,
                stream.as_raw_fd(),
                &raw mut event,
            )
        };
        assert_eq!(result, 0);
    }

    fn wait(&mut self) -> Vec<usize> {
        let (buffer, room) = (self.events.as_mut_ptr(), self.events.len() as i32);
        // SAFETY: the kernel writes at most `room` events to `buffer`, which belongs to `self.events` and is that long.
        let count = unsafe { libc::epoll_wait(self.set.as_raw_fd(), buffer, room, -1) };
        // Interrupted: nothing is ready, and the caller waits again.
        self.events[..count.max(0) as usize]
            .iter()
            .map(|event| event.u64 as usize)
            .collect()
    }
}

fn serve_raw(streams: Vec<TcpStream>) {
    let mut epoll = RawEpoll::new();
    let mut connections: Vec<Connection> = streams.into_iter().map(Connection::new).collect();
    for (index, connection) in connections.iter().enumerate() {
        epoll.control(
            libc::EPOLL_CTL_ADD,
            &connection.stream,
            libc::EPOLLIN,
            index,
        );
    }
    let mut open = CONNECTIONS;
    let mut hot = vec![0; HOT_BUFFER];
    while open > 0 {
        for index in epoll.wait() {
            let connection = &mut connections[index];
            if !connection.unsent.is_empty() {
                connection.resume();
                if connection.unsent.is_empty() {
                    epoll.control(
                        libc::EPOLL_CTL_MOD,
                        &connection.stream,
                        libc::EPOLLIN,
                        index,
                    );
                }
            }
            match connection.stream.read(&mut hot) {
                Ok(0) => {
                    epoll.control(libc::EPOLL_CTL_DEL, &connection.stream, 0, index);
                    open -= 1;
                }
                Ok(count) => {
                    connection.echo(&hot[..count]);
                    if !connection.unsent.is_empty() {
                        let both = libc::EPOLLIN | libc::EPOLLOUT;
                        epoll.control(libc::EPOLL_CTL_MOD, &connection.stream, both, index);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

// ---- the load

/// Every connection repeatedly sends a message and waits for its echo, until `messages` were echoed. Checks what comes
/// back. Returns the number of echoes.
fn load(mut streams: Vec<TcpStream>, size: usize, messages: usize) -> usize {
    let message: Vec<u8> = (0..size).map(|number| (number % 251) as u8).collect();
    let mut epoll = RawEpoll::new();
    // The bytes sent and received of each connection's current message.
    let mut progress = vec![(0, 0); streams.len()];
    for (index, stream) in streams.iter().enumerate() {
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        epoll.control(libc::EPOLL_CTL_ADD, stream, interest, index);
    }
    let (mut started, mut echoed) = (streams.len(), 0);
    let mut buffer = vec![0; HOT_BUFFER];
    let patience = Instant::now() + Duration::from_secs(120);
    while echoed < messages.max(streams.len()) {
        assert!(Instant::now() < patience, "the server has lost something");
        for index in epoll.wait() {
            let (stream, (sent, received)) = (&mut streams[index], &mut progress[index]);
            loop {
                if *sent < size {
                    *sent += written(stream.write(&message[*sent..]));
                }
                match stream.read(&mut buffer) {
                    Ok(count) => {
                        assert_eq!(
                            buffer[..count],
                            message[*received..*received + count],
                            "a wrong echo"
                        );
                        *received += count;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
                if *received == size {
                    echoed += 1;
                    if started < messages {
                        started += 1;
                        (*sent, *received) = (0, 0);
                    } else {
                        break;
                    }
                }
            }
        }
    }
    echoed
}
