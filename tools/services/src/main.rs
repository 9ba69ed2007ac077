//! Services that need more than sockets, each on ringloop and on tokio: an HTTPS reverse proxy on hyper, and an echo over QUIC.
//!
//! Each server prints its port when it listens, and runs until it is killed. `tools/services.py` compares them.

mod proxy;
mod quic;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, ValueEnum)]
enum Runtime {
    Ringloop,
    Tokio,
}

/// Services on ringloop and on tokio.
#[derive(Parser)]
enum Command {
    /// Pass HTTPS requests on to a plain HTTP server
    Proxy {
        #[arg(long)]
        runtime: Runtime,
        /// The server's address
        #[arg(long)]
        to: SocketAddr,
        /// Threads; with one, tokio's current-thread runtime
        #[arg(long, default_value_t = 1)]
        workers: usize,
    },
    /// Send back what comes on each QUIC stream, in one thread
    Quic {
        #[arg(long)]
        runtime: Runtime,
    },
    /// Send streams of 1 MB, check what comes back, and print how many there were
    QuicLoad {
        #[arg(long)]
        address: SocketAddr,
        /// How long new streams are opened
        #[arg(long)]
        seconds: f64,
        /// Streams at a time
        #[arg(long, default_value_t = 4)]
        streams: usize,
    },
}

/// A self-signed certificate, and its key.
fn identity() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = made.signing_key.serialize_der().try_into()?;
    Ok((vec![made.cert.der().clone()], key))
}

fn announce(address: SocketAddr) {
    println!("{}", address.port());
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Proxy {
            runtime: Runtime::Ringloop,
            to,
            workers,
        } => proxy::on_ringloop(to, workers),
        Command::Proxy {
            runtime: Runtime::Tokio,
            to,
            workers,
        } => proxy::on_tokio(to, workers),
        Command::Quic {
            runtime: Runtime::Ringloop,
        } => quic::on_ringloop(),
        Command::Quic {
            runtime: Runtime::Tokio,
        } => quic::on_tokio(),
        Command::QuicLoad {
            address,
            seconds,
            streams,
        } => quic::load(address, seconds, streams),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
