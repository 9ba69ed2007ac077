//! HTTP/1: the result must not depend on how the input is cut, must be valid, and must agree with hyper.

use ringloop_http::h1::{Connection, Event, Facts, Fault, Field, Head, Limits, Method};
use ringloop_http::{Known, Lines, lower_case};

use super::{hyper_server, pieces};

/// A request as the connection read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) complete: bool,
}

/// The state of a connection after its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It waits for a request.
    Open,
    /// It waits for the rest of a request.
    Waiting,
    Closed,
    Refused(Fault),
    Http2,
}

/// The result of an input, if each request is answered at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) requests: Vec<Request>,
    pub(crate) end: End,
    pub(crate) output: Vec<u8>,
}

/// A string with one character for each byte.
pub(crate) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Lets a connection read `pieces`, as a server would: input that was not consumed is kept for the next piece.
pub(crate) fn converse<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    limits: Limits,
    remembers: bool,
) -> Conversation {
    let mut connection = Connection::new(limits);
    let mut head = Head::default();
    let mut lines = Lines::new(Some("test"), true);
    let mut found = Conversation {
        requests: Vec::new(),
        end: End::Open,
        output: Vec::new(),
    };
    let mut buffer: Vec<u8> = Vec::new();
    let mut last_fields = Vec::new();
    'pieces: for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let before = at;
            let event = connection.read(&buffer, &mut at, &mut head);
            assert!(before <= at && at <= buffer.len());
            match event {
                Ok(Event::NeedMore) => break,
                Ok(Event::Request {
                    head: range,
                    repeated,
                    end,
                }) => {
                    assert_eq!(range.end, at);
                    assert!(remembers || !repeated);
                    let bytes = &buffer[range];
                    if !repeated {
                        last_fields = check_fields(&head, bytes);
                    }
                    found.requests.push(Request {
                        fields: last_fields.clone(),
                        complete: end,
                        ..check_facts(connection.request(), bytes)
                    });
                    assert_eq!(connection.requests(), found.requests.len() as u64);
                }
                Ok(Event::Data { range, end }) => {
                    assert!(!range.is_empty() && range.end == at);
                    let request = found.requests.last_mut().unwrap();
                    assert!(!request.complete);
                    request.body.extend_from_slice(&buffer[range]);
                    request.complete = end;
                }
                Ok(Event::End) => found.requests.last_mut().unwrap().complete = true,
                Ok(Event::Paused) => panic!("paused though all requests are answered"),
                Ok(Event::Http2) => {
                    assert_eq!(before, at);
                    found.end = End::Http2;
                    break 'pieces;
                }
                Ok(Event::Over) => {
                    found.end = End::Closed;
                    break 'pieces;
                }
                Err(fault) => {
                    found.end = End::Refused(fault);
                    let refused = connection.refuse(
                        fault.status(),
                        fault.as_str(),
                        [],
                        &mut lines,
                        0,
                        &mut found.output,
                    );
                    assert!(refused && connection.is_over());
                    assert_eq!(
                        connection.read(&buffer, &mut at, &mut head),
                        Ok(Event::Over)
                    );
                    break 'pieces;
                }
            }
            if connection.awaits_response() && !connection.is_reading_body() {
                assert_eq!(
                    connection.read(&buffer, &mut at, &mut head),
                    Ok(Event::Paused)
                );
                answer(&mut connection, &mut lines, &mut found.output);
            }
        }
        buffer.drain(..at);
    }
    if found.end == End::Open {
        if connection.is_over() {
            found.end = End::Closed;
        } else if !buffer.is_empty() || !connection.is_idle() {
            found.end = End::Waiting;
        }
    }
    found
}

/// Answers the current request. All but CONNECT succeed.
fn answer(connection: &mut Connection, lines: &mut Lines, out: &mut Vec<u8>) {
    let status = if connection.request().method == Method::Connect {
        405
    } else {
        200
    };
    connection
        .respond(status, out)
        .unwrap()
        .finish(Some(0), lines, 0);
    connection.send(0, true).unwrap();
}

