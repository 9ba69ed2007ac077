//! The opening handshake (RFC 6455, section 4.2).

use std::fmt;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use super::config::Config;
use super::connection::Connection;
use super::deflate::{self, Negotiated};
use crate::h1::{self, BodyLength, Facts, Head, Method, Upgrade};
use crate::names::Known;
use crate::response::{Lines, ResponseError};
use crate::syntax;

/// The string that is appended to the client's key before hashing (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The last character of a key has four unused bits, which some clients set at random.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The reason to refuse a request for a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is not a GET for a WebSocket, or it has a body.
    Request,
    /// There is not exactly one Sec-WebSocket-Key, or it is not 16 bytes in base64.
    Key,
    /// There is not exactly one Sec-WebSocket-Version, or it is not 13.
    Version,
    /// Sec-WebSocket-Protocol is not a list of tokens.
    Subprotocols,
    /// Sec-WebSocket-Extensions is malformed.
    Extensions,
}

impl Refusal {
    /// The status of the refusal.
    pub fn status(self) -> u16 {
        match self {
            Refusal::Version => 426,
            _ => 400,
        }
    }

    /// The fields that the response must contain: with a 426, the supported version (RFC 6455, section 4.4; RFC 9110,
    /// section 15.5.22).
    pub fn fields(self) -> &'static [(&'static [u8], &'static [u8])] {
        match self {
            Refusal::Version => &[
                (b"upgrade", b"websocket"),
                (b"connection", b"upgrade"),
                (b"sec-websocket-version", b"13"),
            ],
            _ => &[],
        }
    }

    /// A short message.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Request => "not a request for a WebSocket",
            Refusal::Key => "invalid Sec-WebSocket-Key header",
            Refusal::Version => "unsupported WebSocket version",
            Refusal::Subprotocols => "invalid Sec-WebSocket-Protocol header",
            Refusal::Extensions => "invalid Sec-WebSocket-Extensions header",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}

/// The reason why a handshake cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptError {
    /// The response cannot be sent.
    Response(ResponseError),
    /// The client did not offer that subprotocol.
    Subprotocol,
    /// A field is not allowed: the handshake writes it itself, or it frames a body.
    Field,
}

impl fmt::Display for AcceptError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptError::Response(error) => error.fmt(formatter),
            AcceptError::Subprotocol => {
                formatter.write_str("the client did not offer that subprotocol")
            }
            AcceptError::Field => {
                formatter.write_str("header not allowed in a WebSocket handshake")
            }
        }
    }
}

impl std::error::Error for AcceptError {}

impl From<ResponseError> for AcceptError {
    fn from(error: ResponseError) -> Self {
        AcceptError::Response(error)
    }
}

/// A valid request for a WebSocket. It does not refer to the bytes of the request any more.
#[derive(Clone, Debug)]
pub struct Handshake {
    config: Config,
    /// The answer to the client's key. There is none on HTTP/2.
    accept: Option<[u8; 28]>,
    deflate: Option<Negotiated>,
    /// All offered subprotocols, separated by commas.
    subprotocols: Vec<u8>,
}

/// The parameters of the WebSocket that a request asks for.
#[derive(Default)]
struct Offer {
    /// Whether there is a version, and whether it is the right one.
    version: Option<bool>,
    subprotocols: Vec<u8>,
    deflate: Option<Negotiated>,
}

