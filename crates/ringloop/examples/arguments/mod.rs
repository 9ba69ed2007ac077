//! What all examples understand on the command line.

use clap::Args;
use ringloop::PoolConfig;
use ringloop::driver::BackendChoice;
use ringloop::server::{Running, Server};
use std::io;
use std::time::Duration;

/// Where to listen, and on what.
#[derive(Args)]
pub(crate) struct Listening {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The port to listen on; 0 lets the kernel choose.
    #[arg(long, default_value_t = 7000)]
    pub port: u16,
    /// How many workers; by default one for each usable CPU.
    #[arg(long)]
    pub workers: Option<usize>,
    /// io_uring, epoll or auto.
    #[arg(long, env = ringloop::driver::BACKEND_VARIABLE, default_value = "auto")]
    pub backend: BackendChoice,
}

impl Listening {
    /// A server as it was asked for.
    pub(crate) fn server(&self) -> Server {
        let mut config = PoolConfig::default();
        config.runtime.reactor.driver.backend = self.backend;
        let server = Server::bind(format!("{}:{}", self.host, self.port)).pool(config);
        match self.workers {
            Some(workers) => server.workers(workers),
            None => server,
        }
    }
}

/// Says where a server listens, and runs it until Ctrl-C or SIGTERM; then its connections have five seconds to end.
pub(crate) fn run(server: Running) -> io::Result<()> {
    println!("listening on {}, Ctrl-C ends it", server.local_addr());
    let signal = server.wait_for_signal()?;
    eprintln!(
        "{signal}: waiting for {} connections",
        server.counters().live
    );
    server.shutdown(Duration::from_secs(5));
    Ok(())
}
