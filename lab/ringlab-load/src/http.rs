//! HTTP/1.1: requests, and the check of their responses.
//!
//! Most servers answer with the same bytes each time, except for the date. So each thread remembers the last response that was
//! parsed and correct, and compares the next ones with it, piece by piece as they come. Only a response that differs is parsed.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use crate::exchange::{Answer, Exchange, Greeted, Taken};
use crate::failure::{Failure, Kind};
use crate::link::Link;
use crate::pattern::Frame;

const HEADERS_MAX: usize = 100;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How many bytes of a wrong body are shown.
const SHOWN_BYTES: usize = 40;
/// The maximum number of requests that are sent at once, if several are due.
const TOGETHER: usize = 64;
/// The maximum number of bytes of several requests that are sent at once.
const TOGETHER_BYTES: usize = 256 * 1024;
/// Bodies of requests repeat these bytes.
const SENT: &[u8] = b"0123456789abcdef";

/// The requirements on responses.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) status: u16,
    /// The body. `None` for any.
    pub(crate) body: Option<Vec<u8>>,
    /// Bytes that the body contains somewhere. Empty for any body.
    pub(crate) part: Vec<u8>,
    /// Fields that each response must have: names and values.
    pub(crate) fields: Vec<(String, String)>,
}

impl Default for Expected {
    fn default() -> Self {
        Self {
            status: 200,
            body: None,
            part: Vec::new(),
            fields: Vec::new(),
        }
    }
}

impl Expected {
    /// Compares a whole body. `place` is where it came.
    pub(crate) fn check_body(&self, place: &str, body: &[u8]) -> Result<(), Failure> {
        let part = &self.part;
        if !part.is_empty() && !body.windows(part.len()).any(|bytes| bytes == part) {
            let words = format!(
                "wrong body: {place}: {} doesn't contain {}",
                shown(body),
                shown(part)
            );
            return Err(Failure::new(Kind::Mismatch, words));
        }
        let Some(right) = &self.body else {
            return Ok(());
        };
        if right == body {
            return Ok(());
        }
        let came = format!(": {}", shown(body));
        if right.len() != body.len() {
            return Err(wrong_length(place, body.len(), &came, right));
        }
        // What differs may be far behind what is shown of a long body.
        let (mut at, mut words) = (0, String::new());
        if body.len() > SHOWN_BYTES {
            let differs = |(right, came): (&u8, &u8)| right != came;
            at = right.iter().zip(body).position(differs).unwrap_or_default();
            words = format!(" at byte {at}");
        }
        Err(Failure::new(
            Kind::Mismatch,
            format!(
                "wrong body: {place}: {} came{words}, and {} was expected (--body sets the expected one, --any-body accepts any)",
                shown(&body[at..]),
                shown(&right[at..])
            ),
        ))
    }

    fn check_fields(&self, place: &str, whole: &Whole) -> Result<(), Failure> {
        for (name, value) in &self.fields {
            let has = |(found, is): &(String, Vec<u8>)| {
                found.eq_ignore_ascii_case(name) && is == value.as_bytes()
            };
            if !whole.fields.iter().any(has) {
                return Err(Failure::new(
                    Kind::Mismatch,
                    format!("wrong head: {place}: it has no '{name}: {value}' (--expect-header)"),
                ));
            }
        }
        Ok(())
    }
}

/// A body of another length than expected; `came` shows it, if it is there.
fn wrong_length(place: &str, length: usize, came: &str, right: &[u8]) -> Failure {
    Failure::new(
        Kind::Mismatch,
        format!(
            "wrong body: {place}: it has {length} bytes{came}, and {} were expected: {} (--body sets the expected one, --any-body \
             accepts any)",
            right.len(),
            shown(right)
        ),
    )
}

/// Identical requests, and their responses.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// The request, `together` times.
    repeated: Vec<u8>,
    together: usize,
    request_bytes: usize,
    expected: Expected,
    /// The last correct response, if the connection stayed open after it.
    familiar: Arc<[u8]>,
    /// Each connection makes one request as its greeting, and rests.
    idle: bool,
}

impl Requests {
    /// Repeats this request.
    pub(crate) fn new(request: &[u8], expected: Expected) -> Self {
        let together = (TOGETHER_BYTES / request.len()).clamp(1, TOGETHER);
        Self {
            request_bytes: request.len(),
            repeated: request.repeat(together),
            together,
            expected,
            familiar: Arc::default(),
            idle: false,
        }
    }

