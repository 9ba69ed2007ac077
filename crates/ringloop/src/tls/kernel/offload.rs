//! The TLS state of a connection whose records the kernel encrypts and decrypts. What is left to do here are the
//! records that are no data: alerts, session tickets, and new keys.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::cipher::{AeadKey, Iv, NONCE_LEN};
use rustls::kernel::KernelConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, CommonState, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    HandshakeKind, ProtocolVersion, SupportedCipherSuite,
};

use super::incoming::{Event, FATAL, Incoming, WARNING};
pub(in crate::tls) use super::incoming::{Failure, Meaning};
use super::key::{Cipher, Key, Version};
use super::named;
use super::probe::cipher_support;
use crate::sys::kernel_tls::{self, Direction};

const CANNOT_RENEW: &str =
    "the kernel cannot renew the keys of a TLS connection; Linux 6.14 and later can";

/// The maximum amount of plaintext in a record.
const RECORD_BYTES_MAX: u64 = 16 * 1024;

/// `KeyUpdate` with `update_not_requested`, see RFC 8446, section 4.6.3.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// How many records are made before the kernel is asked how many there are: this, or an eighth of what a key may make.
const RECORDS_UNCHECKED_MAX: u64 = 4096;

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

/// The state of a connection whose keys the kernel has.
pub(in crate::tls) struct Offloaded {
    pub(in crate::tls) agreed: Agreed,
    rest: Rest,
    version: Version,
    cipher: Cipher,
    /// Whether the kernel can replace keys.
    renews_keys: bool,
    incoming: Incoming,
    /// Whether the peer is owed a `KeyUpdate`, before anything else is sent.
    pub(in crate::tls) owes_key_update: bool,
    /// Whether the kernel may hold back part of a record, which a call has left open for more when there was no more room.
    /// Whatever is sent next ends it.
    pub(in crate::tls) holds_back: bool,
    /// How many records the current key for sending has made, at least: the kernel may divide data into more.
    records: u64,
    /// The number of records at which the kernel is asked.
    records_to_check: u64,
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
    renews_keys: bool,
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
        if !agreed.cipher_suite.is_some_and(gives_keys) {
            return Err("rustls' cryptography provider does not give keys away".into());
        }
        let abilities = cipher_support(version, cipher)?;
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
            renews_keys: abilities.renews_keys,
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
            incoming: Incoming::new(self.version, matches!(rest, Rest::Client(_))),
            renews_keys: self.renews_keys,
            rest,
            version: self.version,
            cipher: self.cipher,
            owes_key_update: false,
            holds_back: false,
            records: first_record,
            records_to_check: first_record,
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
                CANNOT_RENEW.to_owned()
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
        let mut meaning = Meaning::Nothing;
        for event in self.incoming.record(kind, bytes)? {
            match (event, &mut self.rest) {
                (Event::Closed, _) => meaning = Meaning::Closed,
                (Event::Renegotiation, _) => meaning = Meaning::Renegotiation,
                (Event::Ticket(body), Rest::Client(rest)) => rest
                    .handle_new_session_ticket(&body)
                    .map_err(|error| Failure::new(error, AlertDescription::DecodeError))?,
                // Only clients are given any.
                (Event::Ticket(_), Rest::Server(_)) => {}
                (Event::KeyUpdate { is_asked }, _) => {
                    self.owes_key_update |= is_asked;
                    self.renew_receiving(socket)
                        .map_err(|error| Failure::new(error, AlertDescription::InternalError))?;
                }
            }
        }
        Ok(meaning)
    }

    /// Notes that data was received.
    pub(in crate::tls) fn receive_data(&mut self) -> Result<(), Failure> {
        self.incoming.data()
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

    /// A record without content, which the kernel does not send. It sends what it [holds back](Self::holds_back), as before
    /// any record whose type is given.
    pub(in crate::tls) fn nothing() -> (u8, &'static [u8]) {
        (ContentType::ApplicationData.into(), &[])
    }

    /// Replaces the key for sending.
    pub(in crate::tls) fn renew_sending(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.note_sent(KEY_UPDATE.len());
        self.owes_key_update = false;
        self.records = 0;
        self.records_to_check = 0;
        let made = self.record_number(socket);
        let (sequence, secrets) = match &mut self.rest {
            Rest::Client(rest) => rest.update_tx_secret(),
            Rest::Server(rest) => rest.update_tx_secret(),
        }?;
        self.set_key(socket, Direction::Send, sequence, &secrets)?;
        self.sent.records = self.sent.records.wrapping_add(made.unwrap_or(0));
        Ok(())
    }

    /// Prepares to send data: a key that must make no more records is replaced. Fails if that is impossible; then the key
    /// may make one more record, which tells the peer of the end.
    pub(in crate::tls) fn before_sending(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        if self.records >= self.records_to_check {
            if let Ok(made) = self.record_number(socket) {
                self.records = self.records.max(made);
            }
            let unchecked = RECORDS_UNCHECKED_MAX.min(self.records_max / 8);
            self.records_to_check = self.records.saturating_add(unchecked.max(1));
        }
        if self.records.saturating_add(1) < self.records_max {
            return Ok(());
        }
        if self.renews_keys {
            self.owes_key_update = true;
            return Ok(());
        }
        Err(Error::General(match self.version {
            Version::Tls12 => {
                "a key has made as many records as it may, and TLS 1.2 cannot renew it".to_owned()
            }
            Version::Tls13 => {
                format!("a key has made as many records as it may, and {CANNOT_RENEW}")
            }
        }))
    }

    /// Notes that the kernel has accepted `count` bytes of plaintext.
    pub(in crate::tls) fn note_sent(&mut self, count: usize) {
        if count > 0 {
            self.holds_back = false;
        }
        let count = count as u64;
        self.sent.plaintext = self.sent.plaintext.wrapping_add(count);
        self.records = self
            .records
            .saturating_add(count.div_ceil(RECORD_BYTES_MAX));
    }

    /// Notes that a call has moved less than it was asked for. Its bytes are on their way as if more followed at once: the
    /// kernel holds a part of a record back, and TCP does not send what it has. If TCP has nothing else under way, no
    /// acknowledgement would come that makes room, so it is made to send.
    pub(in crate::tls) fn note_cut_short(&mut self, socket: BorrowedFd<'_>) {
        self.holds_back = true;
        // An error means that the connection is gone, which the next call says.
        let _ = kernel_tls::send_pending(socket);
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

/// Whether the provider can give away the keys of a suite, which rustls only finds out when it has given up the
/// connection.
fn gives_keys(suite: SupportedCipherSuite) -> bool {
    let Some(suite) = suite.tls13() else {
        // rustls has a name for the others only with its feature `tls12`, which is the program's choice. If a provider kept
        // these keys, the connection would fail.
        return true;
    };
    let iv = Iv::from([0; NONCE_LEN]);
    let given = suite.aead_alg.extract_keys(AeadKey::from([0; 32]), iv);
    given.is_ok()
}

/// An alert, as the content type and content of a record.
pub(in crate::tls) fn alert(description: AlertDescription) -> (u8, [u8; 2]) {
    let level = match description {
        AlertDescription::CloseNotify | AlertDescription::NoRenegotiation => WARNING,
        _ => FATAL,
    };
    (ContentType::Alert.into(), [level, description.into()])
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{
        MessageDecrypter, MessageEncrypter, Tls13AeadAlgorithm, UnsupportedOperationError,
    };
    use rustls::crypto::ring::{ALL_CIPHER_SUITES, cipher_suite::TLS13_AES_256_GCM_SHA384};
    use rustls::{CipherSuiteCommon, Tls13CipherSuite};

    use super::*;

    struct Secretive(&'static dyn Tls13AeadAlgorithm);

    impl Tls13AeadAlgorithm for Secretive {
        fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
            self.0.encrypter(key, iv)
        }

        fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
            self.0.decrypter(key, iv)
        }

        fn key_len(&self) -> usize {
            self.0.key_len()
        }

        fn extract_keys(
            &self,
            _: AeadKey,
            _: Iv,
        ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
            Err(UnsupportedOperationError)
        }
    }

    #[test]
    fn a_provider_that_keeps_its_keys_is_found_out_before_they_are_asked_for() {
        assert!(ALL_CIPHER_SUITES.iter().copied().all(gives_keys));
        let suite = TLS13_AES_256_GCM_SHA384.tls13().unwrap();
        let secretive = Tls13CipherSuite {
            common: CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: suite.common.confidentiality_limit,
            },
            hkdf_provider: suite.hkdf_provider,
            aead_alg: Box::leak(Box::new(Secretive(suite.aead_alg))),
            quic: None,
        };
        let secretive = SupportedCipherSuite::Tls13(Box::leak(Box::new(secretive)));
        assert!(!gives_keys(secretive));
    }
}
