//! An echo server.

mod arguments;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ringloop::server::{Connection, Handler};

/// Sends back what it receives.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

fn main() -> ExitCode {
    let Arguments { listening } = Arguments::parse();
    let server = listening.start(|server| server.start(|| Echo));
    arguments::exit_code(server.and_then(|server| listening.run(server)))
}
