//! An echo server over TLS.

mod arguments;
#[path = "arguments/identity.rs"]
mod identity;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ringloop::server::{Connection, Handler};

/// Sends back what it receives, over TLS. Try it with: openssl s_client -connect 127.0.0.1:7000
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    #[command(flatten)]
    identity: identity::Identity,
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

fn serve(arguments: &Arguments) -> io::Result<()> {
    let config = arguments.identity.config()?;
    let server = arguments
        .listening
        .start(|server| server.tls(config).start(|| Echo))?;
    arguments.listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(serve(&Arguments::parse()))
}
