//! `http_raw`, `http_hello` and `axum_hello`, and a client for HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;

use crate::program::{Program, rest, with_each};

/// An HTTP response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn read(reader: &mut impl BufRead, has_body: bool) -> Self {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head:?}");
        }
        let status = head[9..12].parse().unwrap();
        let mut answer = Self {
            status,
            head,
            body: Vec::new(),
        };
        if let Some(length) = answer.header("content-length").filter(|_| has_body) {
            let length = length.parse().unwrap();
            let read = reader.take(length).read_to_end(&mut answer.body);
            assert_eq!(
                (read.ok(), answer.body.len() as u64),
                (Some(answer.body.len()), length),
                "{}",
                answer.head
            );
        }
        answer
    }
}

/// Sends a request over a new connection, and checks that nothing follows the response.
pub(crate) fn ask(program: &Program, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = program.connect();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut reader = BufReader::new(&mut stream);
    let answer = Answer::read(&mut reader, method != "HEAD");
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    answer
}

#[test]
fn http_raw_answers_each_request_however_it_arrives() {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
    let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    with_each("http_raw", &[], |program| {
        let mut stream = program.connect();
        let mut answer = vec![0; ANSWER.len()];
        for _ in 0..3 {
            stream.write_all(request).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, ANSWER);
        }
        stream.set_nodelay(true).unwrap();
        for byte in request {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, ANSWER);
        stream.write_all(&request.repeat(100)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut stream), ANSWER.repeat(100));
    });
}

#[test]
fn http_hello_greets_and_keeps_the_connection() {
    with_each("http_hello", &["--drain-timeout", "0"], |program| {
        let mut stream = BufReader::new(program.connect());
        for path in ["/", "/other"] {
            write!(
                stream.get_mut(),
                "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"
            )
            .unwrap();
            let answer = Answer::read(&mut stream, true);
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("text/plain"));
            assert_eq!(answer.body, b"Hello, World!");
        }
        let answer = ask(program, "HEAD", "/", "");
        assert_eq!(answer.header("content-length"), Some("13"));
    });
}

#[test]
fn axum_hello_greets_by_name() {
    with_each("axum_hello", &["--drain-timeout", "0"], |program| {
        assert_eq!(ask(program, "GET", "/", "").body, b"Hello, World!\n");
        let answer = ask(program, "GET", "/greet/Ada%20L.", "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, b"Hello, Ada L.!\n");
        assert_eq!(ask(program, "GET", "/nowhere", "").status, 404);
    });
}
