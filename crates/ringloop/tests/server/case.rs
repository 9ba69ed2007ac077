//! A server of each kind, and clients for it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Connection, Counters, Handler, Running, Server};
use ringloop::tls::rustls::{ClientConnection, StreamOwned};

use crate::certificates;
use crate::common::{self, LONG};

/// A server on one of the backends, over TCP or over TLS.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) server: Server,
    pub(crate) is_secure: bool,
}

/// Runs a body on each backend, over TCP and over TLS.
pub(crate) fn on_both(body: impl Fn(Case)) {
    for backend in common::backends() {
        for is_secure in [false, true] {
            body(Case {
                server: Server::new("127.0.0.1:0")
                    .workers(2)
                    .pool_config(common::pool_config(backend)),
                is_secure,
            });
        }
    }
}

impl Case {
    pub(crate) fn with(self, change: impl FnOnce(Server) -> Server) -> Self {
        Self {
            server: change(self.server),
            ..self
        }
    }

    pub(crate) fn start<H: Handler>(self, make: impl Fn() -> H + Clone + Send + 'static) -> Served {
        let running = if self.is_secure {
            self.server.tls(certificates::server()).start(make)
        } else {
            self.server.start(make)
        };
        Served {
            running: running.unwrap(),
            is_secure: self.is_secure,
        }
    }
}

/// A running server.
pub(crate) struct Served {
    pub(crate) running: Running,
    pub(crate) is_secure: bool,
}

impl Served {
    pub(crate) fn connect(&self) -> Stream {
        let stream = self.connect_plain();
        if self.is_secure {
            let stream = certificates::connect_blocking(certificates::client(), stream);
            Stream::Tls(Box::new(stream.unwrap()))
        } else {
            Stream::Plain(stream)
        }
    }

    pub(crate) fn connect_plain(&self) -> TcpStream {
        common::connect(self.running.local_addr())
    }

    /// Waits until the counters satisfy a condition; fails loudly if they never do.
    pub(crate) fn wait_for(&self, condition: impl Fn(&Counters) -> bool) -> Counters {
        let start = Instant::now();
        loop {
            let counters = self.running.counters();
            if condition(&counters) {
                return counters;
            }
            assert!(start.elapsed() < LONG, "never came: {counters:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A client's connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(self.socket())
            .set_linger(linger)
            .unwrap();
    }

    /// Closes the connection properly.
    pub(crate) fn close(mut self) {
        if let Self::Tls(stream) = &mut self {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Whether a connection was cut off: over TLS, without close_notify.
pub(crate) fn is_cut_off(result: io::Result<usize>, is_secure: bool) -> bool {
    match result {
        Ok(0) => !is_secure,
        Err(error) => {
            error.kind() == ErrorKind::UnexpectedEof || error.kind() == ErrorKind::ConnectionReset
        }
        Ok(_) => false,
    }
}

pub(crate) struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        match bytes {
            b"panic" => panic!("the client asked for it"),
            b"fail" => Err(io::Error::other("the client asked for it")),
            b"close" => {
                connection.write(b"bye")?;
                connection.close();
                Ok(())
            }
            _ => connection.write(bytes),
        }
    }
}

/// Writes twice as much as it receives, in pieces.
pub(crate) struct Double;

impl Handler for Double {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(10_000) {
            connection.write(piece)?;
            connection.write(piece)?;
        }
        Ok(())
    }
}

pub(crate) fn ask(stream: &mut Stream, question: &[u8]) -> Vec<u8> {
    try_ask(stream, question).unwrap()
}

pub(crate) fn try_ask(stream: &mut Stream, question: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(question)?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