    /// A request for `path` with additional `headers`, such as `Accept: text/html`. `host` is the value of Host, unless it is
    /// among them. `body` is empty if it has none.
    pub(crate) fn request(
        method: &str,
        path: &str,
        host: &str,
        headers: &[String],
        body: &[u8],
    ) -> Vec<u8> {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        let names = |header: &String| header.to_ascii_lowercase().starts_with("host:");
        if !headers.iter().any(names) {
            let _ = write!(request, "Host: {host}\r\n");
        }
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            let _ = write!(request, "Content-Length: {}\r\n", body.len());
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        request
    }

    /// A body of this size.
    pub(crate) fn filler(bytes: usize) -> Vec<u8> {
        SENT.iter().copied().cycle().take(bytes).collect()
    }

    /// The same requests, one on each connection before the measurement.
    pub(crate) fn idle(self) -> Self {
        Self { idle: true, ..self }
    }

    /// Examines a response that may be incomplete.
    fn judge(&self, request: Frame, response: &[u8]) -> Result<Option<Judged>, Failure> {
        let place = format!(
            "connection {}, request {}",
            request.connection, request.sequence
        );
        let parsed = parse(response).map_err(|problem| {
            Failure::new(
                Kind::Malformed,
                format!(
                    "not an HTTP response: {place}: {problem}; it begins with {}",
                    shown(response)
                ),
            )
        })?;
        let (status, announced) = match &parsed {
            Progress::Head => return Ok(None),
            Progress::Body { status, announced } => (*status, *announced),
            Progress::Whole(whole) => (whole.status, Some(whole.body.len())),
        };
        let right_status = status == self.expected.status;
        // If the length is wrong, do not wait for the rest.
        if let (Some(right), Some(announced), true) = (&self.expected.body, announced, right_status)
            && right.len() != announced
        {
            let came = match &parsed {
                Progress::Whole(whole) => format!(": {}", shown(&whole.body)),
                _ => String::new(),
            };
            return Err(wrong_length(&place, announced, &came, right));
        }
        let Progress::Whole(whole) = parsed else {
            return Ok(None);
        };
        if !right_status {
            let instead = match self.expected.status {
                200 => String::new(),
                expected => format!(" instead of {expected}"),
            };
            let failure = Failure::new(
                Kind::Status,
                format!(
                    "{place} was answered with status {status}{instead}: {}",
                    shown(response)
                ),
            );
            return Ok(Some(Judged {
                bytes: whole.bytes,
                last: whole.last,
                wrong: Some(failure),
            }));
        }
        self.expected.check_body(&place, &whole.body)?;
        self.expected.check_fields(&place, &whole)?;
        Ok(Some(Judged {
            bytes: whole.bytes,
            last: whole.last,
            wrong: None,
        }))
    }
}

/// A complete response, after which the connection goes on or ends in order.
struct Judged {
    bytes: usize,
    last: bool,
    wrong: Option<Failure>,
}

/// The received part of a response: its bytes, or how many of them are those of a familiar response.
#[derive(Debug, Default)]
pub(crate) struct Response {
    own: Vec<u8>,
    familiar: Option<Arc<[u8]>>,
    matched: usize,
}

impl Response {
    fn bytes(&self) -> usize {
        self.own.len() + self.matched
    }
}

impl Exchange for Requests {
    type Partial = Response;

    const RECONNECTS: bool = true;

    fn greeting(&mut self, _: u32) -> &[u8] {
        if self.idle {
            &self.repeated[..self.request_bytes]
        } else {
            &[]
        }
    }

    fn greeted(&mut self, connection: u32, received: &[u8]) -> Result<Option<Greeted>, Failure> {
        let request = Frame {
            connection,
            sequence: 0,
        };
        match self.judge(request, received)? {
            None => Ok(None),
            Some(Judged {
                wrong: Some(failure),
                ..
            }) => Err(failure),
            Some(judged) => Ok(Some(Greeted {
                bytes: judged.bytes,
                reply: &[],
            })),
        }
    }

    fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    fn send(
        &mut self,
        to: &mut Link,
        _: Frame,
        position: usize,
        count: usize,
    ) -> io::Result<usize> {
        to.write(&self.repeated[position..self.request_bytes * count.min(self.together)])
    }

