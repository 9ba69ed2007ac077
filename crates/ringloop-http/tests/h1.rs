//! HTTP/1 requests: the table of requests that are accepted or refused, limits, and the state of a connection.

mod targets;

use proptest::prelude::*;
use ringloop_http::h1::{Connection, Event, Fault, Form, Head, Limits, Upgrade};
use ringloop_http::{Known, Lines};
use serde::Deserialize;
use targets::h1::{
    Conversation, End, compare_with_hyper, converse, why_hyper_is_stricter, why_stricter_than_hyper,
};

/// A row of the table: what a client sends, and how it must be read.
#[derive(Deserialize)]
struct Row {
    name: String,
    /// One character for each byte.
    input: String,
    /// The requests, each with the length of the received body. Then the state of the connection: "open", "wait" for
    /// more input, "close", "refuse" and a status, or "http2".
    verdict: Vec<String>,
    /// The rule, and the servers that got it wrong.
    why: String,
    /// This crate's message, if it is refused.
    fault: Option<String>,
}

impl Row {
    fn bytes(&self) -> Vec<u8> {
        self.input
            .chars()
            .map(|character| u8::try_from(u32::from(character)).expect("a character per byte"))
            .collect()
    }
}

fn table() -> Vec<Row> {
    serde_json::from_str(include_str!("data/requests.json")).unwrap()
}

fn verdict(found: &Conversation) -> Vec<String> {
    let requests = found.requests.iter().map(|request| {
        format!(
            "{} {} {}",
            request.method,
            request.target,
            request.body.len()
        )
    });
    let end = match found.end {
        End::Open => "open".to_owned(),
        End::Waiting => "wait".to_owned(),
        End::Closed => "close".to_owned(),
        End::Refused(fault) => format!("refuse {}", fault.status()),
        End::Http2 => "http2".to_owned(),
    };
    requests.chain([end]).collect()
}

fn fault(found: &Conversation) -> Option<String> {
    match found.end {
        End::Refused(fault) => Some(fault.to_string()),
        _ => None,
    }
}

#[test]
fn requests_are_taken_or_refused_as_the_table_says() {
    for row in table() {
        let input = row.bytes();
        let found = converse([input.as_slice()], Limits::default(), true);
        assert_eq!(verdict(&found), row.verdict, "{}: {}", row.name, row.why);
        assert_eq!(fault(&found), row.fault, "{}", row.name);
    }
}

#[test]
fn it_does_not_matter_where_requests_are_cut() {
    for row in table() {
        let input = row.bytes();
        let whole = converse([input.as_slice()], Limits::default(), true);
        for step in [1, 2, 3, 7] {
            let cut = converse(input.chunks(step), Limits::default(), true);
            assert_eq!(whole, cut, "{} by {step}", row.name);
        }
        for at in 0..input.len() {
            let (first, second) = input.split_at(at);
            let cut = converse([first, second], Limits::default(), true);
            assert_eq!(whole, cut, "{} at {at}", row.name);
        }
    }
}

#[test]
fn what_hyper_makes_of_the_table_is_the_same_or_listed() {
    for row in table() {
        let input = row.bytes();
        let found = converse([input.as_slice()], Limits::default(), true);
        println!("{}", row.name);
        compare_with_hyper(&input, &found);
    }
}

#[test]
fn every_listed_difference_to_hyper_is_real() {
    let refused = refused_inputs();
    for fault in Fault::ALL {
        let is_real = refused
            .iter()
            .filter(|(found, _)| found == fault)
            .any(|(_, input)| is_understood_by_hyper(input));
        let is_listed = why_stricter_than_hyper(*fault).is_some();
        assert_eq!(is_real, is_listed, "{fault:?}");
    }
}

#[test]
fn every_listed_strictness_of_hyper_is_real() {
    let fields = "X: y\r\n".repeat(101);
    for input in [
        "GET /a`b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "CONNECT %41:1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
    ] {
        let found = converse([input.as_bytes()], Limits::default(), true);
        assert!(why_hyper_is_stricter(&found.requests[0]).is_some());
        assert_eq!(targets::hyper_server::requests(input.as_bytes()), []);
    }
}

/// Whether hyper reads a request to its end that this crate refuses.
fn is_understood_by_hyper(input: &[u8]) -> bool {
    let found = converse([input], Limits::default(), true);
    let complete = found.requests.iter().filter(|request| request.complete);
    let theirs = targets::hyper_server::requests(input);
    theirs.iter().filter(|request| request.complete).count() > complete.count()
}

