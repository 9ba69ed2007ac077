//! Answers every HTTP request with the same 13 bytes, "Hello, World!". It only looks for the ends of requests, for
//! comparison with servers that do the same. It is not a web server.

mod arguments;

use clap::Parser;
use ringloop::server::{Connection, Handler};
use std::io;
use std::process::ExitCode;

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
const END: &[u8; 4] = b"\r\n\r\n";

/// The fixed answer to every HTTP request.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
}

/// How much of the end of a request has been seen, because it may span packets.
#[derive(Default)]
struct HelloWorld {
    matched: usize,
}

impl HelloWorld {
    fn requests_in(&mut self, bytes: &[u8]) -> usize {
        // Most packets are one whole request.
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

impl Handler for HelloWorld {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        match self.requests_in(bytes) {
            0 => Ok(()),
            1 => connection.write(ANSWER),
            // Pipelined requests are answered at once.
            many => connection.write(&ANSWER.repeat(many)),
        }
    }
}

fn main() -> ExitCode {
    let Arguments { listening } = Arguments::parse();
    let server = listening.start(|server| server.start(HelloWorld::default));
    arguments::exit_code(server.and_then(|server| listening.run(server)))
}
