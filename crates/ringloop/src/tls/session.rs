//! A TLS connection without its socket: ciphertext and plaintext go in and come out.
//!
//! rustls keeps no buffers here. Records are decrypted in the worker's buffer, where they were received, and encrypted
//! into a buffer that the thread's connections share. A connection has its own memory only for what is pending: part of
//! a record, plaintext that was not read yet, ciphertext that the socket had no room for.

mod in_kernel;

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, CommonState};

use super::boundary::Boundary;
use super::in_kernel::Settling;
use super::kernel::offload::{Agreed, Offloaded};
use super::kernel::{self, KernelTls};

/// The maximum amount of plaintext that is encrypted and sent at a time.
pub(super) const WRITE_BYTES_MAX: usize = 64 * 1024;

/// The maximum that a record adds to its plaintext: header, explicit nonce, tag and content type.
const RECORD_OVERHEAD_BYTES: usize = 64;
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Room for the ciphertext of the longest write.
const SCRATCH_BYTES: usize =
    WRITE_BYTES_MAX + WRITE_BYTES_MAX.div_ceil(RECORD_BYTES_MAX) * RECORD_OVERHEAD_BYTES;

/// A buffer that has grown beyond this size is freed when it is empty.
const KEPT_BYTES: usize = 1024;

thread_local! {
    /// The host name that the client asks for, while its ClientHello is processed.
    static ASKED_NAME: Cell<Option<Box<str>>> = const { Cell::new(None) };
    /// The buffer that this thread's connections encrypt into.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Notes the name that a client asks for: with the unbuffered API, rustls passes it only to whoever chooses the
/// certificate.
#[derive(Debug)]
struct NameNoting(Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for NameNoting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        ASKED_NAME.set(hello.server_name().map(Box::from));
        self.0.resolve(hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.only_raw_public_keys()
    }
}

/// Prepares a server's configuration for sessions: they note names, and do not accept early data, which can be
/// replayed. Their keys can be given to the kernel.
pub(super) fn prepare(config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.max_early_data_size = 0;
    let resolver = Arc::clone(&config.cert_resolver);
    config.cert_resolver = Arc::new(NameNoting(resolver));
    Arc::new(config)
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
    /// The kernel has the keys.
    Kernel(Box<Offloaded>),
    /// The kernel has refused the keys, and rustls no longer has them.
    Lost,
}

/// The common operations of client and server, although rustls has different types for them.
trait Process {
    type Data;

    fn common(&self) -> &CommonState;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Process for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;

    fn common(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Process for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;

    fn common(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// A buffer whose first bytes have been used.
#[derive(Default)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    used: usize,
}

impl Queue {
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.used += count;
        if self.is_empty() {
            self.used = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
        }
    }
}

/// The TLS state of a connection.
pub(super) struct Session {
    side: Side,
    /// Received ciphertext of a record or message that is not complete.
    incoming: Vec<u8>,
    /// Plaintext that was not read yet.
    pub(super) plaintext: Queue,
    /// Ciphertext that must be sent.
    pub(super) outgoing: Queue,
    server_name: Option<Box<str>>,
    /// The peer has sent close_notify.
    pub(super) is_ended: bool,
    /// We have sent close_notify.
    is_closed: bool,
    failure: Option<rustls::Error>,
    kernel: KernelTls,
    /// During the handshake, if the kernel may take over afterwards.
    boundary: Option<Boundary>,
    /// An alert that must be sent by way of the kernel.
    alert: Option<AlertDescription>,
    pub(super) settling: Option<Box<Settling>>,
}

impl Session {
    /// `in_kernel`: whether the kernel is to take over after the handshake. The configuration then allows it to.
    pub(super) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        in_kernel: bool,
    ) -> io::Result<Self> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(error)?;
        let mut session = Self::new(Side::Client(connection), in_kernel);
        // A client speaks first.
        session.process(&mut [], &mut |_| {})?;
        Ok(session)
    }

    /// `config` comes from [`prepare`].
    pub(super) fn server(config: Arc<ServerConfig>, in_kernel: bool) -> io::Result<Self> {
        let connection = UnbufferedServerConnection::new(config).map_err(error)?;
        Ok(Self::new(Side::Server(connection), in_kernel))
    }

    fn new(side: Side, in_kernel: bool) -> Self {
        let kernel = match kernel::asked(in_kernel) {
            KernelTls::On => KernelTls::Handshaking,
            other => other,
        };
        Self {
            boundary: (kernel == KernelTls::Handshaking).then(Boundary::default),
            kernel,
            alert: None,
            settling: None,
            side,
            incoming: Vec::new(),
            plaintext: Queue::default(),
            outgoing: Queue::default(),
            server_name: None,
            is_ended: false,
            is_closed: false,
            failure: None,
        }
    }

    /// rustls' state, unless it has given the connection away.
    fn common(&self) -> Option<&CommonState> {
        match &self.side {
            Side::Client(connection) => Some(connection),
            Side::Server(connection) => Some(connection),
            Side::Kernel(_) | Side::Lost => None,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.common().is_some_and(CommonState::is_handshaking)
    }

    /// Returns what both ends have agreed on: as rustls knows it, or as it was kept when the kernel got the keys.
    pub(super) fn agreed<T>(
        &self,
        known: impl FnOnce(&CommonState) -> Option<T>,
        kept: impl FnOnce(&Agreed) -> Option<T>,
    ) -> Option<T> {
        match &self.side {
            Side::Kernel(offloaded) => kept(&offloaded.agreed),
            _ => self.common().and_then(known),
        }
    }

    pub(super) fn kernel(&self) -> &KernelTls {
        &self.kernel
    }

    /// The connection, if the kernel has its keys.
    pub(super) fn offloaded(&mut self) -> Option<&mut Offloaded> {
        match &mut self.side {
            Side::Kernel(offloaded) => Some(offloaded),
            _ => None,
        }
    }

    /// How many bytes may be received, instead of `limit`.
    pub(super) fn receive_limit(&self, limit: usize) -> usize {
        self.boundary.as_ref().map_or(limit, Boundary::wanted)
    }

    pub(super) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Takes the bytes that must precede what is received next.
    pub(super) fn take_incoming(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.incoming)
    }

    pub(super) fn put_incoming(&mut self, incoming: Vec<u8>) {
        self.incoming = incoming;
    }

    /// Processes ciphertext, which begins with what [`take_incoming`](Self::take_incoming) returned and ends with as
    /// many bytes as were `received` now, and passes each record's plaintext to `sink`. Keeps what is incomplete.
    pub(super) fn receive(
        &mut self,
        ciphertext: &mut [u8],
        received: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        if let Some(boundary) = &mut self.boundary {
            boundary.advance(&ciphertext[ciphertext.len() - received..]);
        }
        let done = self.process(ciphertext, sink)?;
        self.incoming = ciphertext[done..].to_vec();
        Ok(())
    }

    /// Returns how many of the bytes have been processed.
    fn process(&mut self, ciphertext: &mut [u8], sink: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        self.check()?;
        let Self {
            side,
            outgoing,
            is_ended,
            ..
        } = self;
        let is_handshaking = match side {
            Side::Client(connection) => connection.is_handshaking(),
            Side::Server(connection) => connection.is_handshaking(),
            Side::Kernel(_) | Side::Lost => return Err(error(unexpected())),
        };
        if is_handshaking {
            // Left over from a resolver that panicked.
            ASKED_NAME.take();
        }
        let result = match side {
            Side::Client(connection) => process(connection, ciphertext, outgoing, is_ended, sink),
            Side::Server(connection) => process(connection, ciphertext, outgoing, is_ended, sink),
            Side::Kernel(_) | Side::Lost => Err(unexpected()),
        };
        if is_handshaking && let Some(name) = ASKED_NAME.take() {
            self.server_name = Some(name);
        }
        result.map_err(|failure| {
            self.failure = Some(failure.clone());
            error(failure)
        })
    }

    /// Encrypts up to [`WRITE_BYTES_MAX`] bytes, and passes the ciphertext to `send`, which sends as much as it can.
    /// The rest is queued. Returns how many bytes were encrypted.
    ///
    /// If the queue contains ciphertext that must be sent first, `send` must send nothing.
    pub(super) fn encrypt(
        &mut self,
        plaintext: &[u8],
        send: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.check_writing()?;
        let plaintext = &plaintext[..plaintext.len().min(WRITE_BYTES_MAX)];
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(SCRATCH_BYTES.max(scratch.len()), 0);
            let length = self.write(scratch, Message::Plaintext(plaintext))?;
            if length > 0 {
                // After an error these records are lost, and none may follow them.
                let done = send(&scratch[..length]).inspect_err(|_| self.is_closed = true)?;
                self.outgoing.push(&scratch[done..length]);
            }
            Ok(plaintext.len())
        })
    }

    /// Queues close_notify.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.is_closed || self.failure.is_some() {
            return Ok(());
        }
        self.is_closed = true;
        if self.offloaded().is_some() {
            self.alert = Some(AlertDescription::CloseNotify);
            return Ok(());
        }
        let mut room = vec![0; 2 * RECORD_OVERHEAD_BYTES];
        let length = self.write(&mut room, Message::CloseNotify)?;
        self.outgoing.push(&room[..length]);
        Ok(())
    }

    /// Encrypts into `room`, which grows if necessary, and returns the length.
    fn write(&mut self, room: &mut Vec<u8>, message: Message<'_>) -> io::Result<usize> {
        let Self {
            side,
            incoming,
            outgoing,
            ..
        } = self;
        let before = outgoing.bytes.len();
        let length = match side {
            Side::Client(connection) => write(connection, incoming, outgoing, room, message),
            Side::Server(connection) => write(connection, incoming, outgoing, room, message),
            Side::Kernel(_) | Side::Lost => Err(error(unexpected())),
        }?;
        if outgoing.bytes.len() > before {
            // A reply to the peer's key update must be sent first, so everything goes through the queue now.
            outgoing.push(&room[..length]);
            return Ok(0);
        }
        Ok(length)
    }

    /// Fails if nothing can be written any more.
    pub(super) fn check_writing(&self) -> io::Result<()> {
        self.check()?;
        if self.is_closed {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the TLS connection was shut down, or a write has failed: nothing more can be written",
            ));
        }
        Ok(())
    }

    /// Fails if the connection has failed before, with that error.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failure {
            Some(failure) => Err(error(failure.clone())),
            None => Ok(()),
        }
    }
}

