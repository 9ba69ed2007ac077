//! Request heads: finding their end, parsing and checking them.

use std::mem::MaybeUninit;

use super::fault::Fault;
use super::limits::Limits;
use super::request::{BodyLength, Method, Span, Upgrade, Version};
use super::target::{self, Form};
use crate::names::Known;
use crate::syntax;

/// A field line.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name as the client wrote it. [`crate::lower_case`] converts it to lower case.
    pub name: Span,
    /// The value without leading and trailing whitespace. It has no control characters except tabs. Bytes above 0x7F
    /// are passed through.
    pub value: Span,
    /// The name as a known name, if it is one.
    pub known: Option<Known>,
}

/// The contents of a request's head, apart from its fields. Spans are relative to the first byte of the head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// The method.
    pub method: Method,
    /// The method as the client wrote it.
    pub method_name: Span,
    /// The target as the client wrote it.
    pub target: Span,
    /// The form of the target.
    pub form: Form,
    /// The authority of the target, in absolute-form and in authority-form.
    pub authority: Span,
    /// The server that the client asks: in absolute-form the authority of the target (RFC 9112, section 3.2.2), otherwise
    /// the value of Host, empty if there is none.
    pub host: Span,
    /// The version of the request. Responses are always HTTP/1.1 (RFC 9110, section 6.2).
    pub version: Version,
    /// The length of the body.
    pub body: BodyLength,
    /// Whether the connection may stay open after the response (RFC 9112, section 9.3).
    pub keep_alive: bool,
    /// Whether there is a body, and the client waits for `100 Continue` before it sends it.
    pub expects_continue: bool,
    /// The protocol that the client wants to switch to.
    pub upgrade: Upgrade,
    /// Whether the client wants trailers behind chunks, as TE says (RFC 9110, section 6.5.1).
    pub takes_trailers: bool,
    path: Span,
    query: Span,
}

impl Facts {
    /// The path as the client wrote it, with its percent-encoding. In absolute-form an empty path is `/`, or `*` for
    /// OPTIONS (RFC 9112, section 3.2.4). In asterisk-form it is `*`, in authority-form empty.
    pub fn path<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        match self.form {
            Form::Absolute if self.path.is_empty() => {
                if self.method == Method::Options && self.query.is_empty() {
                    b"*"
                } else {
                    b"/"
                }
            }
            _ => self.path.of(head),
        }
    }

    /// The part of the target after its first question mark.
    pub fn query<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        self.query.of(head)
    }

    /// Whether the target has a question mark, even if no query follows.
    pub fn has_query(&self) -> bool {
        // A missing query is an empty span at the start of the head, where the method is.
        self.query.start() != 0
    }
}

/// The search for the end of a head. It resumes where it stopped when more bytes have arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// The number of bytes that were searched. All line ends in them are CRLF.
    position: u32,
    has_request_line: bool,
}

impl Scan {
    pub(super) fn has_begun(self) -> bool {
        self.position != 0
    }

    /// The length of the head at the start of `input`, including the empty line at its end. `None` if more input is
    /// needed: call again with the same bytes and more.
    pub(super) fn end(&mut self, input: &[u8], limits: &Limits) -> Result<Option<usize>, Fault> {
        // Refuse what is obviously not HTTP at once, not when a limit or a deadline is reached.
        if input
            .first()
            .is_some_and(|&byte| !syntax::is_token_byte(byte))
        {
            return Err(Fault::RequestLine);
        }
        let limit = limits.head_bytes.min(Limits::HEAD_BYTES_MAX);
        let bounded = &input[..input.len().min(limit)];
        let start = self.position as usize;
        for offset in memchr::memchr_iter(b'\n', &bounded[start..]) {
            let at = start + offset;
            if !self.has_request_line {
                if at >= limits.request_line_bytes {
                    return Err(Fault::RequestLineTooLong);
                }
                self.has_request_line = true;
            }
            // The first byte is part of a token, so `at` is at least 1; and if there is a CR, at least 2.
            if bounded[at - 1] != b'\r' {
                return Err(Fault::BareLineFeed);
            }
            if bounded[at - 2] == b'\n' {
                return Ok(Some(at + 1));
            }
        }
        if !self.has_request_line && bounded.len() > limits.request_line_bytes {
            return Err(Fault::RequestLineTooLong);
        }
        if input.len() >= limit {
            return Err(Fault::HeadTooLarge);
        }
        self.position = bounded.len() as u32;
        Ok(None)
    }
}

