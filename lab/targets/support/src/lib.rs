//! The common parts of the Rust programs that are measured: the command line, the listening socket, where HTTP requests
//! end, and how timings are told. What is measured stands in the programs.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use signal_hook::consts::SIGTERM;
use signal_hook::flag;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Of every listening socket.
pub const BACKLOG: i32 = 1024;
/// To every HTTP request.
pub const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
const END: &[u8; 4] = b"\r\n\r\n";

/// A server to be measured.
#[derive(Parser)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Subcommand)]
pub enum Command {
    /// Send back what is received.
    Echo(Serving),
    /// Answer every HTTP request with "Hello, World!".
    Http(Serving),
    /// Read and throw away, and answer the end with how much that was.
    Discard(Serving),
    /// Time making and closing listeners.
    Bind(Binding),
}

/// How to serve.
#[derive(clap::Args, Clone, Copy)]
pub struct Serving {
    /// The address to listen on.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST)]
    pub host: Ipv4Addr,
    /// The port to listen on; 0 lets the kernel choose.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// The number of threads that serve.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// The size of the buffer that is received into, in bytes.
    #[arg(long, default_value_t = 64 * 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub buffer: u32,
}

/// The operation to time.
#[derive(clap::Args, Clone, Copy)]
pub struct Binding {
    /// The operation to time.
    #[arg(long, value_enum, default_value_t = Mode::Listen)]
    pub mode: Mode,
    /// How many operations.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// How many at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub concurrent: u64,
}

/// One operation; each ends in a close of everything.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A socket that is bound to 127.0.0.1 and a port of the kernel's choice.
    Bind,
    /// ... and listens.
    Listen,
    /// ... and accepts one connection.
    Accept,
}

/// Where listeners are timed.
pub const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A listening socket that does not block for each worker, all on one port.
///
/// # Errors
/// Those of socket(2), setsockopt(2), bind(2) and listen(2).
pub fn listen(serving: Serving) -> io::Result<Vec<TcpListener>> {
    let mut address = SocketAddr::from((serving.host, serving.port));
    let mut listeners = Vec::new();
    for _ in 0..serving.workers {
        let socket = Socket::new(
            Domain::IPV4,
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(serving.workers > 1)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// One listening socket that does not block, for all workers.
///
/// # Errors
/// As [`listen`].
pub fn listen_once(serving: Serving) -> io::Result<TcpListener> {
    let mut listeners = listen(Serving {
        workers: 1,
        ..serving
    })?;
    Ok(listeners.remove(0))
}

/// Makes the close of a connection a reset, which leaves no port behind in `TIME_WAIT`: with thousands of those the kernel
/// looks long for a free one.
///
/// # Errors
/// Those of setsockopt(2).
pub fn reset_at_close(stream: &impl AsFd) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Says where the server listens, and ends the process with status 0 at SIGTERM.
///
/// # Errors
/// Those of sigaction(2).
pub fn announce(listener: &TcpListener) -> io::Result<()> {
    announce_at(listener.local_addr()?)
}

/// The same, for who has no more than the address.
///
/// # Errors
/// Those of sigaction(2).
pub fn announce_at(address: SocketAddr) -> io::Result<()> {
    // In the handler and not in a thread: with a second thread the C library's recv and send cost more.
    flag::register_conditional_shutdown(SIGTERM, 0, Arc::new(AtomicBool::new(true)))?;
    println!("listening on {address}");
    io::stdout().flush()
}

/// Serves on a thread with a listener of its own per worker; `work` gets the listener and the size of the buffer in bytes.
///
/// # Errors
/// Those of [`listen`], [`announce`] and `work`.
///
/// # Panics
/// If `work` does.
pub fn serve_on_threads(
    serving: Serving,
    work: impl Fn(TcpListener, usize) -> io::Result<()> + Copy + Send + 'static,
) -> io::Result<()> {
    let listeners = listen(serving)?;
    announce(&listeners[0])?;
    let workers: Vec<_> = listeners
        .into_iter()
        .map(|listener| thread::spawn(move || work(listener, serving.buffer as usize)))
        .collect();
    for worker in workers {
        worker.join().expect("a worker panicked")?;
    }
    Ok(())
}

/// How much of the end of a request has been seen, so that it is found across packets.
#[derive(Default)]
pub struct Requests {
    matched: usize,
}

impl Requests {
    /// The answers to the requests that end in these bytes: none, one, or several in a row.
    pub fn answers(&mut self, bytes: &[u8]) -> std::borrow::Cow<'static, [u8]> {
        match self.ends_in(bytes) {
            0 => (&[]).into(),
            1 => ANSWER.into(),
            many => ANSWER.repeat(many).into(),
        }
    }

    fn ends_in(&mut self, bytes: &[u8]) -> usize {
        // The usual packet is one whole request.
        if self.matched == 0
            && bytes.ends_with(END)
            && memchr::memmem::find(bytes, END) == Some(bytes.len() - END.len())
        {
            return 1;
        }
        let mut requests = 0;
        for &byte in bytes {
            self.matched = match byte {
                _ if byte == END[self.matched] => self.matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.matched == END.len() {
                self.matched = 0;
                requests += 1;
            }
        }
        requests
    }
}

/// The answer of a server that throws away what it receives, when the peer has sent its last.
#[must_use]
pub fn count(received: u64) -> Vec<u8> {
    format!("{received}\n").into_bytes()
}

/// Tells how long the operations took, as one line of JSON.
pub fn report(operations: u64, elapsed: Duration) {
    println!(
        "{{\"operations\": {operations}, \"ns\": {}}}",
        elapsed.as_nanos()
    );
}