/// The method and the target of a request with this head.
fn check_facts(facts: &Facts, bytes: &[u8]) -> Request {
    let target = facts.target.of(bytes);
    let query = facts.query(bytes);
    assert!(query.is_empty() || target.ends_with(&[b"?", query].concat()));
    Request {
        method: latin1(facts.method_name.of(bytes)),
        target: latin1(target),
        ..Request::default()
    }
}

/// The fields of a request with this head. Names are in lower case.
fn check_fields(head: &Head, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let fields: Vec<_> = head
        .fields()
        .iter()
        .map(|field| check_field(field, bytes))
        .collect();
    check_head(bytes, &fields);
    fields
}

fn check_field(field: &Field, bytes: &[u8]) -> (String, Vec<u8>) {
    let mut name = field.name.of(bytes).to_vec();
    let written = name.clone();
    lower_case(&written, &mut name);
    assert_eq!(field.known, Known::find(&written));
    if let Some(known) = field.known {
        assert_eq!(known.as_str().as_bytes(), name);
    }
    assert!(
        !name.is_empty()
            && name
                .iter()
                .all(|byte| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(byte))
    );
    let value = field.value.of(bytes).to_vec();
    assert!(
        value
            .iter()
            .all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7F))
    );
    assert_eq!(value.trim_ascii(), value);
    (latin1(&name), value)
}

/// Checks what must hold for every accepted head.
fn check_head(bytes: &[u8], fields: &[(String, Vec<u8>)]) {
    assert!(bytes.ends_with(b"\r\n\r\n"));
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' => assert_eq!(bytes[at + 1], b'\n'),
            b'\n' => assert_eq!(bytes[at - 1], b'\r'),
            _ => assert!(byte == b'\t' || (byte >= b' ' && byte != 0x7F)),
        }
    }
    // The lines are the request line, the fields, and an empty line.
    let lines = bytes.split(|&byte| byte == b'\n').count() - 1;
    assert_eq!(lines, fields.len() + 2);
    let count = |name: &str| fields.iter().filter(|(found, _)| found == name).count();
    let lengths = count("content-length");
    let codings = count("transfer-encoding");
    assert!(count("host") <= 1 && lengths + codings <= 1);
}

/// The reason why this crate refuses requests that hyper accepts, for each fault.
pub(crate) fn why_stricter_than_hyper(fault: Fault) -> Option<&'static str> {
    Some(match fault {
        Fault::BareLineFeed => "hyper accepts bare line feeds, as RFC 9112, section 2.2 allows",
        Fault::RequestLine => "hyper ignores any number of empty lines before a request",
        Fault::Target => "hyper accepts fragments, UTF-8, and URLs of any scheme",
        Fault::TargetForm => "hyper leaves the form of the target to the application",
        Fault::MissingHost | Fault::RepeatedHost | Fault::Host => {
            "hyper leaves Host to the application"
        }
        Fault::RepeatedContentLength => "hyper accepts several equal lengths",
        Fault::ContentLength => "hyper ignores Content-Length if there is a Transfer-Encoding",
        Fault::LengthAndCoding => "hyper uses Transfer-Encoding, as RFC 9112, section 6.3 allows",
        Fault::TransferEncoding | Fault::UnsupportedCoding => {
            "hyper accepts any Transfer-Encoding that ends with chunked"
        }
        Fault::Expectation => "hyper ignores unknown expectations",
        Fault::ChunkSize => "hyper accepts spaces after the size, and sizes up to 2^64",
        Fault::ChunkExtension => {
            "hyper accepts control characters in extensions, and has a higher limit"
        }
        Fault::Trailer => "hyper accepts all trailers",
        Fault::TrailersTooLarge | Fault::HeadTooLarge | Fault::RequestLineTooLong => {
            "hyper has other limits"
        }
        _ => return None,
    })
}