/// The inputs that are refused: those of the table, and some that are too long for it.
fn refused_inputs() -> Vec<(Fault, Vec<u8>)> {
    let limits = Limits::default();
    let path = "a".repeat(limits.request_line_bytes);
    let fields = "X: y\r\n".repeat(limits.fields + 1);
    let trailer = "a".repeat(limits.trailer_bytes);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut inputs: Vec<Vec<u8>> = table().iter().map(Row::bytes).collect();
    inputs.push(request_of(limits.head_bytes + 1));
    inputs.extend(
        [
            format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
            format!("{chunked}0\r\n{fields}\r\n"),
            format!("{chunked}0\r\nX: {trailer}\r\n\r\n"),
        ]
        .map(String::into_bytes),
    );
    inputs
        .into_iter()
        .filter_map(|input| match end_of(&input, limits) {
            End::Refused(fault) => Some((fault, input)),
            _ => None,
        })
        .collect()
}

#[test]
fn every_fault_has_an_input() {
    let refused = refused_inputs();
    for fault in Fault::ALL {
        assert!(refused.iter().any(|(found, _)| found == fault), "{fault:?}");
    }
}

/// A request whose head has this length.
fn request_of(head_bytes: usize) -> Vec<u8> {
    let start = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
    let end = b"\r\n\r\n";
    let filling = vec![b'x'; head_bytes - start.len() - end.len()];
    [&start[..], &filling, end].concat()
}

fn end_of(input: &[u8], limits: Limits) -> End {
    let whole = converse([input], limits, true);
    assert_eq!(whole, converse(input.chunks(7), limits, true));
    whole.end
}

#[test]
fn heads_are_limited() {
    let limits = Limits::default();
    assert_eq!(end_of(&request_of(limits.head_bytes), limits), End::Open);
    let too_large = request_of(limits.head_bytes + 1);
    assert_eq!(
        end_of(&too_large, limits),
        End::Refused(Fault::HeadTooLarge)
    );
    // It is refused before its end has arrived, at the limit.
    assert_eq!(
        end_of(&too_large[..limits.head_bytes], limits),
        End::Refused(Fault::HeadTooLarge)
    );
    assert_eq!(
        end_of(&too_large[..limits.head_bytes - 1], limits),
        End::Waiting
    );
    // An empty line before it does not count.
    let later = [b"\r\n", request_of(limits.head_bytes).as_slice()].concat();
    assert_eq!(end_of(&later, limits), End::Open);
}

#[test]
fn request_lines_are_limited() {
    let limits = Limits::default();
    let request = |line_bytes: usize| {
        let path = "a".repeat(line_bytes - "GET / HTTP/1.1\r\n".len());
        format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    };
    let too_long = End::Refused(Fault::RequestLineTooLong);
    assert_eq!(
        end_of(&request(limits.request_line_bytes), limits),
        End::Open
    );
    assert_eq!(
        end_of(&request(limits.request_line_bytes + 1), limits),
        too_long
    );
    assert_eq!(
        end_of(
            &request(limits.request_line_bytes + 9)[..=limits.request_line_bytes],
            limits
        ),
        too_long
    );
    assert_eq!(
        end_of(
            &request(limits.request_line_bytes + 9)[..limits.request_line_bytes],
            limits
        ),
        End::Waiting
    );
}

#[test]
fn fields_are_counted() {
    let request = |fields: usize| {
        let more = "X: y\r\n".repeat(fields - 1);
        format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n").into_bytes()
    };
    let mut limits = Limits::default();
    let too_many = End::Refused(Fault::TooManyFields);
    assert_eq!(end_of(&request(limits.fields), limits), End::Open);
    assert_eq!(end_of(&request(limits.fields + 1), limits), too_many);
    for fields in [256, 257, 5_000] {
        limits.fields = fields;
        assert_eq!(end_of(&request(fields), limits), End::Open);
        assert_eq!(end_of(&request(fields + 1), limits), too_many);
    }
    limits.fields = usize::MAX;
    assert_eq!(end_of(&request(5_000), limits), End::Open);
    limits.fields = 0;
    assert_eq!(end_of(&request(1), limits), too_many);
}

#[test]
fn http2_is_refused_where_it_is_not_wanted() {
    let mut limits = Limits::default();
    limits.http2 = false;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(
        end_of(preface, limits),
        End::Refused(Fault::UnsupportedVersion)
    );
}

