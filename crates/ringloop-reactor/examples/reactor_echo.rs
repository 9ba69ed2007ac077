//! An echo server directly on the reactor: no tasks, no callbacks, one thread.
//!
//! ```text
//! cargo run --release -p ringloop-reactor --example reactor_echo -- 127.0.0.1:5050
//! RINGLOOP_BACKEND=epoll RINGLOOP_BUSY_POLL=off cargo run --release ...
//! ```
//!
//! With `--once` as the second argument, it ends when its last connection was closed, and prints how it waited and the
//! CPU time per message.
//!
//! It shows how to handle streams with the driver. Each connection has one edge-triggered watch for both directions.
//! Reads and writes are direct system calls when the watch reports. All connections read into the same buffer, which
//! therefore stays in the CPU's cache. If a connection leaves data behind, no further event will come: such connections
//! are kept in a list, and while it is not empty the loop does not wait.

use ringloop_reactor::driver::{Event, Interest, Mode, Token};
use ringloop_reactor::{Reactor, ReactorConfig};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const BUFFER_BYTES: usize = 256 * 1024;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:5050".to_owned());
    let once = arguments
        .next()
        .is_some_and(|argument| argument == "--once");

    let reactor = Reactor::new(&ReactorConfig::from_env()?)?;
    let mut server = Server::new(reactor, &address)?;
    println!("{}", server.listener.local_addr()?);
    eprintln!("{}", server.reactor.backend_reason());

    let mut events = Vec::new();
    loop {
        server.turn(&mut events)?;
        if once && server.served > 0 && server.connections.is_empty() {
            return server.report();
        }
    }
}

struct Server {
    reactor: Reactor,
    listener: TcpListener,
    listening: Token,
    connections: HashMap<Token, Connection>,
    /// Connections that may have more to read, although no event will say so.
    unfinished: Vec<Token>,
    buffer: Vec<u8>,
    served: u64,
    messages: u64,
}

struct Connection {
    stream: TcpStream,
    /// The bytes that the peer has not read yet. Until it has, nothing more is read from it.
    unsent: Vec<u8>,
    /// The peer has finished sending, so that no further event will announce the end.
    peer_finished: bool,
}

/// The next step for a connection.
enum Next {
    AwaitEvent,
    ReadAgain,
    Close,
}

impl Server {
    fn new(mut reactor: Reactor, address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let listening =
            reactor
                .driver_mut()
                .watch(listener.as_raw_fd(), Interest::READ, Mode::Level)?;
        Ok(Self {
            reactor,
            listener,
            listening,
            connections: HashMap::new(),
            unfinished: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            served: 0,
            messages: 0,
        })
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let result = if self.unfinished.is_empty() {
            self.reactor.turn(None, events)
        } else {
            self.reactor.poll_now(events)
        };
        match result {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other?,
        }
        for token in std::mem::take(&mut self.unfinished) {
            self.serve(token);
        }
        for event in events.drain(..) {
            if event.token() == self.listening {
                self.accept()?;
            } else if let Some(connection) = self.connections.get_mut(&event.token()) {
                connection.peer_finished |= event.readiness().is_read_closed();
                self.serve(event.token());
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            // The peer is already gone, or another process was quicker.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let both = Interest::READ | Interest::WRITE;
        let token = self
            .reactor
            .driver_mut()
            .watch(stream.as_raw_fd(), both, Mode::Edge)?;
        self.connections.insert(token, Connection::new(stream));
        self.served += 1;
        Ok(())
    }

    fn serve(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        match connection.echo(&mut self.buffer, &mut self.messages) {
            Next::AwaitEvent => {}
            Next::ReadAgain => self.unfinished.push(token),
            Next::Close => {
                // The watch ends first, so that it never refers to a descriptor that was reused.
                self.reactor.driver_mut().unwatch(token);
                self.connections.remove(&token);
            }
        }
    }

    fn report(&self) -> io::Result<()> {
        // The first field is the time on a CPU in nanoseconds: proc_pid_schedstat(5).
        let schedstat = std::fs::read_to_string("/proc/self/schedstat")?;
        let nanoseconds = schedstat
            .split(' ')
            .next()
            .and_then(|field| field.parse::<f64>().ok());
        let each = nanoseconds.unwrap_or(f64::NAN) / 1e3 / self.messages as f64;
        eprintln!("{} messages, {each:.2} us of CPU each", self.messages);
        eprintln!("{:#?}", self.reactor.counters());
        Ok(())
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            peer_finished: false,
        }
    }

    /// Sends back what has arrived, once.
    fn echo(&mut self, buffer: &mut [u8], messages: &mut u64) -> Next {
        if !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Next::Close,
            }
            if !self.unsent.is_empty() {
                return Next::AwaitEvent;
            }
        }
        let received = match self.stream.read(buffer) {
            Ok(0) => return Next::Close,
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::AwaitEvent,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Next::ReadAgain,
            Err(_) => return Next::Close,
        };
        *messages += 1;
        let sent = match self.stream.write(&buffer[..received]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return Next::Close,
        };
        if sent < received {
            self.unsent.extend_from_slice(&buffer[sent..received]);
            return Next::AwaitEvent;
        }
        // A full buffer leaves data behind, and the end of the stream comes after the last data. These events have
        // already been reported, so this connection must be tried again.
        if received == buffer.len() || self.peer_finished {
            Next::ReadAgain
        } else {
            Next::AwaitEvent
        }
    }
}