/// The reason why hyper refuses a request that this crate accepts.
pub(crate) fn why_hyper_is_stricter(request: &Request) -> Option<&'static str> {
    if request.target.contains(['`', '"', '<', '>']) {
        return Some("hyper's targets do not allow these, which browsers or scripts send");
    }
    if !request.target.starts_with('/') && request.target.contains('%') {
        return Some("hyper's hosts do not allow percent-encoding");
    }
    if request.fields.len() > 100 {
        return Some("hyper accepts at most 100 fields");
    }
    None
}

/// Compares the first request of `input` with how hyper reads it.
pub(crate) fn compare_with_hyper(input: &[u8], ours: &Conversation) {
    if matches!(ours.end, End::Http2) {
        return;
    }
    let theirs = hyper_server::requests(input);
    match (ours.requests.first(), theirs.first()) {
        (Some(own), Some(their)) => {
            assert_eq!(own.method, their.method);
            // hyper normalizes URLs: scheme and host become lower case, and an empty path becomes `/`.
            if own.target.starts_with('/') || own.target == "*" {
                assert_eq!(own.target, their.target);
            }
            let sorted = |fields: &[(String, Vec<u8>)]| {
                let mut fields = fields.to_vec();
                // hyper groups fields by their names.
                fields.sort_by(|one, other| one.0.cmp(&other.0));
                fields
            };
            assert_eq!(sorted(&own.fields), sorted(&their.fields));
            if own.complete {
                assert!(their.complete, "hyper finds no end of the body");
                assert_eq!(own.body, their.body);
            } else if their.complete {
                let End::Refused(fault) = ours.end else {
                    panic!("hyper finds an end of the body");
                };
                assert!(why_stricter_than_hyper(fault).is_some(), "{fault:?}");
            }
        }
        (Some(own), None) => {
            assert!(
                why_hyper_is_stricter(own).is_some(),
                "hyper refuses {own:?}"
            );
        }
        (None, Some(their)) => match ours.end {
            End::Refused(fault) => assert!(
                why_stricter_than_hyper(fault).is_some(),
                "{fault:?}: hyper takes {their:?}"
            ),
            end => panic!("{end:?}, but hyper takes {their:?}"),
        },
        (None, None) => {}
    }
}

/// The target `h1_head`. `data` is the client's input.
pub(crate) fn head(data: &[u8]) {
    let limits = Limits::default();
    let found = converse([data], limits, true);
    compare_with_hyper(data, &found);
}

/// The target `h1_connection`. `data` is a seed of eight bytes, and the client's input.
pub(crate) fn connection(data: &[u8]) {
    let Some((seed, input)) = data.split_first_chunk() else {
        return;
    };
    let mut limits = Limits::default();
    let whole = converse([input], limits, true);
    let cut = converse(pieces(input, u64::from_le_bytes(*seed)), limits, true);
    assert_eq!(whole, cut);
    limits.remembered_bytes = 0;
    assert_eq!(whole, converse([input], limits, false));
    // Low limits.
    limits.head_bytes = 100;
    limits.request_line_bytes = 30;
    limits.fields = 3;
    limits.chunk_extension_bytes = 5;
    limits.trailer_bytes = 20;
    let whole = converse([input], limits, false);
    let cut = converse(pieces(input, u64::from_le_bytes(*seed)), limits, false);
    assert_eq!(whole, cut);
}

/// The target `h1_chunked`. `data` is a seed of eight bytes, and a chunked body.
pub(crate) fn chunked(data: &[u8]) {
    let Some((seed, body)) = data.split_first_chunk() else {
        return;
    };
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let input = [head, body].concat();
    let limits = Limits::default();
    let whole = converse([input.as_slice()], limits, true);
    let cut = converse(pieces(&input, u64::from_le_bytes(*seed)), limits, true);
    assert_eq!(whole, cut);
    compare_with_hyper(&input, &whole);
}
