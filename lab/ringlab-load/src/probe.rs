//! Finds out whether an HTTP server parses requests, or sends a canned answer to anything.
//!
//! Both kinds are worth measuring, but not against each other. Three kinds of requests decide, because a server can answer them
//! correctly only if it knows where requests begin and end: one in pieces, several at once, and one whose body looks like another
//! request. Also, a malformed request must not be answered like a correct one.

use std::io::{self, Read, Write};
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use socket2::Socket;

use crate::arguments::Address;
use crate::endpoint::Endpoint;
use crate::http::{parse, shown};

/// The pause between the pieces of a request.
const BETWEEN_PIECES: Duration = Duration::from_millis(30);
/// How long to wait for a superfluous answer after the expected ones.
const AFTERWARDS: Duration = Duration::from_millis(150);
/// How long an answer may take.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// The answers to one or several requests.
#[derive(Debug, Default)]
struct Came {
    /// The status and the length of the body of each answer.
    answers: Vec<(u16, usize)>,
    /// Whether something came before the request was sent completely.
    early: bool,
    /// Whether the server closed the connection.
    closed: bool,
    /// Trailing bytes that aren't a complete answer.
    rest: Vec<u8>,
}

impl Came {
    /// Whether exactly the expected answers came, and none too early.
    fn answers_exactly(&self, count: usize) -> bool {
        self.answers.len() == count && !self.early && self.rest.is_empty()
    }

    /// Whether the server refused in any way, or closed the connection.
    fn refused(&self) -> bool {
        let statuses = self.answers.iter().map(|&(status, _)| status);
        let refusals = statuses
            .chain(self.rest_status())
            .all(|status| status >= 400);
        refusals && (self.closed || !self.answers.is_empty())
    }

    /// The status of an answer that was delimited by the end of the connection.
    fn rest_status(&self) -> Option<u16> {
        let mut headers = [httparse::EMPTY_HEADER; 100];
        let mut head = httparse::Response::new(&mut headers);
        let _ = head.parse(&self.rest);
        head.code
    }

    fn text(&self) -> String {
        let mut parts: Vec<String> = self
            .answers
            .iter()
            .map(|(status, bytes)| format!("{status} with {bytes} bytes"))
            .collect();
        if !self.rest.is_empty() {
            parts.push(format!("{} bytes: {}", self.rest.len(), shown(&self.rest)));
        }
        if self.early {
            parts.push("before the request was complete".to_owned());
        }
        if self.closed {
            parts.push("closed".to_owned());
        }
        if parts.is_empty() {
            parts.push("nothing".to_owned());
        }
        parts.join(", ")
    }
}

/// Sends `pieces` one after another on a fresh connection, and waits for `awaited` answers.
fn ask(
    endpoint: &Endpoint,
    patience: Duration,
    pieces: &[&str],
    awaited: usize,
) -> io::Result<Came> {
    let mut stream = endpoint.connect(patience)?;
    stream.set_write_timeout(Some(patience))?;
    let mut came = Came::default();
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            receive(&mut stream, &mut came, BETWEEN_PIECES, usize::MAX)?;
            came.early |= !came.rest.is_empty();
        }
        match stream.write_all(piece.as_bytes()) {
            // A server may refuse and close before it has read everything.
            Err(error) if is_over(&error) => came.closed = true,
            result => result?,
        }
    }
    receive(&mut stream, &mut came, patience, awaited)?;
    receive(&mut stream, &mut came, AFTERWARDS, usize::MAX)?;
    let (answers, taken) = split_answers(&came.rest);
    came.answers = answers;
    came.rest.drain(..taken);
    Ok(came)
}

fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Receives until there are `awaited` answers, but not for longer than `patience` or after the end of the connection.
fn receive(
    stream: &mut Socket,
    came: &mut Came,
    patience: Duration,
    awaited: usize,
) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let mut buffer = [0; 16 * 1024];
    while !came.closed && split_answers(&came.rest).0.len() < awaited {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut buffer) {
            Ok(0) => came.closed = true,
            Ok(bytes) => came.rest.extend_from_slice(&buffer[..bytes]),
            Err(error) if is_over(&error) => came.closed = true,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// The complete answers at the beginning of received bytes, and their total length.
fn split_answers(received: &[u8]) -> (Vec<(u16, usize)>, usize) {
    let mut answers = Vec::new();
    let mut taken = 0;
    while let Ok(Some(answer)) = parse(&received[taken..])
        && let Some(body) = answer.body
    {
        answers.push((answer.status, body.len()));
        taken += answer.bytes;
    }
    (answers, taken)
}

/// The kind of parser, and why: of the answers to the questions, in their order.
fn verdict(
    [
        plain,
        in_pieces,
        three_at_once,
        body_like_a_request,
        malformed,
    ]: &[Came; 5],
) -> (&'static str, String) {
    if !plain.answers_exactly(1) {
        let text = format!("a plain GET wasn't answered: {}", plain.text());
        return ("unknown", text);
    }
    // A server that refuses POST may close the connection with its answer.
    let knows_bodies = body_like_a_request.answers_exactly(2)
        || (body_like_a_request.answers_exactly(1) && body_like_a_request.closed);
    let checks = [
        (
            in_pieces.answers_exactly(1),
            "a request in pieces isn't answered once, at its end",
        ),
        (
            three_at_once.answers_exactly(3),
            "three requests at once don't get three answers",
        ),
        (knows_bodies, "a request's body is taken for a request"),
    ];
    let missing: Vec<&str> = checks
        .iter()
        .filter(|(right, _)| !right)
        .map(|(_, text)| *text)
        .collect();
    if !missing.is_empty() {
        return ("canned", missing.join("; "));
    }
    if !malformed.refused() {
        let text = format!(
            "it knows where requests end, but answers a malformed one: {}",
            malformed.text()
        );
        return ("unknown", text);
    }
    let text = "requests in pieces, at once and with bodies are told apart, and a malformed one is refused";
    ("real", text.to_owned())
}

/// Probes the server at `address`; returns the fields of the event.
pub(crate) fn probe(address: &Address, path: &str, timeout: Duration) -> anyhow::Result<Value> {
    let endpoint = &address.endpoint;
    let patience = timeout.min(PATIENCE_MAX);
    let host = format!("Host: {}\r\n", address.name);
    let get = format!("GET {path} HTTP/1.1\r\n{host}\r\n");
    let thrice = get.repeat(3);
    let post = format!(
        "POST {path} HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{get}{get}",
        get.len()
    );
    // Cuts at critical places for a parser: in the method, in a name, and within the empty line at the end of the head.
    let end = get.len();
    let cuts = [2, end - host.len(), end - 3, end - 2, end - 1, end];
    let mut begin = 0;
    let pieces = cuts.map(|cut| &get[mem::replace(&mut begin, cut)..cut]);
    // The name of each question, the pieces of its request, and the number of answers to wait for.
    let questions: [(&str, &[&str], usize); 5] = [
        ("plain", &[&get], 1),
        ("in_pieces", &pieces, 1),
        ("three_at_once", &[&thrice], 3),
        ("body_like_a_request", &[&post], 2),
        ("malformed", &["THIS IS NOT A REQUEST\r\n\r\n"], 1),
    ];
    // All at once, because most of the time is spent waiting for superfluous answers.
    let came = thread::scope(|scope| {
        questions
            .map(|(_, pieces, awaited)| {
                scope.spawn(move || ask(endpoint, patience, pieces, awaited))
            })
            .map(|thread| thread.join().expect("asking doesn't panic"))
            .into_iter()
            .collect::<io::Result<Vec<_>>>()
    })
    .with_context(|| format!("the server at {} can't be probed", address.name))?;
    let answers: Map<String, Value> = questions
        .iter()
        .zip(&came)
        .map(|((name, ..), came)| ((*name).to_owned(), came.text().into()))
        .collect();
    let came: [Came; 5] = came.try_into().expect("each question has been asked");
    let (parser, text) = verdict(&came);
    Ok(json!({"parser": parser, "text": text, "answers": answers}))
}