/// Calls [`Connection::read`].
fn read(
    connection: &mut Connection,
    input: &[u8],
    at: &mut usize,
    head: &mut Head,
) -> Result<Event, Fault> {
    connection.read(input, at, head)
}

/// Answers the request with 204.
fn answer(connection: &mut Connection) {
    connection
        .respond(204, &mut Vec::new())
        .unwrap()
        .finish(None, &mut Lines::new(None, false), 0);
    connection.send(0, true).unwrap();
}

#[test]
fn a_head_that_is_equal_to_the_one_before_is_not_parsed_again() {
    let one = b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n";
    let other = b"GET /two HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n";
    let input = [&one[..], one, other, one, one].concat();
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    let mut at = 0;
    let mut found = Vec::new();
    while at < input.len() {
        let Ok(Event::Request {
            head: range,
            repeated,
            end: true,
        }) = read(&mut connection, &input, &mut at, &mut head)
        else {
            panic!();
        };
        let fields = match (repeated, input[range.clone()] == other[..]) {
            // The fields of another connection's request must not be mistaken for those of this one.
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        assert_eq!(head.fields().len(), fields);
        found.push((repeated, connection.request().path(&input[range]).to_vec()));
        answer(&mut connection);
    }
    let expected = [
        (false, "/one"),
        (true, "/one"),
        (false, "/two"),
        (false, "/one"),
        (true, "/one"),
    ];
    assert_eq!(
        found,
        expected.map(|(repeated, path)| (repeated, path.as_bytes().to_vec()))
    );
}

#[test]
fn a_head_that_was_forgotten_is_parsed_again() {
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    let mut repetitions = Vec::new();
    for is_forgotten in [false, false, true, false] {
        if is_forgotten {
            connection.forget_head();
        }
        let Ok(Event::Request { repeated, .. }) =
            read(&mut connection, &request_of(100), &mut 0, &mut head)
        else {
            panic!();
        };
        assert_eq!(head.fields().is_empty(), repeated);
        repetitions.push(repeated);
        answer(&mut connection);
    }
    assert_eq!(repetitions, [false, true, false, true]);
}

#[test]
fn a_long_head_is_not_remembered() {
    let limits = Limits::default();
    let mut head = Head::default();
    for (length, expected) in [
        (limits.remembered_bytes, true),
        (limits.remembered_bytes + 1, false),
    ] {
        let mut connection = Connection::new(limits);
        let input = request_of(length).repeat(2);
        let mut at = 0;
        let mut repetitions = Vec::new();
        for _ in 0..2 {
            let Ok(Event::Request { repeated, .. }) =
                read(&mut connection, &input, &mut at, &mut head)
            else {
                panic!();
            };
            repetitions.push(repeated);
            answer(&mut connection);
        }
        assert_eq!(repetitions, [false, expected]);
    }
}

#[test]
fn targets_are_taken_apart() {
    // Method and target, then form, authority, path and query.
    let rows = [
        ("GET", "/", Form::Origin, "", "/", ""),
        ("GET", "/a/b?c=d?e", Form::Origin, "", "/a/b", "c=d?e"),
        ("GET", "/a?", Form::Origin, "", "/a", ""),
        ("GET", "//a.b/c", Form::Origin, "", "//a.b/c", ""),
        ("GET", "http://a.b/c?d", Form::Absolute, "a.b", "/c", "d"),
        ("GET", "HTTPS://A.b:443", Form::Absolute, "A.b:443", "/", ""),
        ("GET", "http://a.b?d", Form::Absolute, "a.b", "/", "d"),
        ("OPTIONS", "http://a.b", Form::Absolute, "a.b", "*", ""),
        ("OPTIONS", "http://a.b?d", Form::Absolute, "a.b", "/", "d"),
        ("OPTIONS", "http://a.b/", Form::Absolute, "a.b", "/", ""),
        ("OPTIONS", "*", Form::Asterisk, "", "*", ""),
        ("CONNECT", "a.b:1", Form::Authority, "a.b:1", "", ""),
    ];
    for (method, target, form, authority, path, query) in rows {
        let input = format!("{method} {target} HTTP/1.1\r\nHost:  a.b \r\n\r\n").into_bytes();
        let mut connection = Connection::new(Limits::default());
        let event = read(&mut connection, &input, &mut 0, &mut Head::default());
        assert!(matches!(event, Ok(Event::Request { .. })), "{target}");
        let facts = connection.request();
        assert_eq!(facts.form, form, "{target}");
        assert_eq!(facts.method_name.of(&input), method.as_bytes());
        assert_eq!(facts.target.of(&input), target.as_bytes());
        assert_eq!(facts.authority.of(&input), authority.as_bytes(), "{target}");
        assert_eq!(facts.path(&input), path.as_bytes(), "{target}");
        assert_eq!(facts.query(&input), query.as_bytes(), "{target}");
        let host = if form == Form::Absolute {
            authority
        } else {
            "a.b"
        };
        assert_eq!(facts.host.of(&input), host.as_bytes(), "{target}");
    }
}

#[test]
fn upgrades_count_where_connection_names_them() {
    let rows = [
        (
            "Upgrade: websocket\r\nConnection: Upgrade",
            "1.1",
            Upgrade::WebSocket,
        ),
        (
            "Upgrade: WebSocket\r\nConnection: keep-alive, upgrade",
            "1.1",
            Upgrade::WebSocket,
        ),
        (
            "Upgrade: h2c, websocket\r\nConnection: upgrade",
            "1.1",
            Upgrade::WebSocket,
        ),
        (
            "Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: upgrade",
            "1.1",
            Upgrade::WebSocket,
        ),
        (
            "Upgrade: h2c\r\nConnection: upgrade, http2-settings",
            "1.1",
            Upgrade::Other,
        ),
        ("Upgrade: websocket", "1.1", Upgrade::None),
        (
            "Upgrade: websocket\r\nConnection: keep-alive",
            "1.1",
            Upgrade::None,
        ),
        ("Connection: upgrade", "1.1", Upgrade::None),
        (
            "Upgrade: websocket\r\nConnection: Upgrade",
            "1.0",
            Upgrade::None,
        ),
    ];
    for (fields, version, expected) in rows {
        let input = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n\r\n").into_bytes();
        let mut connection = Connection::new(Limits::default());
        read(&mut connection, &input, &mut 0, &mut Head::default()).unwrap();
        assert_eq!(connection.request().upgrade, expected, "{fields}");
    }
}

#[test]
fn values_are_found_by_their_name() {
    let input = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: b\r\nX: y\r\ncookie: c\r\n\r\n";
    let mut head = Head::default();
    read(
        &mut Connection::new(Limits::default()),
        input,
        &mut 0,
        &mut head,
    )
    .unwrap();
    let cookies: Vec<_> = head.values(Known::COOKIE, input).collect();
    assert_eq!(cookies, [b"b", b"c"]);
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_conversation(row in 0..table().len(), other in 0..table().len(), seed: u64) {
        let rows = table();
        let input = [rows[row].bytes(), rows[other].bytes()].concat();
        let whole = converse([input.as_slice()], Limits::default(), true);
        let cut = converse(targets::pieces(&input, seed), Limits::default(), true);
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn a_body_may_be_put_elsewhere() {
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    assert_eq!(connection.body_left(), None);
    for _ in 0..2 {
        let input = [&request[..], b"ab"].concat();
        let mut at = 0;
        read(&mut connection, &input, &mut at, &mut head).unwrap();
        assert_eq!(connection.body_left(), Some(10));
        read(&mut connection, &input, &mut at, &mut head).unwrap();
        assert!(!connection.skip_body(0));
        assert!(!connection.skip_body(7));
        assert_eq!(connection.body_left(), Some(1));
        assert!(connection.skip_body(1));
        assert_eq!(connection.body_left(), None);
        answer(&mut connection);
        assert!(connection.is_idle());
    }
}

#[test]
#[should_panic(expected = "3 bytes are more than 2")]
fn no_more_of_a_body_may_be_put_elsewhere_than_there_is() {
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n";
    let mut connection = Connection::new(Limits::default());
    read(&mut connection, request, &mut 0, &mut Head::default()).unwrap();
    connection.skip_body(3);
}

#[test]
fn a_request_to_switch_protocols_is_always_parsed() {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    for _ in 0..2 {
        let event = read(&mut connection, request, &mut 0, &mut head).unwrap();
        assert!(matches!(
            event,
            Event::Request {
                repeated: false,
                ..
            }
        ));
        assert_eq!(head.fields().len(), 3);
        answer(&mut connection);
    }
}