    #[inline]
    fn take(
        &mut self,
        request: Frame,
        partial: &mut Response,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        if partial.own.is_empty() {
            // Another connection may have replaced the familiar response that this one began with.
            let familiar = partial.familiar.as_ref().unwrap_or(&self.familiar);
            let bytes = received.len().min(familiar.len() - partial.matched);
            let end = partial.matched + bytes;
            if bytes > 0 && received[..bytes] == familiar[partial.matched..end] {
                let answer = if end == familiar.len() {
                    partial.matched = 0;
                    partial.familiar = None;
                    Answer::Complete {
                        last: false,
                        wrong: None,
                    }
                } else {
                    partial.matched = end;
                    if partial.familiar.is_none() {
                        partial.familiar = Some(Arc::clone(&self.familiar));
                    }
                    Answer::Incomplete
                };
                return Ok(Taken { bytes, answer });
            }
            if let Some(familiar) = partial.familiar.take() {
                partial.own.extend_from_slice(&familiar[..partial.matched]);
                partial.matched = 0;
            }
        }
        let before = partial.own.len();
        let response = if before == 0 {
            received
        } else {
            partial.own.extend_from_slice(received);
            &partial.own
        };
        let Some(judged) = self.judge(request, response)? else {
            if before == 0 {
                partial.own.extend_from_slice(received);
            }
            return Ok(Taken {
                bytes: received.len(),
                answer: Answer::Incomplete,
            });
        };
        if judged.wrong.is_none() && !judged.last {
            self.familiar = Arc::from(&response[..judged.bytes]);
        }
        partial.own.clear();
        Ok(Taken {
            bytes: judged.bytes - before,
            answer: Answer::Complete {
                last: judged.last,
                wrong: judged.wrong,
            },
        })
    }

    fn describe(&self, partial: &Response) -> Option<String> {
        let bytes = partial.bytes();
        (bytes > 0).then(|| format!("{bytes} bytes of a response"))
    }
}

/// The progress of a response.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Its head is incomplete.
    Head,
    /// Its head is complete. The length of its body, if it was announced.
    Body {
        status: u16,
        announced: Option<usize>,
    },
    Whole(Whole),
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    /// Its total length in bytes.
    pub(crate) bytes: usize,
    /// Whether the server has announced that it closes the connection.
    pub(crate) last: bool,
}

/// Parses the response to a GET request. The error says what is wrong with it.
pub(crate) fn parse(response: &[u8]) -> Result<Progress, String> {
    let mut skipped = 0;
    loop {
        match parse_one(&response[skipped..])? {
            Part::Interim { bytes } => skipped += bytes,
            Part::Response(Progress::Whole(whole)) => {
                return Ok(Progress::Whole(Whole {
                    bytes: whole.bytes + skipped,
                    ..whole
                }));
            }
            Part::Response(progress) => return Ok(progress),
        }
    }
}

/// The beginning of a response.
enum Part {
    /// An interim response of that length. Another one follows it.
    Interim {
        bytes: usize,
    },
    Response(Progress),
}

fn parse_one(response: &[u8]) -> Result<Part, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let head_bytes = match head.parse(response) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if response.len() <= HEAD_BYTES_MAX => {
            return Ok(Part::Response(Progress::Head));
        }
        Ok(httparse::Status::Partial) => {
            return Err(format!("its head has no end within {HEAD_BYTES_MAX} bytes"));
        }
        Err(error) => return Err(error.to_string()),
    };
    let status = head.code.unwrap_or_default();
    let rest = &response[head_bytes..];
    let mut framing = Framing::default();
    // Since HTTP/1.1 connections stay open by default (RFC 9112, section 9.3).
    let mut last = head.version != Some(1);
    for header in head.headers.iter() {
        framing.note(header)?;
        if header.name.eq_ignore_ascii_case("connection") {
            let value = String::from_utf8_lossy(header.value).to_ascii_lowercase();
            for option in value.split(',').map(str::trim) {
                last = match option {
                    "close" => true,
                    "keep-alive" => false,
                    _ => last,
                };
            }
        }
    }
    let whole = |body: Vec<u8>, bytes| {
        Part::Response(Progress::Whole(Whole {
            status,
            body,
            fields: head
                .headers
                .iter()
                .map(|header| (header.name.to_owned(), header.value.to_vec()))
                .collect(),
            bytes: head_bytes + bytes,
            last,
        }))
    };
    let incomplete = |announced| Part::Response(Progress::Body { status, announced });
    match status {
        // An interim response. The final one follows it (RFC 9110, section 15.2).
        100 | 102..=199 => return Ok(Part::Interim { bytes: head_bytes }),
        // These have no body, regardless of their headers (RFC 9112, section 6.3).
        101 | 204 | 304 => return Ok(whole(Vec::new(), 0)),
        _ => {}
    }
    if framing.chunked {
        return Ok(match dechunk(rest)? {
            Some((body, bytes)) => whole(body, bytes),
            None => incomplete(None),
        });
    }
    match framing.length {
        Some(length) if length > BODY_BYTES_MAX => {
            Err(format!("its body of {length} bytes is longer than {BODY_BYTES_MAX}"))
        }
        Some(length) if rest.len() < length => Ok(incomplete(Some(length))),
        Some(length) => Ok(whole(rest[..length].to_vec(), length)),
        None => Err(
            "it has neither a Content-Length nor chunks, so only the end of the connection could end it"
                .to_owned(),
        ),
    }
}

