//! Chunked request bodies (RFC 9112, section 7).

use std::mem::MaybeUninit;
use std::ops::Range;

use super::fault::Fault;
use super::limits::Limits;
use crate::names::Known;
use crate::syntax;

/// The result of [`ChunkedDecoder::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A part of the body, as a range of the input.
    Data(Range<usize>),
    /// All input was consumed, and the body continues.
    NeedMore,
    /// The end of the body. The rest of the input does not belong to it.
    End,
}

/// A decoder of chunked bodies.
///
/// It consumes all of its input, wherever the chunks end, so the caller has nothing to keep.
#[derive(Debug)]
pub struct ChunkedDecoder {
    state: State,
    /// The chunk's size while that is read, then the bytes that are left of its data.
    remaining: u64,
    extension_bytes: usize,
    trailers: Trailers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a chunk's size, after this number of digits.
    Size(u8),
    Extension,
    /// After the carriage return of a chunk's first line.
    SizeEnd,
    Data,
    /// After a chunk's data.
    DataEnd,
    /// After the carriage return that follows a chunk's data.
    DataEndFeed,
    Trailers,
    Done,
}

/// The most digits that a size may have.
const SIZE_DIGITS: u8 = 16;

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkedDecoder {
    /// A decoder at the start of a body.
    pub fn new() -> Self {
        ChunkedDecoder {
            state: State::Size(0),
            remaining: 0,
            extension_bytes: 0,
            trailers: Trailers::default(),
        }
    }

    /// Parses what comes next in `input[*at..]`, and advances `at` past it.
    ///
    /// # Errors
    /// If the body is invalid or exceeds `limits`. The decoder cannot be used any further.
    pub fn read(&mut self, input: &[u8], at: &mut usize, limits: &Limits) -> Result<Piece, Fault> {
        if self.state == State::Data {
            let available = input.len() - *at;
            if available == 0 {
                return Ok(Piece::NeedMore);
            }
            let taken = usize::try_from(self.remaining).map_or(available, |all| all.min(available));
            let start = *at;
            *at += taken;
            self.remaining -= taken as u64;
            if self.remaining == 0 {
                self.state = State::DataEnd;
            }
            return Ok(Piece::Data(start..*at));
        }
        while let Some(&byte) = input.get(*at) {
            match (self.state, byte) {
                (State::Size(digits), b'0'..=b'9' | b'A'..=b'F' | b'a'..=b'f') => {
                    // RFC 9112, section 7.1: expect sizes that overflow. 2^60 bytes and more are refused.
                    if digits == SIZE_DIGITS || self.remaining >> 56 != 0 {
                        return Err(Fault::ChunkSize);
                    }
                    // Letters have bit 6 set, and their low bits count from 1.
                    let digit = (byte & 15) + 9 * (byte >> 6);
                    self.remaining = self.remaining << 4 | u64::from(digit);
                    self.state = State::Size(digits + 1);
                }
                (State::Size(1..) | State::Extension, b'\r') => self.state = State::SizeEnd,
                (State::Size(1..), b';') => self.state = State::Extension,
                (State::Extension, _) => {
                    self.extension_bytes += 1;
                    if !syntax::is_field_value(&[byte])
                        || self.extension_bytes > limits.chunk_extension_bytes
                    {
                        return Err(Fault::ChunkExtension);
                    }
                }
                (State::SizeEnd, b'\n') => {
                    *at += 1;
                    if self.remaining == 0 {
                        self.state = State::Trailers;
                        continue;
                    }
                    self.state = State::Data;
                    return if *at == input.len() {
                        Ok(Piece::NeedMore)
                    } else {
                        self.read(input, at, limits)
                    };
                }
                (State::Size(_) | State::SizeEnd, _) => return Err(Fault::ChunkSize),
                (State::DataEnd, b'\r') => self.state = State::DataEndFeed,
                (State::DataEndFeed, b'\n') => self.state = State::Size(0),
                (State::DataEnd | State::DataEndFeed, _) => return Err(Fault::ChunkEnd),
                (State::Trailers, _) => {
                    if !self.trailers.read(input, at, limits)? {
                        return Ok(Piece::NeedMore);
                    }
                    self.state = State::Done;
                    return Ok(Piece::End);
                }
                (State::Done, _) => return Ok(Piece::End),
                // Handled before the loop.
                (State::Data, _) => return Ok(Piece::NeedMore),
            }
            *at += 1;
        }
        Ok(if self.state == State::Done {
            Piece::End
        } else {
            Piece::NeedMore
        })
    }

    /// The trailer section, after the end of the body.
    pub fn trailers(&self) -> &Trailers {
        &self.trailers
    }
}

