//! The fuzz targets, run over the corpus and over random changes of it. So they are tested without a fuzzer, too. `make
//! fuzz` runs them for longer, guided by coverage.

mod targets;

use std::fs;
use std::path::PathBuf;

/// The number of random inputs for each target.
const GENERATED: usize = 3_000;

/// Strings to insert into inputs.
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b":",
    b",",
    b";",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HTTP/1.0",
    b"Host: b\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"chunked",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff",
    b"http://a/",
    b"*",
    b"CONNECT a:1 ",
    b"\x80",
    b"\xFF",
    // WebSocket frames, and the end of compressed data.
    b"\x81\x85\0\0\0\0hello",
    b"\x01\x80\0\0\0\0",
    b"\x80\x80\0\0\0\0",
    b"\x89\x80\0\0\0\0",
    b"\x88\x82\0\0\0\0\x03\xE8",
    b"\xC1\x87\0\0\0\0\xF2\x48\xCD\xC9\xC9\x07\x00",
    b"\x00\x00\xFF\xFF",
    // HTTP/2 frames: HEADERS, DATA, RST_STREAM, WINDOW_UPDATE.
    b"\0\0\x10\x01\x05\0\0\0\x01\x82\x86\x84\x41\x0B127.0.0.1:8",
    b"\0\0\x01\0\x01\0\0\0\x01a",
    b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08",
    b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01",
    // TLS records: an alert, a change of the cipher, application data, and the beginning of the longest.
    b"\x15\x03\x03\0\x02\x02\x28",
    b"\x14\x03\x03\0\x01\x01",
    b"\x17\x03\x03\0\x05hello",
    b"\x17\x03\x03\x41\x40",
];

/// A xorshift64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() % end.max(1)
    }

    /// A random change of an input of `corpus`.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(5) {
            let at = self.below(input.len() + 1);
            match self.below(6) {
                0 => {
                    if let Some(byte) = input.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
                1 => {
                    let end = input.len().min(at + self.below(20));
                    input.drain(at..end);
                }
                2 => {
                    let end = input.len().min(at + self.below(200));
                    let again = input[at..end].to_vec();
                    input.splice(at..at, again);
                }
                3 => {
                    let other = &corpus[self.below(corpus.len())];
                    let end = other.len().min(self.below(300));
                    input.splice(at..at, other[..end].iter().copied());
                }
                4 => input.insert(at, self.next() as u8),
                _ => {
                    let token = TOKENS[self.below(TOKENS.len())];
                    input.splice(at..at, token.iter().copied());
                }
            }
        }
        input
    }
}

/// Decodes a line of hexadecimal digits.
fn unhex(line: &str) -> Vec<u8> {
    line.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

/// The requests of the table, with `before` zero bytes before each.
fn requests(before: usize) -> Vec<Vec<u8>> {
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("data/requests.json")).unwrap();
    rows.iter()
        .map(|row| {
            let characters = row["input"].as_str().unwrap().chars();
            std::iter::repeat_n(0, before)
                .chain(characters.map(|character| u8::try_from(character).unwrap()))
                .collect()
        })
        .collect()
}

/// Runs `target` over its corpus, over the inputs in `more`, and over random changes of both.
fn run(name: &str, target: fn(&[u8]), more: Vec<Vec<u8>>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
        .with_extension("txt");
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut corpus = more;
    corpus.extend(text.lines().map(unhex));
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for index in 0..corpus.len() + GENERATED {
        let input = match corpus.get(index) {
            Some(input) => input.clone(),
            None => random.input(&corpus),
        };
        if let Err(panic) = std::panic::catch_unwind(|| target(&input)) {
            eprintln!("the input is {}", input.escape_ascii());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn h1_head() {
    run("h1_head", targets::h1::head, requests(0));
}

#[test]
fn h1_connection() {
    run("h1_connection", targets::h1::connection, requests(8));
}

#[test]
fn h1_chunked() {
    run("h1_chunked", targets::h1::chunked, Vec::new());
}

#[test]
fn websocket_frames() {
    run("websocket_frames", targets::websocket::frames, Vec::new());
}

#[test]
fn websocket_deflate() {
    run("websocket_deflate", targets::websocket::deflate, Vec::new());
}

#[test]
fn h2_feed() {
    run("h2_feed", targets::h2::feed, Vec::new());
}

#[test]
fn tls_records() {
    run("tls_records", targets::tls::records, Vec::new());
}