/// How a head delimits the body.
#[derive(Debug, Default)]
struct Framing {
    length: Option<usize>,
    chunked: bool,
}

impl Framing {
    fn note(&mut self, header: &httparse::Header<'_>) -> Result<(), String> {
        let value = || String::from_utf8_lossy(header.value);
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = header.value.iter().all(u8::is_ascii_digit);
            let length = value()
                .parse::<usize>()
                .ok()
                .filter(|_| digits)
                .ok_or_else(|| format!("its Content-Length is '{}'", value()))?;
            if self.length.is_some_and(|other| other != length) {
                return Err("it has two different Content-Lengths".to_owned());
            }
            self.length = Some(length);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value().eq_ignore_ascii_case("chunked") {
                return Err(format!("its Transfer-Encoding is '{}'", value()));
            }
            self.chunked = true;
        }
        Ok(())
    }
}

/// The chunked body at the beginning of `encoded`, and its length there in bytes. `None` if it is incomplete.
fn dechunk(encoded: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let mut body = Vec::new();
    let mut position = 0;
    loop {
        let rest = &encoded[position..];
        let (start, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err("a chunk of its body has no right size".to_owned()),
        };
        if body.len() as u64 + size > BODY_BYTES_MAX as u64 {
            return Err(format!(
                "its chunked body is longer than {BODY_BYTES_MAX} bytes"
            ));
        }
        if size == 0 {
            // After the last chunk come trailers, usually none, and an empty line.
            let mut trailers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            return match httparse::parse_headers(&rest[start..], &mut trailers) {
                Ok(httparse::Status::Complete((bytes, _))) => {
                    Ok(Some((body, position + start + bytes)))
                }
                Ok(httparse::Status::Partial) => Ok(None),
                Err(error) => Err(format!("its trailers are wrong: {error}")),
            };
        }
        let size = size as usize;
        let Some(chunk) = rest.get(start..start + size + 2) else {
            return Ok(None);
        };
        if &chunk[size..] != b"\r\n" {
            return Err("a chunk of its body doesn't end where it says".to_owned());
        }
        body.extend_from_slice(&chunk[..size]);
        position += start + size + 2;
    }
}

