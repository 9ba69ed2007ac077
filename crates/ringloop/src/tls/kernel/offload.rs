//! The TLS state of a connection whose records the kernel encrypts and decrypts. What is left to do here are the
//! records that are no data: alerts, session tickets, and new keys.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, CommonState, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    HandshakeKind, HandshakeType, InvalidMessage, PeerMisbehaved, ProtocolVersion,
    SupportedCipherSuite,
};

use super::key::{Cipher, Key, Version};
use super::{cipher_support, named};
use crate::sys::kernel_tls::{self, Direction};

/// The maximum amount of plaintext in a record.
const RECORD_BYTES_MAX: u64 = 16 * 1024;

/// Handshake messages after the handshake are a few hundred bytes long. rustls allows no longer ones.
const MESSAGE_BYTES_MAX: usize = 0xffff;

/// `KeyUpdate` with `update_not_requested`, see RFC 8446, section 4.6.3.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The results of the handshake that both ends know.
pub(in crate::tls) struct Agreed {
    pub(in crate::tls) alpn_protocol: Option<Vec<u8>>,
    pub(in crate::tls) peer_certificates: Option<Vec<CertificateDer<'static>>>,
    pub(in crate::tls) protocol_version: Option<ProtocolVersion>,
    pub(in crate::tls) cipher_suite: Option<SupportedCipherSuite>,
    pub(in crate::tls) handshake_kind: Option<HandshakeKind>,
}