/// The fields of a head, in memory that is reused. One is enough for all connections of a thread.
#[derive(Debug, Default)]
pub struct Head {
    fields: Vec<Field>,
}

impl Head {
    /// The fields in the order of the request.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The values of all fields with this name.
    pub fn values<'a>(&self, name: Known, head: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| field.known == Some(name))
            .map(move |field| field.value.of(head))
    }

    pub(super) fn clear(&mut self) {
        self.fields.clear();
    }

    /// Parses `bytes`, a complete head as found by [`Scan::end`].
    pub(super) fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<Facts, Fault> {
        let mut on_stack = [const { MaybeUninit::uninit() }; Limits::FIELDS_ON_STACK];
        let mut on_heap = Vec::new();
        let room = limits.room_for_fields(bytes.len(), &mut on_stack, &mut on_heap);
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(bytes, room) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Err(error) => return Err(fault_of(error, bytes)),
            // The head does not end at its empty line.
            Ok(_) => return Err(Fault::RequestLine),
        }
        // httparse has set all three.
        let (Some(method_name), Some(target), Some(minor_version)) =
            (request.method, request.path, request.version)
        else {
            return Err(Fault::RequestLine);
        };
        let method = Method::from_bytes(method_name.as_bytes());
        let version = if minor_version == 0 {
            Version::Http10
        } else {
            Version::Http11
        };
        let target_span = Span::of_part(bytes, target.as_bytes());
        let target = target::parse(bytes, target_span, method)?;

        let mut framing = Framing::default();
        self.fields.clear();
        for header in request.headers.iter() {
            let known = Known::find(header.name.as_bytes());
            let value = Span::of_part(bytes, header.value);
            if let Some(name) = known
                && name.is_of_framing()
            {
                framing.add(name, value, bytes)?;
            }
            self.fields.push(Field {
                name: Span::of_part(bytes, header.name.as_bytes()),
                value,
                known,
            });
        }

        let body = framing.body(version)?;
        let host = framing.host(version, &target, bytes)?;
        let has_body = body != BodyLength::Sized(0);
        Ok(Facts {
            method,
            method_name: Span::of_part(bytes, method_name.as_bytes()),
            target: target_span,
            form: target.form,
            authority: target.authority,
            host,
            version,
            body,
            keep_alive: framing.keep_alive(version),
            expects_continue: framing.expects_continue(version)? && has_body,
            upgrade: framing.upgrade(version),
            takes_trailers: framing.takes_trailers && version == Version::Http11,
            path: target.path,
            query: target.query,
        })
    }
}

/// The fault behind httparse's `error` in `bytes`.
fn fault_of(error: httparse::Error, bytes: &[u8]) -> Fault {
    match error {
        httparse::Error::HeaderName => Fault::FieldName,
        httparse::Error::HeaderValue => Fault::FieldValue,
        httparse::Error::TooManyHeaders => Fault::TooManyFields,
        httparse::Error::Version if has_other_version(bytes) => Fault::UnsupportedVersion,
        _ => Fault::RequestLine,
    }
}

/// Whether the request line consists of a method, a target and a well-formed version (RFC 9112, section 2.3).
fn has_other_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or(bytes);
    let mut parts = line.split(|&byte| byte == b' ').skip(2);
    let version = parts.next().unwrap_or_default();
    parts.next().is_none()
        && matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit())
}

/// The values of the fields that control framing and the connection.
#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each stands for a word that was found"
)]
struct Framing {
    host: Option<Span>,
    content_length: Option<u64>,
    /// Whether there is a Transfer-Encoding, and whether it is valid.
    coding: Option<Result<(), Fault>>,
    close: bool,
    stay: bool,
    wants_upgrade: bool,
    upgrade: Upgrade,
    expects_continue: bool,
    has_other_expectation: bool,
    takes_trailers: bool,
}