/// The trailer section of a chunked body: fields that follow the data. Few clients send any.
#[derive(Debug, Default)]
pub struct Trailers {
    bytes: Vec<u8>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl Trailers {
    /// Reads the section from `input[*at..]` up to the empty line at its end. Returns whether it is complete.
    fn read(&mut self, input: &[u8], at: &mut usize, limits: &Limits) -> Result<bool, Fault> {
        loop {
            let rest = &input[*at..];
            let line_end = memchr::memchr(b'\n', rest);
            let taken = &rest[..line_end.map_or(rest.len(), |end| end + 1)];
            if self.bytes.len() + taken.len() > limits.trailer_bytes + b"\r\n".len() {
                return Err(Fault::TrailersTooLarge);
            }
            self.bytes.extend_from_slice(taken);
            *at += taken.len();
            if line_end.is_none() {
                return Ok(false);
            }
            match self.bytes.as_slice() {
                b"\r\n" => return Ok(true),
                [.., b'\r', b'\n', b'\r', b'\n'] => return self.parse(limits).map(|()| true),
                [.., b'\r', b'\n'] => {}
                _ => return Err(Fault::BareLineFeed),
            }
        }
    }

    fn parse(&mut self, limits: &Limits) -> Result<(), Fault> {
        // Only httparse's functions for whole messages accept uninitialized memory for the fields.
        let mut section = b"GET / HTTP/1.1\r\n".to_vec();
        let skipped = section.len();
        section.extend_from_slice(&self.bytes);
        let mut on_stack = [const { MaybeUninit::uninit() }; Limits::FIELDS_ON_STACK];
        let mut on_heap = Vec::new();
        let room = limits.room_for_fields(section.len(), &mut on_stack, &mut on_heap);
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(&section, room) {
            Ok(httparse::Status::Complete(length)) if length == section.len() => {}
            Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooManyFields),
            _ => return Err(Fault::Trailer),
        }
        let base = section.as_ptr().addr() + skipped;
        let range = |part: &[u8]| {
            let start = part.as_ptr().addr() - base;
            start..start + part.len()
        };
        for header in request.headers.iter() {
            if is_forbidden(header.name.as_bytes()) {
                return Err(Fault::Trailer);
            }
            self.fields
                .push((range(header.name.as_bytes()), range(header.value)));
        }
        Ok(())
    }

    /// The names, as the client wrote them, and the values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields
            .iter()
            .map(|(name, value)| (&self.bytes[name.clone()], &self.bytes[value.clone()]))
    }

    /// Whether the section has no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// Whether a field is not allowed in a trailer section: those that control framing, routing, authentication, request
