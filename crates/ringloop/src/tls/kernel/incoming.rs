//! The meaning of records that are no data: alerts, and messages of the handshake protocol. Their limits are those of
//! rustls.

use rustls::{AlertDescription, ContentType, Error, HandshakeType, InvalidMessage, PeerMisbehaved};

use super::key::Version;

pub(super) const WARNING: u8 = 1;
pub(super) const FATAL: u8 = 2;

/// Handshake messages after the handshake are a few hundred bytes long. rustls allows no longer ones.
const MESSAGE_BYTES_MAX: usize = 0xffff;

/// How often a peer may renew its keys without sending data in between, and how many empty records may follow each other.
const REPETITIONS_MAX: u8 = 32;
/// How many warnings a peer may send.
const WARNINGS_MAX: u8 = 4;
/// How often a peer may ask for another handshake (TLS 1.2). It is refused.
const RENEGOTIATIONS_MAX: u8 = 1;

/// The meaning of a record that is no data, for the connection as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tls) enum Meaning {
    /// Reading goes on.
    Nothing,
    /// The peer sends nothing more.
    Closed,
    /// The peer wants another handshake, which must be refused.
    Renegotiation,
}

/// An error, and the alert that tells the peer.
#[derive(Debug, PartialEq)]
pub(in crate::tls) struct Failure {
    pub(in crate::tls) error: Error,
    /// `None` if the peer knows.
    pub(in crate::tls) alert: Option<AlertDescription>,
}

impl Failure {
    pub(super) fn new(error: impl Into<Error>, alert: AlertDescription) -> Self {
        Self {
            error: error.into(),
            alert: Some(alert),
        }
    }

    fn unexpected(error: impl Into<Error>) -> Self {
        Self::new(error, AlertDescription::UnexpectedMessage)
    }
}

/// An alert or message of the peer that asks for something.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Closed,
    Renegotiation,
    /// The body of `NewSessionTicket`.
    Ticket(Vec<u8>),
    KeyUpdate {
        /// Whether the peer wants one, too.
        is_asked: bool,
    },
}

/// Puts messages together, and counts what a peer must not send without end.
pub(super) struct Incoming {
    version: Version,
    is_client: bool,
    /// Part of a handshake message.
    message: Vec<u8>,
    key_updates: u8,
    empty_records: u8,
    warnings: u8,
    renegotiations: u8,
}

impl Incoming {
    pub(super) fn new(version: Version, is_client: bool) -> Self {
        Self {
            version,
            is_client,
            message: Vec::new(),
            key_updates: 0,
            empty_records: 0,
            warnings: 0,
            renegotiations: 0,
        }
    }

    /// Notes that data has come.
    pub(super) fn data(&mut self) -> Result<(), Failure> {
        self.key_updates = 0;
        self.empty_records = 0;
        self.check_whole()
    }