impl Framing {
    fn add(&mut self, name: Known, span: Span, bytes: &[u8]) -> Result<(), Fault> {
        let value = span.of(bytes);
        match name {
            Known::HOST => syntax::set_once(&mut self.host, span, Fault::RepeatedHost)?,
            Known::CONTENT_LENGTH => {
                let length = syntax::decimal(value).ok_or(Fault::ContentLength)?;
                let fault = Fault::RepeatedContentLength;
                syntax::set_once(&mut self.content_length, length, fault)?;
            }
            Known::TRANSFER_ENCODING => {
                self.coding = Some(match self.coding {
                    None => check_coding(value),
                    Some(_) => Err(Fault::TransferEncoding),
                });
            }
            Known::CONNECTION => {
                for option in syntax::list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.stay |= option.eq_ignore_ascii_case(b"keep-alive");
                    self.wants_upgrade |= option.eq_ignore_ascii_case(b"upgrade");
                }
            }
            Known::TE => self.takes_trailers |= syntax::lists(value, b"trailers"),
            Known::EXPECT => {
                if value.eq_ignore_ascii_case(b"100-continue") {
                    self.expects_continue = true;
                } else {
                    self.has_other_expectation = true;
                }
            }
            Known::UPGRADE => {
                if syntax::lists(value, b"websocket") {
                    self.upgrade = Upgrade::WebSocket;
                } else if self.upgrade == Upgrade::None {
                    self.upgrade = Upgrade::Other;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// RFC 9112, section 6.
    fn body(&self, version: Version) -> Result<BodyLength, Fault> {
        match (self.coding, self.content_length) {
            (None, length) => Ok(BodyLength::Sized(length.unwrap_or(0))),
            (Some(_), Some(_)) => Err(Fault::LengthAndCoding),
            (Some(_), None) if version == Version::Http10 => Err(Fault::CodingInHttp10),
            (Some(coding), None) => coding.map(|()| BodyLength::Chunked),
        }
    }

    /// RFC 9112, section 3.2.
    fn host(&self, version: Version, target: &target::Target, bytes: &[u8]) -> Result<Span, Fault> {
        let of_target = (target.form == Form::Absolute).then_some(target.authority);
        let Some(span) = self.host else {
            return if version == Version::Http10 {
                Ok(of_target.unwrap_or_default())
            } else {
                Err(Fault::MissingHost)
            };
        };
        syntax::authority(span.of(bytes)).ok_or(Fault::Host)?;
        Ok(of_target.unwrap_or(span))
    }

    /// RFC 9112, section 9.3.
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.stay)
    }

    /// RFC 9110, section 10.1.1: ignore the field in HTTP/1.0.
    fn expects_continue(&self, version: Version) -> Result<bool, Fault> {
        if version == Version::Http10 {
            Ok(false)
        } else if self.has_other_expectation {
            Err(Fault::Expectation)
        } else {
            Ok(self.expects_continue)
        }
    }

    /// RFC 9110, section 7.8: Upgrade counts only if Connection lists it, and not in HTTP/1.0.
    fn upgrade(&self, version: Version) -> Upgrade {
        if self.wants_upgrade && version == Version::Http11 {
            self.upgrade
        } else {
            Upgrade::None
        }
    }
}

/// Checks `value`, the only Transfer-Encoding.
fn check_coding(value: &[u8]) -> Result<(), Fault> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let count = syntax::list(value)
        .filter(|coding| is_chunked(coding))
        .count();
    let ends_chunked = syntax::list(value).last().is_some_and(is_chunked);
    // RFC 9112, section 6.3: 400 if the length cannot be determined, 501 if it could, but other codings are
    // unsupported.
    if count == 1 && ends_chunked && syntax::list(value).all(|coding| !coding.is_empty()) {
        Err(Fault::UnsupportedCoding)
    } else {
        Err(Fault::TransferEncoding)
    }
}