/// modifiers, or how the content is processed (RFC 9110, section 6.5.1).
pub(crate) fn is_forbidden(name: &[u8]) -> bool {
    const FORBIDDEN: &[&[u8]] = &[
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-language",
        b"content-location",
        b"content-range",
        b"content-type",
        b"if-match",
        b"if-modified-since",
        b"if-none-match",
        b"if-range",
        b"if-unmodified-since",
        b"max-forwards",
        b"pragma",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"range",
        b"set-cookie",
        b"www-authenticate",
    ];
    match Known::find(name) {
        Some(
            Known::CONNECTION
            | Known::CONTENT_LENGTH
            | Known::COOKIE
            | Known::EXPECT
            | Known::HOST
            | Known::KEEP_ALIVE
            | Known::PROXY_CONNECTION
            | Known::TE
            | Known::TRAILER
            | Known::TRANSFER_ENCODING
            | Known::UPGRADE,
        ) => true,
        _ => FORBIDDEN
            .iter()
            .any(|forbidden| name.eq_ignore_ascii_case(forbidden)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` in pieces of `step` bytes. Returns the body, the trailers, and the number of bytes left over.
    fn decode(input: &[u8], step: usize) -> Result<(Vec<u8>, Vec<String>, usize), Option<Fault>> {
        let limits = Limits::default();
        let mut decoder = ChunkedDecoder::new();
        let mut body = Vec::new();
        let mut taken = 0;
        for piece in input.chunks(step) {
            let mut at = 0;
            loop {
                match decoder.read(piece, &mut at, &limits).map_err(Some)? {
                    Piece::Data(range) => body.extend_from_slice(&piece[range]),
                    Piece::NeedMore => {
                        assert_eq!(at, piece.len());
                        break;
                    }
                    Piece::End => {
                        let trailers = decoder
                            .trailers()
                            .iter()
                            .map(|(name, value)| {
                                format!("{}: {}", name.escape_ascii(), value.escape_ascii())
                            })
                            .collect();
                        return Ok((body, trailers, input.len() - taken - at));
                    }
                }
            }
            taken += piece.len();
        }
        Err(None)
    }

    #[test]
    fn chunks_are_put_together_however_they_arrive() {
        let input = b"5\r\nhello\r\n0C;a=b\r\n, big world!\r\n000\r\nX-Sum: 1 \r\nY:\r\n\r\nGET";
        for step in 1..=input.len() {
            let (body, trailers, rest) = decode(input, step).unwrap();
            assert_eq!(body, b"hello, big world!");
            assert_eq!(trailers, ["X-Sum: 1", "Y: "]);
            assert_eq!(rest, 3);
        }
    }

    #[test]
    fn what_is_no_body_is_refused_however_it_arrives() {
        let rows: &[(&[u8], Fault)] = &[
            (b"\r\n", Fault::ChunkSize),
            (b";a\r\n", Fault::ChunkSize),
            (b" 5\r\nhello\r\n", Fault::ChunkSize),
            (b"5 \r\nhello\r\n", Fault::ChunkSize),
            (b"5 ;a\r\nhello\r\n", Fault::ChunkSize),
            (b"+5\r\nhello\r\n", Fault::ChunkSize),
            (b"-5\r\nhello\r\n", Fault::ChunkSize),
            (b"0x5\r\nhello\r\n", Fault::ChunkSize),
            (b"5_\r\nhello\r\n", Fault::ChunkSize),
            (b"5\nhello\r\n", Fault::ChunkSize),
            (b"5\rhello\r\n", Fault::ChunkSize),
            (b"00000000000000005\r\nhello\r\n", Fault::ChunkSize),
            (b"1000000000000000\r\n", Fault::ChunkSize),
            (b"ffffffffffffffff1\r\n", Fault::ChunkSize),
            (b"5;a\nhello\r\n", Fault::ChunkExtension),
            (b"5;a\0\r\nhello\r\n", Fault::ChunkExtension),
            (b"5;a\rb\r\nhello\r\n", Fault::ChunkSize),
            (b"5;a=\"\r\n\"\r\nhello\r\n", Fault::ChunkEnd),
            (b"5\r\nhelloX", Fault::ChunkEnd),
            (b"5\r\nhello\n0\r\n\r\n", Fault::ChunkEnd),
            (b"5\r\nhello\r\r\n", Fault::ChunkEnd),
            (b"5\r\nhello world\r\n", Fault::ChunkEnd),
            (b"0\r\n\n", Fault::BareLineFeed),
            (b"0\r\nA: b\n\r\n", Fault::BareLineFeed),
            (b"0\r\nA: b\r\n\n", Fault::BareLineFeed),
            (b"0\r\nA : b\r\n\r\n", Fault::Trailer),
            (b"0\r\nA\r\n\r\n", Fault::Trailer),
            (b"0\r\n: b\r\n\r\n", Fault::Trailer),
            (b"0\r\nA: b\r\n c\r\n\r\n", Fault::Trailer),
            (b"0\r\nA: b\rc\r\n\r\n", Fault::Trailer),
            (b"0\r\nA: \0\r\n\r\n", Fault::Trailer),
            (b"0\r\nContent-Length: 1\r\n\r\n", Fault::Trailer),
            (b"0\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Trailer),
            (b"0\r\nHOST: a\r\n\r\n", Fault::Trailer),
            (b"0\r\nAuthorization: a\r\n\r\n", Fault::Trailer),
            (b"0\r\nContent-Type: a\r\n\r\n", Fault::Trailer),
        ];
        for (input, expected) in rows {
            for step in 1..=input.len() {
                assert_eq!(
                    decode(input, step),
                    Err(Some(*expected)),
                    "{} by {step}",
                    input.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn what_no_client_needs_is_limited() {
        let limit = Limits::default();
        let extension = |length| {
            [
                b"5;".as_slice(),
                &vec![b'a'; length],
                b"\r\nhello\r\n0\r\n\r\n",
            ]
            .concat()
        };
        assert!(decode(&extension(limit.chunk_extension_bytes), 100).is_ok());
        assert_eq!(
            decode(&extension(limit.chunk_extension_bytes + 1), 100),
            Err(Some(Fault::ChunkExtension))
        );
        // The limit is for all chunks together.
        let many = [
            b"1;abcdefgh\r\nx\r\n".repeat(limit.chunk_extension_bytes / 8 + 1),
            b"0\r\n\r\n".to_vec(),
        ]
        .concat();
        assert_eq!(decode(&many, 1000), Err(Some(Fault::ChunkExtension)));

        let trailers =
            |length| [b"0\r\nA: ".as_slice(), &vec![b'a'; length - 5], b"\r\n\r\n"].concat();
        assert!(decode(&trailers(limit.trailer_bytes), 100).is_ok());
        assert_eq!(
            decode(&trailers(limit.trailer_bytes + 1), 100),
            Err(Some(Fault::TrailersTooLarge))
        );
        let many = [
            b"0\r\n".to_vec(),
            b"A: b\r\n".repeat(limit.fields + 1),
            b"\r\n".to_vec(),
        ]
        .concat();
        assert_eq!(decode(&many, 1000), Err(Some(Fault::TooManyFields)));
    }

    #[test]
    fn a_size_may_be_large_as_long_as_it_is_a_number() {
        let limits = Limits::default();
        let mut decoder = ChunkedDecoder::new();
        let mut at = 0;
        let input = b"0fffffffffffffff\r\nabc";
        assert_eq!(
            decoder.read(input, &mut at, &limits),
            Ok(Piece::Data(18..21))
        );
        assert_eq!(decoder.read(input, &mut at, &limits), Ok(Piece::NeedMore));
    }

    #[test]
    fn nothing_is_decoded_behind_the_end() {
        let limits = Limits::default();
        let mut decoder = ChunkedDecoder::new();
        let input = b"0\r\n\r\n1\r\na\r\n";
        let mut at = 0;
        for _ in 0..3 {
            assert_eq!(decoder.read(input, &mut at, &limits), Ok(Piece::End));
            assert_eq!(at, 5);
        }
        assert_eq!(decoder.read(b"", &mut 0, &limits), Ok(Piece::End));
    }
}