fn error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A message to write.
#[derive(Clone, Copy)]
enum Message<'a> {
    Plaintext(&'a [u8]),
    /// close_notify.
    CloseNotify,
}

/// Returns how many of the bytes have been processed.
fn process<C: Process>(
    connection: &mut C,
    ciphertext: &mut [u8],
    outgoing: &mut Queue,
    is_ended: &mut bool,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<usize, rustls::Error> {
    let mut done = 0;
    loop {
        let UnbufferedStatus { mut discard, state } = connection.process(&mut ciphertext[done..]);
        let is_waiting = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    sink(record.payload);
                }
                false
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(|room| data.encode(room), outgoing)?;
                false
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in the queue, which keeps the order.
                data.done();
                false
            }
            Ok(ConnectionState::PeerClosed) => {
                *is_ended = true;
                false
            }
            Ok(
                ConnectionState::WriteTraffic(_)
                | ConnectionState::BlockedHandshake
                | ConnectionState::Closed,
            ) => true,
            Ok(_) => return Err(unexpected()),
            Err(error) => {
                // The alert that tells the peer why is sent before anything else is processed.
                while connection.common().wants_write()
                    && let Ok(ConnectionState::EncodeTlsData(mut data)) =
                        connection.process(&mut []).state
                {
                    encode(|room| data.encode(room), outgoing)?;
                }
                return Err(error);
            }
        };
        done += discard;
        if is_waiting {
            // Whatever follows close_notify must be ignored (RFC 8446, section 6.1).
            return Ok(if *is_ended { ciphertext.len() } else { done });
        }
    }
}

