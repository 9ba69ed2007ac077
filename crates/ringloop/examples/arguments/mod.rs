//! The command line that all examples share, and how they start and end.

use clap::Args;
use ringloop::PoolConfig;
use ringloop::driver::BackendChoice;
use ringloop::server::{EndSignals, Running, Server};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Where to listen, and with which backend.
#[derive(Args)]
pub(crate) struct Listening {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 lets the kernel choose
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// How many workers, each a thread; by default one for each usable CPU
    #[arg(long)]
    workers: Option<usize>,
    /// Bind each worker to a CPU of its own: better on a machine where nothing else runs
    #[arg(long)]
    pin: bool,
    /// The backend: io_uring, epoll or auto
    #[arg(long, env = ringloop::driver::BACKEND_VARIABLE, default_value = "auto")]
    backend: BackendChoice,
    /// How many seconds connections have to end after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain_timeout: u64,
}

impl Listening {
    /// Starts a server with these arguments.
    pub(crate) fn start(
        &self,
        start: impl FnOnce(Server) -> io::Result<Running>,
    ) -> io::Result<Running> {
        let address = if self.host.contains(':') && !self.host.starts_with('[') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        };
        // How workers wait comes from the environment; the command line overrides the backend.
        let mut config = PoolConfig::from_env()?;
        config.runtime.reactor.driver.backend = self.backend;
        config.pin = self.pin;
        let mut server = Server::new(address.clone()).pool_config(config);
        if let Some(workers) = self.workers {
            server = server.workers(workers);
        }
        start(server).map_err(|error| explained(format!("cannot serve on {address}"), &error))
    }

    /// Prints where a server listens, and runs it until Ctrl-C or SIGTERM. Then its connections are asked to end, and
    /// have some time for that.
    pub(crate) fn run(&self, server: Running) -> io::Result<()> {
        // Before printing, because whoever reads the line may want to end the server.
        let signals = EndSignals::listen()?;
        println!("listening on {}, Ctrl-C ends it", server.local_addr());
        let signal = signals.wait();
        let (live, seconds) = (server.counters().live, self.drain_timeout);
        eprintln!("{signal}: waiting up to {seconds} s for {live} connections");
        server.shutdown(Duration::from_secs(seconds));
        eprintln!("ended");
        Ok(())
    }
}

/// Puts what could not be done in front of an error.
pub(crate) fn explained(what: impl Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Prints an error in one line, and ends the program with code 1.
pub(crate) fn exit_code(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
