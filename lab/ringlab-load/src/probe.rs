//! Finds out whether an HTTP server parses requests, or sends a canned answer to anything.
//!
//! Both kinds are worth measuring, but not against each other. Three kinds of requests decide, because a server can answer them
//! correctly only if it knows where requests begin and end: one in pieces, several at once, and one whose body looks like another
//! request. Also, a malformed request must not be answered like a correct one. The answers to further requests are reported, but
//! do not count.

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

/// The format of the answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bodies {
    Present,
    /// The request was HEAD: the head has the length of the body, but no body follows.
    Absent,
}

/// The server to probe.
struct Prober {
    endpoint: Endpoint,
    patience: Duration,
}

impl Prober {
    /// Sends `pieces` one after another on a fresh connection, and waits for `awaited` answers.
    fn ask(&self, pieces: &[&str], awaited: usize, bodies: Bodies) -> io::Result<Came> {
        let mut stream = self.endpoint.connect(self.patience)?;
        stream.set_write_timeout(Some(self.patience))?;
        let mut came = Came::default();
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                receive(
                    &mut stream,
                    &mut came,
                    Instant::now() + BETWEEN_PIECES,
                    |_| false,
                )?;
                came.early |= !came.rest.is_empty();
            }
            match stream.write_all(piece.as_bytes()) {
                // A server may refuse and close before it has read everything.
                Err(error) if is_over(&error) => came.closed = true,
                result => result?,
            }
        }
        let deadline = Instant::now() + self.patience;
        receive(&mut stream, &mut came, deadline, |rest| {
            count_answers(rest, bodies) >= awaited
        })?;
        if !came.closed {
            receive(&mut stream, &mut came, Instant::now() + AFTERWARDS, |_| {
                false
            })?;
        }
        let rest = mem::take(&mut came.rest);
        let (answers, taken) = split_answers(&rest, bodies);
        came.answers = answers;
        came.rest = rest[taken..].to_vec();
        Ok(came)
    }
}

fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Receives until the deadline, the end of the connection, or until `enough` is true.
fn receive(
    stream: &mut Socket,
    came: &mut Came,
    deadline: Instant,
    enough: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    while !came.closed && !enough(&came.rest) {
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

fn count_answers(received: &[u8], bodies: Bodies) -> usize {
    split_answers(received, bodies).0.len()
}

/// The complete answers at the beginning of received bytes, and their total length.
fn split_answers(received: &[u8], bodies: Bodies) -> (Vec<(u16, usize)>, usize) {
    let mut answers = Vec::new();
    let mut taken = 0;
    while taken < received.len() {
        let rest = &received[taken..];
        if bodies == Bodies::Absent {
            let mut headers = [httparse::EMPTY_HEADER; 100];
            let mut head = httparse::Response::new(&mut headers);
            let Ok(httparse::Status::Complete(bytes)) = head.parse(rest) else {
                break;
            };
            answers.push((head.code.unwrap_or_default(), 0));
            taken += bytes;
            continue;
        }
        let Ok(Some(answer)) = parse(rest) else {
            break;
        };
        let Some(body) = answer.body else {
            break;
        };
        answers.push((answer.status, body.len()));
        taken += answer.bytes;
    }
    (answers, taken)
}

/// The answers to the requests that decide.
struct Decisive {
    plain: Came,
    in_pieces: Came,
    three_at_once: Came,
    body_like_a_request: Came,
    malformed: Came,
}

impl Decisive {
    /// The kind of parser, and why.
    fn verdict(&self) -> (&'static str, String) {
        if !self.plain.answers_exactly(1) {
            let text = format!("a plain GET wasn't answered: {}", self.plain.text());
            return ("unknown", text);
        }
        // A server that refuses POST may close the connection with its answer.
        let body = &self.body_like_a_request;
        let knows_bodies = body.answers_exactly(2) || (body.answers_exactly(1) && body.closed);
        let checks = [
            (
                self.in_pieces.answers_exactly(1),
                "a request in pieces isn't answered once, at its end",
            ),
            (
                self.three_at_once.answers_exactly(3),
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
        if !self.malformed.refused() {
            let text = format!(
                "it knows where requests end, but answers a malformed one: {}",
                self.malformed.text()
            );
            return ("unknown", text);
        }
        let text = "requests in pieces, at once and with bodies are told apart, and a malformed one is refused";
        ("real", text.to_owned())
    }
}

/// A question to the server, on a connection of its own.
struct Question<'a> {
    name: &'static str,
    /// The pieces, which are sent one after another.
    pieces: Vec<&'a str>,
    /// The number of answers to wait for.
    awaited: usize,
    bodies: Bodies,
}

impl<'a> Question<'a> {
    fn new(name: &'static str, request: &'a str, awaited: usize) -> Self {
        Self {
            name,
            pieces: vec![request],
            awaited,
            bodies: Bodies::Present,
        }
    }
}

/// Asks all questions at once, because most of the time is spent waiting for superfluous answers. Returns the answers in the
/// order of the questions.
fn ask_all(prober: &Prober, questions: &[Question<'_>]) -> io::Result<Vec<Came>> {
    thread::scope(|scope| {
        let asked: Vec<_> = questions
            .iter()
            .map(|question| {
                scope.spawn(|| prober.ask(&question.pieces, question.awaited, question.bodies))
            })
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().expect("asking doesn't panic"))
            .collect()
    })
}

/// Probes the server at `address`; returns the fields of the event.
pub(crate) fn probe(address: &Address, path: &str, timeout: Duration) -> anyhow::Result<Value> {
    let prober = Prober {
        endpoint: address.endpoint.clone(),
        patience: timeout.min(PATIENCE_MAX),
    };
    let host = format!("Host: {}\r\n", address.name);
    let get = format!("GET {path} HTTP/1.1\r\n{host}\r\n");
    let thrice = get.repeat(3);
    let smuggled = get.clone();
    let post = format!(
        "POST {path} HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{smuggled}{get}",
        smuggled.len()
    );
    let chunked = format!(
        "POST {path} HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n{get}",
        smuggled.len()
    );
    let head = format!("HEAD {path} HTTP/1.1\r\n{host}\r\n");
    let unknown_path = format!("GET /ringlab-has-no-such-page HTTP/1.1\r\n{host}\r\n");
    let without_colon = format!("GET {path} HTTP/1.1\r\n{host}no colon\r\n\r\n");
    let unknown_version = format!("GET {path} HTTP/9.9\r\n{host}\r\n");
    let without_host = format!("GET {path} HTTP/1.1\r\n\r\n");
    let http_1_0 = format!("GET {path} HTTP/1.0\r\n{host}\r\n");
    let close = format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");

    // Cuts at critical places for a parser: in the method, in a name, and within the empty line at the end of the head.
    let end = get.len();
    let cuts = [2, end - host.len(), end - 3, end - 2, end - 1, end];
    let mut begin = 0;
    let pieces = cuts.map(|cut| &get[mem::replace(&mut begin, cut)..cut]);
    let questions = [
        Question::new("plain", &get, 1),
        Question {
            name: "in_pieces",
            pieces: pieces.to_vec(),
            awaited: 1,
            bodies: Bodies::Present,
        },
        Question::new("three_at_once", &thrice, 3),
        Question::new("body_like_a_request", &post, 2),
        Question::new("malformed", "THIS IS NOT A REQUEST\r\n\r\n", 1),
        Question::new("chunked_body", &chunked, 2),
        Question {
            name: "head",
            pieces: vec![&head],
            awaited: 1,
            bodies: Bodies::Absent,
        },
        Question::new("unknown_path", &unknown_path, 1),
        Question::new("header_without_colon", &without_colon, 1),
        Question::new("unknown_version", &unknown_version, 1),
        Question::new("without_host", &without_host, 1),
        Question::new("http_1_0", &http_1_0, 1),
        Question::new("connection_close", &close, 1),
    ];
    let came = ask_all(&prober, &questions)
        .with_context(|| format!("the server at {} can't be probed", address.name))?;
    let answers: Map<String, Value> = questions
        .iter()
        .zip(&came)
        .map(|(question, came)| (question.name.to_owned(), came.text().into()))
        .collect();
    let mut came = came.into_iter();
    let mut next = || came.next().expect("there are thirteen");
    let decisive = Decisive {
        plain: next(),
        in_pieces: next(),
        three_at_once: next(),
        body_like_a_request: next(),
        malformed: next(),
    };
    let (parser, text) = decisive.verdict();
    Ok(json!({"parser": parser, "text": text, "answers": answers}))
}