impl Agreed {
    pub(in crate::tls) fn of(common: &CommonState) -> Self {
        let chain = common.peer_certificates();
        Self {
            alpn_protocol: common.alpn_protocol().map(<[u8]>::to_vec),
            peer_certificates: chain.map(<[CertificateDer<'_>]>::to_vec),
            protocol_version: common.protocol_version(),
            cipher_suite: common.negotiated_cipher_suite(),
            handshake_kind: common.handshake_kind(),
        }
    }
}

/// The part of rustls' state that makes new keys and takes session tickets.
enum Rest {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// A connection of rustls that can give its keys away.
pub(in crate::tls) trait GiveAway {
    fn give_away(self) -> Result<(ExtractedSecrets, impl Into<AnyRest>), Error>;
}

/// Hides [`Rest`] from the rest of the crate.
pub(in crate::tls) struct AnyRest(Rest);

impl From<KernelConnection<ClientConnectionData>> for AnyRest {
    fn from(rest: KernelConnection<ClientConnectionData>) -> Self {
        Self(Rest::Client(rest))
    }
}

impl From<KernelConnection<ServerConnectionData>> for AnyRest {
    fn from(rest: KernelConnection<ServerConnectionData>) -> Self {
        Self(Rest::Server(rest))
    }
}

impl GiveAway for UnbufferedClientConnection {
    fn give_away(self) -> Result<(ExtractedSecrets, impl Into<AnyRest>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

impl GiveAway for UnbufferedServerConnection {
    fn give_away(self) -> Result<(ExtractedSecrets, impl Into<AnyRest>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

/// The meaning of a record that is no data.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tls) enum Meaning {
    /// Reading goes on.
    Nothing,
    /// The peer sends nothing more.
    Closed,
}

/// An error, and the alert that tells the peer.
pub(in crate::tls) struct Failure {
    pub(in crate::tls) error: Error,
    /// `None` if the peer knows.
    pub(in crate::tls) alert: Option<AlertDescription>,
}

impl Failure {
    fn new(error: impl Into<Error>, alert: AlertDescription) -> Self {
        Self {
            error: error.into(),
            alert: Some(alert),
        }
    }
}

/// The state of a connection whose keys the kernel has.
pub(in crate::tls) struct Offloaded {
    pub(in crate::tls) agreed: Agreed,
    rest: Rest,
    version: Version,
    cipher: Cipher,
    /// Part of a handshake message.
    message: Vec<u8>,
    /// Whether the peer is owed a `KeyUpdate`, before anything else is sent.
    pub(in crate::tls) owes_key_update: bool,
    /// How many records the current key for sending has made, at least.
    records: u64,
    /// How many one key may make.
    records_max: u64,
    sent: Sent,
}

/// The amounts that were sent since the kernel has the keys.
#[derive(Default)]
struct Sent {
    /// How many bytes TCP had been given when the kernel got the keys.
    before: u64,
    /// Bytes of plaintext.
    plaintext: u64,
    /// Records with keys that have been replaced, less the number of the first one.
    records: u64,
}

/// The means to give the keys of a connection to the kernel, checked so that nothing is lost if it refuses.
pub(in crate::tls) struct Plan {
    agreed: Agreed,
    version: Version,
    cipher: Cipher,
    before: u64,
}

impl Plan {
    /// Fails with the reason if the kernel cannot have the connection. Then rustls can go on.
    pub(in crate::tls) fn new(
        common: &CommonState,
        socket: BorrowedFd<'_>,
    ) -> Result<Self, Arc<str>> {
        let agreed = Agreed::of(common);
        let (version, cipher) = named(agreed.protocol_version, agreed.cipher_suite)?;
        cipher_support(version, cipher)?;
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOTCONN) => Arc::from("the peer has closed the connection"),
            Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT) => Arc::from("this is no TCP connection"),
            _ => Arc::from(format!("TCP_ULP was refused: {error}")),
        };
        kernel_tls::prepare(socket).map_err(refused)?;
        let before = kernel_tls::bytes_given_to_tcp(socket).map_err(refused)?;
        Ok(Self {
            agreed,
            version,
            cipher,
            before,
        })
    }

    /// Gives the keys to the kernel. After an error, the connection is over.
    pub(in crate::tls) fn carry_out(
        self,
        connection: impl GiveAway,
        socket: BorrowedFd<'_>,
    ) -> Result<Offloaded, Error> {
        let (secrets, rest) = connection.give_away()?;
        let AnyRest(rest) = rest.into();
        let (first_record, ref sending) = secrets.tx;
        let mut offloaded = Offloaded {
            records_max: records_max(self.agreed.cipher_suite, self.cipher),
            agreed: self.agreed,
            rest,
            version: self.version,
            cipher: self.cipher,
            message: Vec::new(),
            owes_key_update: false,
            records: first_record,
            sent: Sent {
                before: self.before,
                plaintext: 0,
                records: 0_u64.wrapping_sub(first_record),
            },
        };
        offloaded.set_key(socket, Direction::Send, first_record, sending)?;
        let (first_record, ref receiving) = secrets.rx;
        offloaded.set_key(socket, Direction::Receive, first_record, receiving)?;
        if self.version == Version::Tls13 {
            // Only saves a copy; Linux before 6.0 does without.
            let _ = kernel_tls::expect_no_padding(socket);
        }
        Ok(offloaded)
    }
}

/// How many records one key may make (RFC 8446, section 5.5).
fn records_max(suite: Option<SupportedCipherSuite>, cipher: Cipher) -> u64 {
    match suite.and_then(|suite| suite.tls13()) {
        Some(suite) => suite.common.confidentiality_limit,
        None if cipher == Cipher::ChaCha20Poly1305 => u64::MAX,
        None => 1 << 24,
    }
}

impl Offloaded {
    fn set_key(
        &mut self,
        socket: BorrowedFd<'_>,
        direction: Direction,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<(), Error> {
        let key = Key::new(self.version, self.cipher, sequence, secrets)
            .ok_or_else(|| Error::General("rustls has other keys than agreed on".to_owned()))?;
        kernel_tls::set_key(socket, direction, key.bytes()).map_err(|error| {
            Error::General(if error.raw_os_error() == Some(libc::EBUSY) {
                "the kernel cannot renew the keys of a TLS connection; Linux 6.14 and later can"
                    .to_owned()
            } else {
                format!("the kernel has refused the keys of a TLS connection: {error}")
            })
        })
    }

    /// Interprets a record that is no data, or part of one.
    pub(in crate::tls) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: u8,
        bytes: &[u8],
    ) -> Result<Meaning, Failure> {
        match ContentType::from(kind) {
            ContentType::Alert => self.receive_alert(bytes),
            ContentType::Handshake => {
                self.message.extend_from_slice(bytes);
                while let Some((kind, body)) = first_message(&mut self.message)? {
                    self.receive_message(socket, kind, &body)?;
                }
                Ok(Meaning::Nothing)
            }
            got_type => Err(Failure::new(
                Error::InappropriateMessage {
                    expect_types: vec![ContentType::ApplicationData],
                    got_type,
                },
                AlertDescription::UnexpectedMessage,
            )),
        }
    }

    fn receive_alert(&self, alert: &[u8]) -> Result<Meaning, Failure> {
        let &[level, description] = alert else {
            return Err(Failure::new(
                InvalidMessage::MessageTooShort,
                AlertDescription::DecodeError,
            ));
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => Ok(Meaning::Closed),
            AlertDescription::UserCanceled => Ok(Meaning::Nothing),
            // All others are fatal in TLS 1.3 (RFC 8446, section 6).
            _ if level == WARNING && self.version == Version::Tls12 => Ok(Meaning::Nothing),
            description => Err(Failure {
                error: Error::AlertReceived(description),
                alert: None,
            }),
        }
    }

    fn receive_message(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: HandshakeType,
        body: &[u8],
    ) -> Result<(), Failure> {
        let is_13 = self.version == Version::Tls13;
        match (kind, &mut self.rest) {
            (HandshakeType::NewSessionTicket, Rest::Client(rest)) if is_13 => rest
                .handle_new_session_ticket(body)
                .map_err(|error| Failure::new(error, AlertDescription::DecodeError)),
            (HandshakeType::KeyUpdate, _) if is_13 => {
                let is_asked = match body {
                    [0] => false,
                    [1] => true,
                    _ => {
                        return Err(Failure::new(
                            InvalidMessage::InvalidKeyUpdate,
                            AlertDescription::IllegalParameter,
                        ));
                    }
                };
                if !self.message.is_empty() {
                    return Err(Failure::new(
                        PeerMisbehaved::KeyEpochWithPendingFragment,
                        AlertDescription::UnexpectedMessage,
                    ));
                }
                self.owes_key_update |= is_asked;
                self.renew_receiving(socket)
                    .map_err(|error| Failure::new(error, AlertDescription::InternalError))
            }
            // In TLS 1.2, a client may be asked to renegotiate, and a server may be asked to. rustls does neither.
            (HandshakeType::HelloRequest, Rest::Client(_)) if !is_13 => Ok(()),
            (got_type, _) => Err(Failure::new(
                Error::InappropriateHandshakeMessage {
                    expect_types: Vec::new(),
                    got_type,
                },
                AlertDescription::UnexpectedMessage,
            )),
        }
    }

    fn renew_receiving(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let (sequence, secrets) = match &mut self.rest {
            Rest::Client(rest) => rest.update_rx_secret(),
            Rest::Server(rest) => rest.update_rx_secret(),
        }?;
        self.set_key(socket, Direction::Receive, sequence, &secrets)
    }

    /// The record that announces a new key for sending. When it is sent, [`renew_sending`](Self::renew_sending) follows.
    pub(in crate::tls) fn key_update() -> (u8, &'static [u8]) {
        (ContentType::Handshake.into(), &KEY_UPDATE)
    }

    /// Replaces the key for sending.
    pub(in crate::tls) fn renew_sending(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.note_sent(KEY_UPDATE.len());
        self.owes_key_update = false;
        self.records = 0;
        let made = self.record_number(socket);
        let (sequence, secrets) = match &mut self.rest {
            Rest::Client(rest) => rest.update_tx_secret(),
            Rest::Server(rest) => rest.update_tx_secret(),
        }?;
        self.set_key(socket, Direction::Send, sequence, &secrets)?;
        self.sent.records = self.sent.records.wrapping_add(made.unwrap_or(0));
        Ok(())
    }

    /// Prepares to send data: a key that must make no more records is replaced.
    pub(in crate::tls) fn before_sending(&mut self) -> Result<(), Error> {
        if self.records < self.records_max {
            return Ok(());
        }
        if self.version == Version::Tls12 {
            return Err(Error::General(
                "a key has made as many records as it may, and TLS 1.2 cannot renew it".to_owned(),
            ));
        }
        self.owes_key_update = true;
        Ok(())
    }

    /// Notes that the kernel has accepted `count` bytes of plaintext.
    pub(in crate::tls) fn note_sent(&mut self, count: usize) {
        let count = count as u64;
        self.sent.plaintext = self.sent.plaintext.wrapping_add(count);
        self.records = self
            .records
            .saturating_add(count.div_ceil(RECORD_BYTES_MAX));
    }

    /// Whether TCP has all that was sent. The kernel keeps records for which TCP had no room. It sends them later, but
    /// only as long as the socket is neither closed nor shut down.
    pub(in crate::tls) fn is_with_tcp(&self, socket: BorrowedFd<'_>) -> bool {
        let (Ok(given), Ok(made)) = (
            kernel_tls::bytes_given_to_tcp(socket),
            self.record_number(socket),
        ) else {
            return true;
        };
        let records = self.sent.records.wrapping_add(made);
        let overhead = records.wrapping_mul(self.cipher.overhead(self.version));
        let expected = self.sent.before.wrapping_add(self.sent.plaintext);
        given >= expected.wrapping_add(overhead)
    }

    /// The number of the next record to be sent.
    fn record_number(&self, socket: BorrowedFd<'_>) -> io::Result<u64> {
        let mut key = Key::blank(self.version, self.cipher);
        kernel_tls::sending_key(socket, key.bytes_mut())?;
        Ok(key.sequence())
    }
}

/// An alert, as the content type and content of a record.
pub(in crate::tls) fn alert(description: AlertDescription) -> (u8, [u8; 2]) {
    let is_fatal = description != AlertDescription::CloseNotify;
    let level = if is_fatal { FATAL } else { WARNING };
    (ContentType::Alert.into(), [level, description.into()])
}

/// Takes the first complete message out of the bytes.
fn first_message(bytes: &mut Vec<u8>) -> Result<Option<(HandshakeType, Vec<u8>)>, Failure> {
    let &[kind, high, middle, low, ..] = &bytes[..] else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(Failure::new(
            InvalidMessage::HandshakePayloadTooLarge,
            AlertDescription::DecodeError,
        ));
    }
    if bytes.len() < 4 + length {
        return Ok(None);
    }
    let body = bytes[4..4 + length].to_vec();
    bytes.drain(..4 + length);
    Ok(Some((HandshakeType::from(kind), body)))
}
