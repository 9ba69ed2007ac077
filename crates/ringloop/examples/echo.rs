//! An echo server on the socket pool.

mod arguments;

use std::io;

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

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    arguments::run(arguments.listening.server().start(|| Echo)?)
}
