//! A TCP proxy: connects each incoming connection to another server.
//!
//! Bytes go from one socket to the other through the worker's buffer, without being copied. Only what the other side
//! has no room for is stored, and nothing more is read until it is sent. The end of each direction is forwarded
//! separately, so that a peer that has finished sending still gets its answer.

mod arguments;

use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use futures_util::future::try_join;
use ringloop::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use ringloop::time::timeout;

/// Passes TCP connections on to another server.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    /// Where connections are passed on to
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// How many seconds connecting there may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    connect_timeout: u64,
}

/// Counters of the proxy, over all workers.
#[derive(Default)]
struct Counters {
    passed_on: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    bytes_there: AtomicU64,
    bytes_back: AtomicU64,
}

/// Where connections go, and how long connecting may take.
struct Target {
    addresses: Vec<SocketAddr>,
    connect_timeout: Duration,
}

/// Serves one connection.
async fn pass_on(near: TcpStream, target: &Target, counters: &Counters) -> io::Result<()> {
    let connecting = TcpStream::connect(&target.addresses[..]);
    let far = match timeout(target.connect_timeout, connecting).await {
        Ok(Ok(far)) => far,
        // Closing the connection is the only way to report the failure here.
        refused => {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return refused?.map(drop);
        }
    };
    far.set_nodelay(true)?;
    counters.passed_on.fetch_add(1, Ordering::Relaxed);
    let (near_reader, near_writer) = near.into_split();
    let (far_reader, far_writer) = far.into_split();
    // An error in one direction ends both: dropping the halves closes the connections.
    let result = try_join(
        forward(near_reader, far_writer, &counters.bytes_there),
        forward(far_reader, near_writer, &counters.bytes_back),
    )
    .await;
    if result.is_err() {
        counters.failed.fetch_add(1, Ordering::Relaxed);
    }
    result.map(drop)
}

/// Forwards one direction, and its end.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    bytes_passed: &AtomicU64,
) -> io::Result<()> {
    let mut unsent = Vec::new();
    loop {
        let sent = from.read_with(|bytes, _| {
            if bytes.is_empty() {
                return Ok(0);
            }
            let sent = match to.stream().try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                result => result?,
            };
            unsent.extend_from_slice(&bytes[sent..]);
            Ok::<_, io::Error>(bytes.len())
        });
        match sent.await?? {
            0 => return to.stream().shutdown(Shutdown::Write),
            count => bytes_passed.fetch_add(count as u64, Ordering::Relaxed),
        };
        if !unsent.is_empty() {
            to.write_all(&unsent[..]).await.0?;
            // An idle connection stores nothing.
            unsent = Vec::new();
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let to = &arguments.to;
    let resolved = to.to_socket_addrs();
    let addresses = resolved.map_err(|error| arguments::explained(format!("--to {to}"), &error))?;
    let target = Arc::new(Target {
        addresses: addresses.collect(),
        connect_timeout: Duration::from_secs(arguments.connect_timeout),
    });
    let counters = Arc::new(Counters::default());
    let (server_target, server_counters) = (target, Arc::clone(&counters));
    let server = arguments.listening.start(|server| {
        server.start_with(move |stream, _peer| {
            let (target, counters) = (Arc::clone(&server_target), Arc::clone(&server_counters));
            async move { pass_on(stream, &target, &counters).await }
        })
    })?;
    arguments.listening.run(server)?;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    eprintln!(
        "{} connections passed on, of which {} failed; {} refused; {} bytes there, {} bytes back",
        read(&counters.passed_on),
        read(&counters.failed),
        read(&counters.refused),
        read(&counters.bytes_there),
        read(&counters.bytes_back),
    );
    Ok(())
}

fn main() -> ExitCode {
    arguments::exit_code(run(&Arguments::parse()))
}
