//! Measures creating and closing listeners, for comparison with other runtimes and with the raw system calls.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ringloop::driver::BackendChoice;
use ringloop::net::{TcpListener, TcpStream};
use ringloop::{Runtime, RuntimeConfig, spawn};
use socket2::SockRef;

/// Times making and closing listeners, and prints a line of JSON: {"operations": N, "ns": total}.
#[derive(Parser)]
struct Arguments {
    /// The operation to time.
    #[arg(long, value_enum, default_value_t = Mode::Listen)]
    mode: Mode,
    /// How many operations.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// How many tasks share them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    concurrent: u64,
    /// io_uring, epoll or auto.
    #[arg(long, env = ringloop::driver::BACKEND_VARIABLE, default_value = "auto")]
    backend: BackendChoice,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Bind to 127.0.0.1 and a port of the kernel's choice, listen, and close.
    Listen,
    /// The same with one connection, accepted and closed.
    Accept,
}

async fn bind(mode: Mode, count: u64) -> io::Result<()> {
    for _ in 0..count {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        if mode == Mode::Accept {
            let client = TcpStream::connect(listener.local_addr()?).await?;
            let (server, _) = listener.accept().await?;
            // Closing with a reset leaves no port in TIME_WAIT. With thousands of those, the kernel takes long to find
            // a free port.
            SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
            drop((client, server));
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let mut config = RuntimeConfig::default();
    config.reactor.driver.backend = arguments.backend;
    let each = arguments.count.div_ceil(arguments.concurrent);
    Runtime::new(&config)?.block_on(async {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..arguments.concurrent)
            .map(|_| spawn(bind(arguments.mode, each)))
            .collect();
        for task in tasks {
            task.await.expect("nobody aborts it")?;
        }
        let elapsed_ns = begin.elapsed().as_nanos();
        let operations = each * arguments.concurrent;
        println!("{{\"operations\": {operations}, \"ns\": {elapsed_ns}}}");
        Ok(())
    })
}