    /// Interprets a record that is no data, or part of one.
    pub(super) fn record(&mut self, kind: u8, bytes: &[u8]) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        if bytes.is_empty() {
            count(
                &mut self.empty_records,
                REPETITIONS_MAX,
                PeerMisbehaved::TooManyEmptyFragments,
            )?;
        } else {
            self.empty_records = 0;
        }
        match ContentType::from(kind) {
            ContentType::Alert => {
                self.check_whole()?;
                // The kernel may return several records as one.
                for alert in bytes.chunks(2) {
                    if self.receive_alert(alert)? {
                        events.push(Event::Closed);
                        // Whatever follows must be ignored (RFC 8446, section 6.1).
                        break;
                    }
                }
            }
            ContentType::Handshake => {
                self.message.extend_from_slice(bytes);
                while let Some((kind, body)) = first_message(&mut self.message)? {
                    events.push(self.receive_message(kind, body)?);
                }
            }
            got_type => {
                return Err(Failure::unexpected(Error::InappropriateMessage {
                    expect_types: vec![ContentType::ApplicationData],
                    got_type,
                }));
            }
        }
        Ok(events)
    }

    /// Fails if something else comes in the middle of a message (RFC 8446, section 5.1).
    fn check_whole(&self) -> Result<(), Failure> {
        if self.message.is_empty() {
            return Ok(());
        }
        Err(Failure::unexpected(
            PeerMisbehaved::MessageInterleavedWithHandshakeMessage,
        ))
    }

    /// Returns whether the peer sends nothing more.
    fn receive_alert(&mut self, alert: &[u8]) -> Result<bool, Failure> {
        let &[level, description] = alert else {
            return Err(Failure::new(
                InvalidMessage::MessageTooShort,
                AlertDescription::DecodeError,
            ));
        };
        let description = AlertDescription::from(description);
        let error = Error::AlertReceived(description);
        match (level, description) {
            (WARNING | FATAL, AlertDescription::CloseNotify) => Ok(true),
            (FATAL, _) => Err(Failure { error, alert: None }),
            (WARNING, description) => {
                count(
                    &mut self.warnings,
                    WARNINGS_MAX,
                    PeerMisbehaved::TooManyWarningAlertsReceived,
                )?;
                // All others are fatal in TLS 1.3 (RFC 8446, section 6).
                if self.version == Version::Tls13 && description != AlertDescription::UserCanceled {
                    return Err(Failure::new(error, AlertDescription::DecodeError));
                }
                Ok(false)
            }
            _ => Err(Failure::new(error, AlertDescription::IllegalParameter)),
        }
    }

    fn receive_message(&mut self, kind: HandshakeType, body: Vec<u8>) -> Result<Event, Failure> {
        match (self.version, kind, self.is_client) {
            (Version::Tls13, HandshakeType::NewSessionTicket, true) => Ok(Event::Ticket(body)),
            (Version::Tls13, HandshakeType::KeyUpdate, _) => {
                count(
                    &mut self.key_updates,
                    REPETITIONS_MAX,
                    PeerMisbehaved::TooManyKeyUpdateRequests,
                )?;
                let is_asked = match body[..] {
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
                    return Err(Failure::unexpected(
                        PeerMisbehaved::KeyEpochWithPendingFragment,
                    ));
                }
                Ok(Event::KeyUpdate { is_asked })
            }
            (Version::Tls12, HandshakeType::HelloRequest, true)
            | (Version::Tls12, HandshakeType::ClientHello, false) => {
                count(
                    &mut self.renegotiations,
                    RENEGOTIATIONS_MAX,
                    PeerMisbehaved::TooManyRenegotiationRequests,
                )?;
                Ok(Event::Renegotiation)
            }
            (_, got_type, _) => Err(Failure::unexpected(Error::InappropriateHandshakeMessage {
                expect_types: Vec::new(),
                got_type,
            })),
        }
    }
}