impl Offer {
    /// Takes a field of the request.
    fn take(&mut self, known: Option<Known>, value: &[u8], config: &Config) -> Result<(), Refusal> {
        match known {
            Some(Known::SEC_WEBSOCKET_VERSION) => {
                syntax::set_once(&mut self.version, value == b"13", Refusal::Version)?;
            }
            Some(Known::SEC_WEBSOCKET_PROTOCOL) => {
                if !syntax::list(value).all(syntax::is_token) {
                    return Err(Refusal::Subprotocols);
                }
                if !self.subprotocols.is_empty() {
                    self.subprotocols.push(b',');
                }
                self.subprotocols.extend_from_slice(value);
            }
            Some(Known::SEC_WEBSOCKET_EXTENSIONS) => {
                // A malformed value is refused even if compression is off.
                let wanted = config.deflate.unwrap_or_default();
                let offer = deflate::negotiate(value, &wanted).map_err(|()| Refusal::Extensions)?;
                self.deflate = self
                    .deflate
                    .take()
                    .or(offer.filter(|_| config.deflate.is_some()));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_version(&self) -> Result<(), Refusal> {
        if self.version == Some(true) {
            Ok(())
        } else {
            Err(Refusal::Version)
        }
    }

    fn handshake(self, config: &Config, accept: Option<[u8; 28]>) -> Handshake {
        Handshake {
            config: *config,
            accept,
            deflate: self.deflate,
            subprotocols: self.subprotocols,
        }
    }
}

impl Handshake {
    /// Checks a request whose [`upgrade`](Facts::upgrade) is [`WebSocket`](Upgrade::WebSocket). `bytes` are the bytes of
    /// its head.
    ///
    /// # Errors
    /// If the request violates RFC 6455, section 4.2.1.
    pub fn check(
        facts: &Facts,
        head: &Head,
        bytes: &[u8],
        config: &Config,
    ) -> Result<Handshake, Refusal> {
        if facts.upgrade != Upgrade::WebSocket
            || facts.method != Method::Get
            || facts.body != BodyLength::Sized(0)
        {
            return Err(Refusal::Request);
        }
        let (mut key, mut offer) = (None, Offer::default());
        for field in head.fields() {
            let value = field.value.of(bytes);
            if field.known == Some(Known::SEC_WEBSOCKET_KEY) {
                syntax::set_once(&mut key, value, Refusal::Key)?;
            } else {
                offer.take(field.known, value, config)?;
            }
        }
        // Check the version first: other versions may have other keys.
        offer.check_version()?;
        let accept = accept(key.ok_or(Refusal::Key)?)?;
        Ok(offer.handshake(config, Some(accept)))
    }

    /// Checks a request that came on a stream of HTTP/2 (RFC 8441, section 5), which has no key. `fields` are its fields, and
    /// `end` says whether the client has ended its side.
    ///
    /// # Errors
    /// If the request violates RFC 6455, section 4.2.1, apart from what HTTP/2 does in another way.
    pub fn check_on_stream<'f>(
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        end: bool,
        config: &Config,
    ) -> Result<Handshake, Refusal> {
        if end {
            return Err(Refusal::Request);
        }
        let mut offer = Offer::default();
        for (name, value) in fields {
            let known = Known::find(name);
            if known == Some(Known::CONTENT_LENGTH) {
                return Err(Refusal::Request);
            }
            offer.take(known, value, config)?;
        }
        offer.check_version()?;
        Ok(offer.handshake(config, None))
    }

    /// The subprotocols that the client offers, in its order of preference.
    pub fn subprotocols(&self) -> impl Iterator<Item = &[u8]> {
        syntax::list(&self.subprotocols).filter(|name| !name.is_empty())
    }

    /// Whether messages will be compressed.
    pub fn is_compressed(&self) -> bool {
        self.deflate.is_some()
    }

    /// Whether a field of this name can be among the `fields` of [`accept`](Handshake::accept).
    pub fn may_have(name: &[u8]) -> bool {
        !is_reserved(Known::find(name))
    }

    /// Appends the response to `out`. After it, the connection speaks WebSocket.
    ///
    /// `subprotocol` is one of those that the client offers, or `None`. `fields` are the application's fields. Date and
    /// Server come from `lines`. `unix_s` is the current time in seconds since 1970.
    ///
    /// # Errors
    /// If the request was answered before, if the client does not offer the subprotocol, or if a field is
    /// invalid or not allowed. Nothing is written in case of an error.
    pub fn accept<'f>(
        &self,
        connection: &mut h1::Connection,
        subprotocol: Option<&[u8]>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        lines: &mut Lines,
        unix_s: u64,
        out: &mut Vec<u8>,
    ) -> Result<Connection, AcceptError> {
        let start = out.len();
        let result = self
            .write(subprotocol, fields, lines, unix_s, out)
            .and_then(|()| connection.switch_protocol().map_err(AcceptError::from));
        if result.is_err() {
            out.truncate(start);
        }
        result.map(|()| Connection::new(self.config, self.deflate))
    }

    /// The WebSocket on a stream of HTTP/2 that begins when the request is [accepted](crate::h2::Connection::open) with the
    /// fields that `field` is called with. The parameters are those of [`accept`](Handshake::accept).
    ///
    /// # Errors
    /// If the client does not offer the subprotocol, or if a field is not allowed. Otherwise the fields are not checked.
    pub fn accept_on_stream<'f>(
        &self,
        subprotocol: Option<&[u8]>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<Connection, AcceptError> {
        self.each_field(subprotocol, fields, |_, name, value| {
            field(name, value);
            Ok(())
        })?;
        Ok(Connection::new(self.config, self.deflate))
    }

    fn write<'f>(
        &self,
        subprotocol: Option<&[u8]>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        lines: &mut Lines,
        unix_s: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), AcceptError> {
        out.extend_from_slice(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n",
        );
        if let Some(accept) = &self.accept {
            h1::write_field(b"sec-websocket-accept", accept, out);
        }
        let (mut has_date, mut has_server) = (false, false);
        self.each_field(subprotocol, fields, |known, name, value| {
            match known {
                Some(Known::DATE) => has_date = true,
                Some(Known::SERVER) => has_server = true,
                _ => {}
            }
            Ok(h1::write_checked_field(name, value, out)?)
        })?;
        lines.write(unix_s, has_date, has_server, out);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Passes on the fields that accept the handshake in any version of HTTP, and the application's.
    fn each_field<'f>(
        &self,
        subprotocol: Option<&[u8]>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        mut put: impl FnMut(Option<Known>, &[u8], &[u8]) -> Result<(), AcceptError>,
    ) -> Result<(), AcceptError> {
        if let Some(chosen) = subprotocol {
            if !self.subprotocols().any(|offered| offered == chosen) {
                return Err(AcceptError::Subprotocol);
            }
            let known = Some(Known::SEC_WEBSOCKET_PROTOCOL);
            put(known, b"sec-websocket-protocol", chosen)?;
        }
        if let Some(deflate) = &self.deflate {
            let mut value = Vec::new();
            deflate.write(&mut value);
            let known = Some(Known::SEC_WEBSOCKET_EXTENSIONS);
            put(known, b"sec-websocket-extensions", &value)?;
        }
        for (name, value) in fields {
            let known = Known::find(name);
            if is_reserved(known) {
                return Err(AcceptError::Field);
            }
            put(known, name, value)?;
        }
        Ok(())
    }
}

/// Whether the handshake writes a field itself, or the field frames a body.
fn is_reserved(name: Option<Known>) -> bool {
    matches!(
        name,
        Some(
            Known::CONNECTION
                | Known::CONTENT_LENGTH
                | Known::SEC_WEBSOCKET_ACCEPT
                | Known::SEC_WEBSOCKET_EXTENSIONS
                | Known::SEC_WEBSOCKET_PROTOCOL
                | Known::TRANSFER_ENCODING
                | Known::UPGRADE
        )
    )
}

/// The value of Sec-WebSocket-Accept for `key` (RFC 6455, section 4.2.2).
fn accept(key: &[u8]) -> Result<[u8; 28], Refusal> {
    // 16 bytes are 24 characters, including two for padding.
    let mut nonce = [0; 18];
    let is_valid = key.len() == 24
        && BASE64
            .decode_slice(key, &mut nonce)
            .is_ok_and(|length| length == 16);
    if !is_valid {
        return Err(Refusal::Key);
    }
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(GUID);
    let mut accept = [0; 28];
    BASE64
        .encode_slice(hash.digest().bytes(), &mut accept)
        .map_err(|_| Refusal::Key)?;
    Ok(accept)
}
