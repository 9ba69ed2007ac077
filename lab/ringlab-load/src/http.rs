//! HTTP/1.1: requests, and the check of their responses.
//!
//! Most servers answer with the same bytes each time, except for the date. So the requests remember the last response that was
//! parsed and correct, and compare the next ones with it, piece by piece as they come. Only a response that differs is parsed.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::sync::Arc;

use crate::exchange::{Answer, Exchange, Taken};
use crate::failure::{Failure, Kind};
use crate::link::Link;
use crate::pattern::{Frame, Unsent, difference};

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
#[derive(Debug)]
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
    /// Compares a whole body. `place` says where it came.
    pub(crate) fn check_body(&self, place: &dyn Display, body: &[u8]) -> Result<(), Failure> {
        let part = &self.part;
        let words = match &self.body {
            _ if !part.is_empty() && !body.windows(part.len()).any(|bytes| bytes == part) => {
                format!("{} doesn't contain {}", shown(body), shown(part))
            }
            Some(right) if right.len() != body.len() => {
                wrong_length(body.len(), &format!(": {}", shown(body)), right)
            }
            Some(right) if right != body => {
                // What differs may be far behind what is shown of a long body.
                let (mut at, mut begin) = (0, String::new());
                if body.len() > SHOWN_BYTES {
                    at = difference(body, right);
                    begin = format!(" at byte {at}");
                }
                format!(
                    "{} came{begin}, and {} was expected ({ADVICE})",
                    shown(&body[at..]),
                    shown(&right[at..])
                )
            }
            _ => return Ok(()),
        };
        let words = format!("wrong body: {place}: {words}");
        Err(Failure::new(Kind::Mismatch, words))
    }
}

const ADVICE: &str = "--body sets the expected one, --any-body accepts any";

/// A description of a body of another length than expected; `came` shows it, if it is there.
fn wrong_length(length: usize, came: &str, right: &[u8]) -> String {
    format!(
        "it has {length} bytes{came}, and {} were expected: {} ({ADVICE})",
        right.len(),
        shown(right)
    )
}

/// Identical requests, and their responses.
#[derive(Debug)]
pub(crate) struct Requests {
    /// The request, `together` times.
    repeated: Vec<u8>,
    together: usize,
    request_bytes: usize,
    expected: Expected,
    /// The last correct response, if the connection stayed open after it.
    familiar: Arc<[u8]>,
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

    /// Examines a response that may be incomplete. Returns its length, and what it is worth, if it is whole.
    fn judge(&self, request: Frame, response: &[u8]) -> Result<Option<(usize, Answer)>, Failure> {
        let parsed = parse(response).map_err(|problem| {
            let words = format!(
                "not an HTTP response: {request}: {problem}; it begins with {}",
                shown(response)
            );
            Failure::new(Kind::Malformed, words)
        })?;
        let Some(parsed) = parsed else {
            return Ok(None);
        };
        let right_status = parsed.status == self.expected.status;
        let Some(body) = &parsed.body else {
            // If the length is wrong, do not wait for the rest.
            return match (&self.expected.body, parsed.announced) {
                (Some(right), Some(length)) if right_status && right.len() != length => {
                    let words = wrong_length(length, "", right);
                    let words = format!("wrong body: {request}: {words}");
                    Err(Failure::new(Kind::Mismatch, words))
                }
                _ => Ok(None),
            };
        };
        let wrong = if right_status {
            self.expected.check_body(&request, body)?;
            for (name, value) in &self.expected.fields {
                let is_it = |field: &httparse::Header<'_>| {
                    field.name.eq_ignore_ascii_case(name) && field.value == value.as_bytes()
                };
                if !parsed.fields.iter().any(is_it) {
                    let words = format!(
                        "wrong head: {request}: it has no '{name}: {value}' (--expect-header)"
                    );
                    return Err(Failure::new(Kind::Mismatch, words));
                }
            }
            None
        } else {
            let instead = match self.expected.status {
                200 => String::new(),
                expected => format!(" instead of {expected}"),
            };
            let words = format!(
                "{request} was answered with status {}{instead}: {}",
                parsed.status,
                shown(response)
            );
            Some(Failure::new(Kind::Status, words))
        };
        let last = parsed.last;
        Ok(Some((parsed.bytes, Answer { last, wrong })))
    }
}

/// The received part of a response: its bytes, or how many of them are those of a familiar response.
#[derive(Debug, Default)]
pub(crate) struct Response {
    own: Vec<u8>,
    familiar: Option<Arc<[u8]>>,
    matched: usize,
}

impl Exchange for Requests {
    type Partial = Response;

    const RECONNECTS: bool = true;

    fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        let count = unsent.count.min(self.together);
        to.write(&self.repeated[unsent.position..self.request_bytes * count])
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
                    Some(Answer::default())
                } else {
                    partial.matched = end;
                    if partial.familiar.is_none() {
                        partial.familiar = Some(Arc::clone(&self.familiar));
                    }
                    None
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
        let Some((bytes, answer)) = self.judge(request, response)? else {
            if before == 0 {
                partial.own.extend_from_slice(received);
            }
            return Ok(Taken {
                bytes: received.len(),
                answer: None,
            });
        };
        if answer.wrong.is_none() && !answer.last {
            self.familiar = Arc::from(&response[..bytes]);
        }
        partial.own.clear();
        Ok(Taken {
            bytes: bytes - before,
            answer: Some(answer),
        })
    }

    fn describe(&self, partial: &Response) -> Option<String> {
        let bytes = partial.own.len() + partial.matched;
        (bytes > 0).then(|| format!("{bytes} bytes of a response"))
    }
}

/// A response whose head has come.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) status: u16,
    fields: Vec<httparse::Header<'a>>,
    /// The length of its body, as far as the head says it.
    announced: Option<usize>,
    /// The body, if the whole response has come.
    pub(crate) body: Option<Cow<'a, [u8]>>,
    /// The length of the whole response.
    pub(crate) bytes: usize,
    /// Whether the server has announced that it closes the connection.
    pub(crate) last: bool,
}

/// Parses the response to a GET request. `None` if its head is incomplete. The error says what is wrong with it.
pub(crate) fn parse(response: &[u8]) -> Result<Option<Parsed<'_>>, String> {
    let mut skipped = 0;
    while let Some(parsed) = parse_one(&response[skipped..])? {
        // An interim response. The final one follows it (RFC 9110, section 15.2).
        if matches!(parsed.status, 100 | 102..=199) {
            skipped += parsed.bytes;
            continue;
        }
        return Ok(Some(Parsed {
            bytes: parsed.bytes + skipped,
            ..parsed
        }));
    }
    Ok(None)
}

fn parse_one(response: &[u8]) -> Result<Option<Parsed<'_>>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let head_bytes = match head.parse(response) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if response.len() <= HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => {
            return Err(format!("its head has no end within {HEAD_BYTES_MAX} bytes"));
        }
        Err(error) => return Err(error.to_string()),
    };
    let status = head.code.unwrap_or_default();
    let rest = &response[head_bytes..];
    let (mut announced, mut chunked) = (None, false);
    // Since HTTP/1.1 connections stay open by default (RFC 9112, section 9.3).
    let mut last = head.version != Some(1);
    for header in head.headers.iter() {
        let value = || String::from_utf8_lossy(header.value);
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let digits = header.value.iter().all(u8::is_ascii_digit);
            let length = value().parse::<usize>().ok().filter(|_| digits);
            let length = length.ok_or_else(|| format!("its Content-Length is '{}'", value()))?;
            if announced
                .replace(length)
                .is_some_and(|other| other != length)
            {
                return Err("it has two different Content-Lengths".to_owned());
            }
        } else if is("transfer-encoding") {
            chunked = value().eq_ignore_ascii_case("chunked");
            if !chunked {
                return Err(format!("its Transfer-Encoding is '{}'", value()));
            }
        } else if is("connection") {
            for option in value().split(',').map(str::trim) {
                last |= option.eq_ignore_ascii_case("close");
                last &= !option.eq_ignore_ascii_case("keep-alive");
            }
        }
    }
    let body = match announced {
        // These have no body, regardless of their headers (RFC 9112, section 6.3).
        _ if matches!(status, 100..=199 | 204 | 304) => Some((Cow::default(), 0)),
        _ if chunked => {
            announced = None;
            dechunk(rest)?.map(|(body, bytes)| (Cow::Owned(body), bytes))
        }
        Some(length) if length > BODY_BYTES_MAX => {
            return Err(format!(
                "its body of {length} bytes is longer than {BODY_BYTES_MAX}"
            ));
        }
        Some(length) => rest.get(..length).map(|body| (Cow::Borrowed(body), length)),
        None => return Err(
            "it has neither a Content-Length nor chunks, so only the end of the connection could end it"
                .to_owned(),
        ),
    };
    let (body, body_bytes) = body.unzip();
    Ok(Some(Parsed {
        status,
        fields: head.headers.to_vec(),
        announced,
        body,
        bytes: head_bytes + body_bytes.unwrap_or_default(),
        last,
    }))
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
            Ok(taken) => taken.answer.unwrap().wrong.expect("a wrong response"),
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
                            None => assert!(received.is_empty()),
                            Some(answer) => {
                                assert!(!answer.last && answer.wrong.is_none());
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
            let answer = taken.answer.unwrap();
            assert!(answer.wrong.is_none());
            assert_eq!(answer.last, expected, "{}", response.escape_ascii());
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
                .contains("connection 1, message 2 was answered with status 503"),
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
        {
            Ok(taken) => taken.answer.unwrap().wrong,
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