fn write<C: Process>(
    connection: &mut C,
    incoming: &mut Vec<u8>,
    outgoing: &mut Queue,
    room: &mut Vec<u8>,
    message: Message<'_>,
) -> io::Result<usize> {
    loop {
        let UnbufferedStatus { discard, state } = connection.process(incoming);
        match state.map_err(error)? {
            ConnectionState::WriteTraffic(mut writer) => loop {
                let written = match message {
                    Message::Plaintext(plaintext) => writer.encrypt(plaintext, room),
                    Message::CloseNotify => writer.queue_close_notify(room),
                };
                match written {
                    Ok(length) => {
                        incoming.drain(..discard);
                        return Ok(length);
                    }
                    Err(EncryptError::InsufficientSize(needed)) => {
                        room.resize(needed.required_size, 0);
                    }
                    Err(exhausted @ EncryptError::EncryptExhausted) => {
                        return Err(io::Error::other(exhausted));
                    }
                }
            },
            ConnectionState::EncodeTlsData(mut data) => {
                encode(|room| data.encode(room), outgoing).map_err(error)?;
            }
            ConnectionState::TransmitTlsData(data) => data.done(),
            _ => return Err(error(unexpected())),
        }
        incoming.drain(..discard);
    }
}

fn encode(
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    outgoing: &mut Queue,
) -> Result<(), rustls::Error> {
    let start = outgoing.bytes.len();
    loop {
        match write(&mut outgoing.bytes[start..]) {
            Ok(length) => {
                outgoing.bytes.truncate(start + length);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needed)) => {
                outgoing.bytes.resize(start + needed.required_size, 0);
            }
            Err(EncodeError::AlreadyEncoded) => return Err(unexpected()),
        }
    }
}

/// The error for states that sessions do not get into: early data is off, plaintext is taken as soon as it is there,
/// and nothing is written before the handshake is over.
fn unexpected() -> rustls::Error {
    rustls::Error::General("the TLS connection is in an unexpected state".to_owned())
}