fn count(number: &mut u8, max: u8, error: PeerMisbehaved) -> Result<(), Failure> {
    if *number == max {
        return Err(Failure::unexpected(error));
    }
    *number += 1;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    const DATA: u8 = 23;

    fn client(version: Version) -> Incoming {
        Incoming::new(version, true)
    }

    fn server(version: Version) -> Incoming {
        Incoming::new(version, false)
    }

    fn misbehaved(result: Result<Vec<Event>, Failure>) -> (PeerMisbehaved, AlertDescription) {
        match result.unwrap_err() {
            Failure {
                error: Error::PeerMisbehaved(what),
                alert: Some(alert),
            } => (what, alert),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_comes_in_pieces_with_nothing_else_in_between() {
        let ticket = [4, 0, 0, 3, 7, 8, 9];
        let mut incoming = client(Version::Tls13);
        assert_eq!(incoming.record(HANDSHAKE, &ticket[..3]), Ok(vec![]));
        let rest = incoming.record(HANDSHAKE, &ticket[3..]);
        assert_eq!(rest, Ok(vec![Event::Ticket(vec![7, 8, 9])]));
        incoming.data().unwrap();
        let both = incoming.record(HANDSHAKE, &ticket.repeat(2)).unwrap();
        assert_eq!(both.len(), 2);

        let expected = (
            PeerMisbehaved::MessageInterleavedWithHandshakeMessage,
            AlertDescription::UnexpectedMessage,
        );
        incoming.record(HANDSHAKE, &ticket[..3]).unwrap();
        let alert = incoming.record(ALERT, &[WARNING, 0]);
        assert_eq!(misbehaved(alert), expected);
        assert_eq!(misbehaved(incoming.data().map(|()| vec![])), expected);
        // A server gets none.
        server(Version::Tls13)
            .record(HANDSHAKE, &ticket)
            .unwrap_err();
    }

    #[test]
    fn keys_are_renewed_only_so_often_without_data() {
        let update = [24, 0, 0, 1, 1];
        let mut incoming = server(Version::Tls13);
        for _ in 0..3 {
            for _ in 0..REPETITIONS_MAX {
                let events = incoming.record(HANDSHAKE, &update);
                assert_eq!(events, Ok(vec![Event::KeyUpdate { is_asked: true }]));
            }
            incoming.data().unwrap();
        }
        for _ in 0..REPETITIONS_MAX {
            incoming.record(HANDSHAKE, &update).unwrap();
        }
        let (what, _) = misbehaved(incoming.record(HANDSHAKE, &update));
        assert_eq!(what, PeerMisbehaved::TooManyKeyUpdateRequests);
        // Nothing may follow in the same record.
        let (what, _) = misbehaved(server(Version::Tls13).record(HANDSHAKE, &[24, 0, 0, 1, 0, 24]));
        assert_eq!(what, PeerMisbehaved::KeyEpochWithPendingFragment);
        server(Version::Tls12)
            .record(HANDSHAKE, &update)
            .unwrap_err();
    }

    #[test]
    fn empty_records_have_an_end() {
        let mut incoming = client(Version::Tls13);
        for _ in 0..REPETITIONS_MAX {
            assert_eq!(incoming.record(HANDSHAKE, &[]), Ok(vec![]));
        }
        let (what, _) = misbehaved(incoming.record(HANDSHAKE, &[]));
        assert_eq!(what, PeerMisbehaved::TooManyEmptyFragments);
    }

    #[test]
    fn another_handshake_is_refused_once() {
        for (mut incoming, wish) in [
            (client(Version::Tls12), [0, 0, 0, 0]),
            (server(Version::Tls12), [1, 0, 0, 0]),
        ] {
            let events = incoming.record(HANDSHAKE, &wish);
            assert_eq!(events, Ok(vec![Event::Renegotiation]));
            let (what, _) = misbehaved(incoming.record(HANDSHAKE, &wish));
            assert_eq!(what, PeerMisbehaved::TooManyRenegotiationRequests);
        }
        client(Version::Tls13)
            .record(HANDSHAKE, &[0; 4])
            .unwrap_err();
        server(Version::Tls13)
            .record(HANDSHAKE, &[1, 0, 0, 0])
            .unwrap_err();
    }

    #[test]
    fn alerts_mean_what_they_mean_to_rustls() {
        let (close, canceled, unrecognized, internal) = (0, 90, 112, 80);
        for version in [Version::Tls12, Version::Tls13] {
            for level in [WARNING, FATAL] {
                let closed = client(version).record(ALERT, &[level, close]);
                assert_eq!(closed, Ok(vec![Event::Closed]));
            }
            let fatal = client(version)
                .record(ALERT, &[FATAL, internal])
                .unwrap_err();
            let error = Error::AlertReceived(AlertDescription::InternalError);
            assert_eq!(fatal, Failure { error, alert: None });
            for unreadable in [
                &[WARNING][..],
                &[3, internal],
                &[WARNING, canceled, WARNING],
            ] {
                client(version).record(ALERT, unreadable).unwrap_err();
            }
            let mut incoming = client(version);
            for _ in 0..WARNINGS_MAX {
                assert_eq!(incoming.record(ALERT, &[WARNING, canceled]), Ok(vec![]));
            }
            let (what, _) = misbehaved(incoming.record(ALERT, &[WARNING, canceled]));
            assert_eq!(what, PeerMisbehaved::TooManyWarningAlertsReceived);
            // Several at once.
            let both = client(version).record(ALERT, &[WARNING, canceled, WARNING, close]);
            assert_eq!(both, Ok(vec![Event::Closed]));
        }
        let warning = [WARNING, unrecognized];
        assert_eq!(client(Version::Tls12).record(ALERT, &warning), Ok(vec![]));
        client(Version::Tls13).record(ALERT, &warning).unwrap_err();
        client(Version::Tls13).record(DATA, b"data").unwrap_err();
    }
}