/// The beginning of received bytes, in quotes.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_BYTES { "..." } else { "" };
    format!(
        "'{}{more}'",
        bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Frame = Frame {
        connection: 1,
        sequence: 2,
    };
    const RIGHT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";

    fn get(headers: &[String]) -> Vec<u8> {
        Requests::request("GET", "/", "1.2.3.4:5", headers, &[])
    }

    fn requests() -> Requests {
        Requests::new(&get(&[]), expected(b"Hello, World!"))
    }

    fn expected(body: &[u8]) -> Expected {
        Expected {
            body: Some(body.to_vec()),
            ..Expected::default()
        }
    }

    /// The failures of a response that comes as a whole.
    fn failure_of(response: &[u8]) -> Failure {
        match requests().take(REQUEST, &mut Response::default(), response) {
            Err(failure) => failure,
            Ok(Taken {
                answer: Answer::Complete { wrong, .. },
                ..
            }) => wrong.expect("a wrong response"),
            Ok(taken) => panic!("{taken:?}"),
        }
    }

    #[test]
    fn right_responses_pass_in_any_pieces_and_any_number() {
        let chunked: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            5;x=y\r\nHello\r\n8\r\n, World!\r\n0\r\nTrailer: 1\r\n\r\n";
        let interim: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nHello, World!";
        for response in [RIGHT, chunked, interim] {
            let mut requests = requests();
            let twice = response.repeat(2);
            for piece in 1..twice.len() {
                let mut partial = Response::default();
                let mut answers = 0;
                for mut received in twice.chunks(piece) {
                    while !received.is_empty() {
                        let taken = requests.take(REQUEST, &mut partial, received).unwrap();
                        received = &received[taken.bytes..];
                        match taken.answer {
                            Answer::Incomplete | Answer::Late => assert!(received.is_empty()),
                            Answer::Complete { last, wrong } => {
                                assert!(!last && wrong.is_none());
                                answers += 1;
                            }
                        }
                    }
                }
                assert_eq!(answers, 2, "pieces of {piece} bytes");
                assert!(requests.describe(&partial).is_none());
            }
        }
    }

    #[test]
    fn a_response_is_the_last_one_where_it_says_so() {
        for (response, expected) in [
            (&b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nHello, World!"[..], true),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!", true),
            (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 13\r\n\r\nHello, World!", false),
        ] {
            let taken = requests().take(REQUEST, &mut Response::default(), response).unwrap();
            let Answer::Complete { last, wrong: None } = taken.answer else {
                panic!("{taken:?}");
            };
            assert_eq!(last, expected, "{}", response.escape_ascii());
        }
    }

    #[test]
    fn wrong_responses_are_named() {
        let body = failure_of(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, Word!!");
        assert_eq!(body.kind, Kind::Mismatch);
        assert!(
            body.message
                .contains("'Hello, Word!!' came, and 'Hello, World!' was expected"),
            "{body}"
        );

        let length = failure_of(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello");
        assert_eq!(length.kind, Kind::Mismatch);
        assert!(
            length
                .message
                .contains("it has 5 bytes: 'Hello', and 13 were expected"),
            "{length}"
        );

        let status = failure_of(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(status.kind, Kind::Status);
        assert!(
            status
                .message
                .contains("connection 1, request 2 was answered with status 503"),
            "{status}"
        );

        for (response, problem) in [
            (&b"Hello, World!"[..], "invalid HTTP version"),
            (
                b"HTTP/1.1 200 OK\r\n\r\nHello, World!",
                "neither a Content-Length nor chunks",
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                "two different Content-Lengths",
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                "Content-Length is '-1'",
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
                "no right size",
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
                "doesn't end where it says",
            ),
        ] {
            let failure = failure_of(response);
            assert_eq!(failure.kind, Kind::Malformed);
            assert!(failure.message.contains(problem), "{failure}");
        }
    }

    #[test]
    fn a_request_has_the_method_and_the_body_that_are_asked_for() {
        let request = |method, body: &[u8]| {
            let headers = ["Accept: text/plain".to_owned()];
            String::from_utf8(Requests::request(method, "/items", "h:1", &headers, body)).unwrap()
        };
        assert_eq!(
            request("PUT", b"{}"),
            "PUT /items HTTP/1.1\r\nHost: h:1\r\nAccept: text/plain\r\nContent-Length: 2\r\n\r\n{}"
        );
        assert!(request("POST", b"").ends_with("\r\nContent-Length: 0\r\n\r\n"));
        assert!(!request("DELETE", b"").contains("Content-Length"));
    }

    #[test]
    fn another_status_and_a_part_of_the_body_can_be_expected() {
        let take = |expected: Expected, response: &[u8]| match Requests::new(&get(&[]), expected)
            .take(REQUEST, &mut Response::default(), response)
            .map(|taken| taken.answer)
        {
            Ok(Answer::Complete { wrong, .. }) => wrong,
            Ok(answer) => panic!("{answer:?}"),
            Err(failure) => Some(failure),
        };
        let created = b"HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\n{\"id\":7}";
        let expected = |status, part: &[u8]| Expected {
            status,
            part: part.to_vec(),
            ..Expected::default()
        };
        assert!(take(expected(201, b""), created).is_none());
        assert!(take(expected(201, b"\"id\""), created).is_none());
        let wrong = take(expected(201, b"name"), created).unwrap();
        assert_eq!(wrong.kind, Kind::Mismatch);
        assert!(wrong.message.contains("doesn't contain 'name'"), "{wrong}");
        let wrong = take(expected(202, b""), created).unwrap();
        assert_eq!(wrong.kind, Kind::Status);
        assert!(
            wrong.message.contains("status 201 instead of 202"),
            "{wrong}"
        );
        let empty = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert!(take(expected(204, b""), empty).is_none());
        assert_eq!(
            take(expected(204, b"x"), empty).unwrap().kind,
            Kind::Mismatch
        );
    }

    #[test]
    fn another_host_can_be_named() {
        let bytes =
            |headers: &[String]| Requests::new(&get(headers), Expected::default()).request_bytes;
        let without = bytes(&[]);
        assert_eq!(without, "GET / HTTP/1.1\r\nHost: 1.2.3.4:5\r\n\r\n".len());
        let host = "host: example.org".to_owned();
        assert_eq!(
            bytes(std::slice::from_ref(&host)),
            without - "Host: 1.2.3.4:5".len() + host.len()
        );
    }

    #[test]
    fn a_wrong_length_is_found_before_the_body_has_come() {
        let failure = failure_of(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n");
        assert!(
            failure
                .message
                .contains("it has 14 bytes, and 13 were expected"),
            "{failure}"
        );
    }
}
