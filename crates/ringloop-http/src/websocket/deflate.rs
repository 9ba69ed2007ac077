//! Compression of messages: permessage-deflate (RFC 7692).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::syntax;

/// How messages are compressed.
///
/// A context for compression takes 250 to 380 KB, mostly for hash tables, and one for decompression takes 48 KB. With
/// context takeover, a connection keeps its contexts between messages. Without it, the connections of a thread share a
/// few contexts, and an idle connection has none. In return, each message is compressed on its own, and small ones get
/// larger.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Deflate {
    /// Whether the server keeps its context between messages. Default: false.
    pub server_context_takeover: bool,
    /// Whether clients may keep their contexts between messages. Default: false.
    pub client_context_takeover: bool,
    /// The size of the server's window, as its binary logarithm, from 9 to 15. A client can ask for less. Default: 12.
    pub server_window_bits: u8,
    /// The size of the clients' windows, from 9 to 15, if they let the server choose it. Default: 12.
    pub client_window_bits: u8,
    /// The compression level, from 1 (fast) to 9 (small). Default: 1.
    pub level: u8,
    /// Messages with fewer bytes are not compressed. Default: 64.
    pub threshold_bytes: usize,
}

impl Default for Deflate {
    fn default() -> Self {
        Deflate {
            server_context_takeover: false,
            client_context_takeover: false,
            server_window_bits: 12,
            client_window_bits: 12,
            level: 1,
            threshold_bytes: 64,
        }
    }
}

/// The smallest window with which zlib can compress raw data.
const WINDOW_BITS_MIN: u8 = 9;
const WINDOW_BITS_MAX: u8 = 15;

/// The negotiated parameters (RFC 7692, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    server_context_takeover: bool,
    client_context_takeover: bool,
    server_window_bits: u8,
    client_window_bits: u8,
    /// Whether the response mentions the client's window, which needs the client's consent.
    tells_client_window: bool,
    level: u8,
    threshold_bytes: usize,
}

impl Negotiated {
    /// Appends the value of Sec-WebSocket-Extensions.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"permessage-deflate");
        if !self.server_context_takeover {
            out.extend_from_slice(b"; server_no_context_takeover");
        }
        if !self.client_context_takeover {
            out.extend_from_slice(b"; client_no_context_takeover");
        }
        if self.server_window_bits < WINDOW_BITS_MAX {
            out.extend_from_slice(b"; server_max_window_bits=");
            syntax::push_decimal(u64::from(self.server_window_bits), out);
        }
        if self.tells_client_window {
            out.extend_from_slice(b"; client_max_window_bits=");
            syntax::push_decimal(u64::from(self.client_window_bits), out);
        }
    }

    pub(super) fn threshold_bytes(&self) -> usize {
        self.threshold_bytes
    }
}

/// Accepts the first suitable offer in `value`, a Sec-WebSocket-Extensions. `Err` means that the value is malformed.
pub(super) fn negotiate(value: &[u8], config: &Deflate) -> Result<Option<Negotiated>, ()> {
    let mut tokens = Tokens { rest: value };
    let mut accepted = None;
    loop {
        let name = tokens.token().ok_or(())?;
        let is_deflate = name == b"permessage-deflate";
        let mut offer = Some(Offer::default());
        while tokens.take(b';') {
            let parameter = tokens.token().ok_or(())?;
            let value = if tokens.take(b'=') {
                Some(tokens.value().ok_or(())?)
            } else {
                None
            };
            offer = offer.and_then(|offer| offer.with(parameter, value.as_deref()));
        }
        if is_deflate && accepted.is_none() {
            accepted = offer.and_then(|offer| offer.accept(config));
        }
        if !tokens.take(b',') {
            break;
        }
    }
    if tokens.rest.is_empty() {
        Ok(accepted)
    } else {
        Err(())
    }
}

/// An offer of permessage-deflate.
#[derive(Clone, Copy, Default)]
struct Offer {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    /// 15 if the parameter has no value.
    client_max_window_bits: Option<u8>,
}

impl Offer {
    /// Adds a parameter. `None` means that the offer must be declined, because the parameter is unknown, repeated or
    /// invalid (RFC 7692, section 7.1).
    fn with(mut self, name: &[u8], value: Option<&[u8]>) -> Option<Self> {
        let is_new = match (name, value) {
            (b"server_no_context_takeover", None) => {
                !std::mem::replace(&mut self.server_no_context_takeover, true)
            }
            (b"client_no_context_takeover", None) => {
                !std::mem::replace(&mut self.client_no_context_takeover, true)
            }
            (b"server_max_window_bits", Some(value)) => self
                .server_max_window_bits
                .replace(window_bits(value)?)
                .is_none(),
            (b"client_max_window_bits", value) => {
                let bits = value.map_or(Some(WINDOW_BITS_MAX), window_bits)?;
                self.client_max_window_bits.replace(bits).is_none()
            }
            _ => false,
        };
        is_new.then_some(self)
    }

    fn accept(self, config: &Deflate) -> Option<Negotiated> {
        let allowed = |bits: u8| bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX);
        let server_window_bits = self
            .server_max_window_bits
            .unwrap_or(WINDOW_BITS_MAX)
            .min(allowed(config.server_window_bits));
        if server_window_bits < WINDOW_BITS_MIN {
            return None;
        }
        let client_window_bits = self.client_max_window_bits.map_or(WINDOW_BITS_MAX, |bits| {
            bits.min(allowed(config.client_window_bits))
        });
        Some(Negotiated {
            server_context_takeover: config.server_context_takeover
                && !self.server_no_context_takeover,
            client_context_takeover: config.client_context_takeover
                && !self.client_no_context_takeover,
            server_window_bits,
            client_window_bits,
            tells_client_window: self.client_max_window_bits.is_some()
                && client_window_bits < WINDOW_BITS_MAX,
            level: config.level.clamp(1, 9),
            threshold_bytes: config.threshold_bytes.max(1),
        })
    }
}

/// Parses a window size: 8 to 15, without leading zeros (RFC 7692, section 7.1.2).
fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        b"8" => Some(8),
        b"9" => Some(9),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// A parser for the grammar of RFC 6455, section 9.1.
struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    fn skip_spaces(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Consumes `byte` and the whitespace around it, if it comes next. Returns whether it did.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_spaces();
        let [first, rest @ ..] = self.rest else {
            return false;
        };
        let is_next = *first == byte;
        if is_next {
            self.rest = rest;
            self.skip_spaces();
        }
        is_next
    }

    fn token(&mut self) -> Option<&'a [u8]> {
        self.skip_spaces();
        let end = self
            .rest
            .iter()
            .position(|&byte| !syntax::is_token_byte(byte))
            .unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    /// Parses a token, or a quoted string whose content is a token.
    fn value(&mut self) -> Option<Vec<u8>> {
        let [b'"', quoted @ ..] = self.rest else {
            return self.token().map(<[u8]>::to_vec);
        };
        let mut value = Vec::new();
        let mut bytes = quoted.iter();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => value.push(*bytes.next()?),
                &byte => value.push(byte),
            }
        }
        self.rest = bytes.as_slice();
        syntax::is_token(&value).then_some(value)
    }
}

/// The end of a flushed message, which is not sent (RFC 7692, section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xFF, 0xFF];

/// The number of unused contexts of a kind to keep.
const KEPT: usize = 4;

/// Buffers and contexts that the connections of a thread share.
#[derive(Debug, Default)]
pub struct Pool {
    /// The message that was compressed last.
    pub(super) output: Vec<u8>,
    /// One list for each window size from 9 to 15.
    compressors: [Vec<Compress>; 7],
    /// All with the largest window: that needs no more memory, and only those can be reset in place.
    decompressors: Vec<Decompress>,
}

/// [`Pool::output`] shrinks to this size after a larger message, in bytes.
const OUTPUT_KEPT: usize = 256 << 10;

impl Pool {
    /// Prepares the output for a message.
    fn clear_output(&mut self) {
        self.output.clear();
        self.output.shrink_to(OUTPUT_KEPT);
    }
}

fn place(window_bits: u8) -> usize {
    usize::from(window_bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX) - WINDOW_BITS_MIN)
}

/// The compressing side of a connection.
#[derive(Debug)]
pub(super) struct Deflater {
    negotiated: Negotiated,
    /// With context takeover, the context since the first message.
    context: Option<Compress>,
}

impl Deflater {
    pub(super) fn new(negotiated: Negotiated) -> Self {
        Deflater {
            negotiated,
            context: None,
        }
    }

    /// Compresses a non-empty message into the pool's output. An error has zlib's message; none is known to occur.
    pub(super) fn compress(&mut self, message: &[u8], pool: &mut Pool) -> Result<(), String> {
        let bits = self.negotiated.server_window_bits.max(WINDOW_BITS_MIN);
        let level = Compression::new(u32::from(self.negotiated.level));
        let mut context = match self.context.take() {
            Some(context) => context,
            None if self.negotiated.server_context_takeover => {
                Compress::new_with_window_bits(level, false, bits)
            }
            None => match pool.compressors[place(bits)].pop() {
                Some(mut context) => {
                    context
                        .set_level(level)
                        .map_err(|error| error.to_string())?;
                    context
                }
                None => Compress::new_with_window_bits(level, false, bits),
            },
        };
        pool.clear_output();
        deflate(&mut context, message, &mut pool.output)?;
        if self.negotiated.server_context_takeover {
            self.context = Some(context);
        } else {
            context.reset();
            let kept = &mut pool.compressors[place(bits)];
            if kept.len() < KEPT {
                kept.push(context);
            }
        }
        Ok(())
    }
}

fn deflate(context: &mut Compress, message: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let start = context.total_in();
    loop {
        // Text usually shrinks to less than half.
        let rest = &message[(context.total_in() - start) as usize..];
        out.reserve(rest.len() / 2 + 64);
        context
            .compress_vec(rest, out, FlushCompress::Sync)
            .map_err(|error| error.to_string())?;
        // zlib's manual, deflate(): a flush is complete if it returns with room left in the output.
        if out.len() < out.capacity() && context.total_in() - start == message.len() as u64 {
            break;
        }
    }
    if !out.ends_with(&TAIL) {
        return Err("a flush has no end".to_owned());
    }
    out.truncate(out.len() - TAIL.len());
    Ok(())
}

/// The reason why a message cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InflateError {
    Invalid,
    /// The message exceeds the limit.
    TooLong,
}

/// The decompressing side of a connection.
#[derive(Debug)]
pub(super) struct Inflater {
    has_context_takeover: bool,
    /// The context while a message is received. With context takeover, it stays.
    context: Option<Decompress>,
    /// Whether the data ended with a final block, which few clients send (RFC 7692, section 7.2.3.4).
    has_ended: bool,
    /// Whether the message has any data.
    has_begun: bool,
}

impl Inflater {
    pub(super) fn new(negotiated: Negotiated) -> Self {
        Inflater {
            has_context_takeover: negotiated.client_context_takeover,
            context: None,
            has_ended: false,
            has_begun: false,
        }
    }

    /// Decompresses a part of a message, and appends it to `message`, which must not exceed `limit` bytes.
    pub(super) fn inflate(
        &mut self,
        part: &[u8],
        message: &mut Vec<u8>,
        limit: usize,
        pool: &mut Pool,
    ) -> Result<(), InflateError> {
        let context = self.context.get_or_insert_with(|| {
            pool.decompressors
                .pop()
                .unwrap_or_else(|| Decompress::new_with_window_bits(false, WINDOW_BITS_MAX))
        });
        self.has_begun |= !part.is_empty();
        inflate(context, part, message, limit, &mut self.has_ended)
    }

    /// Finishes a message after its last part.
    pub(super) fn finish(
        &mut self,
        message: &mut Vec<u8>,
        limit: usize,
        pool: &mut Pool,
    ) -> Result<(), InflateError> {
        // RFC 7692 sends an empty message as a block, but other servers take a message without data for one, too. The tail
        // alone is no block.
        if !self.has_begun {
            return Ok(());
        }
        // No tail is missing after a final block.
        if !std::mem::take(&mut self.has_ended) {
            self.inflate(&TAIL, message, limit, pool)?;
            self.has_ended = false;
        }
        self.has_begun = false;
        if !self.has_context_takeover
            && let Some(mut context) = self.context.take()
            && pool.decompressors.len() < KEPT
        {
            context.reset(false);
            pool.decompressors.push(context);
        }
        Ok(())
    }
}

fn inflate(
    context: &mut Decompress,
    mut part: &[u8],
    message: &mut Vec<u8>,
    limit: usize,
    has_ended: &mut bool,
) -> Result<(), InflateError> {
    loop {
        if *has_ended && !part.is_empty() {
            // Data after a final block is a new stream.
            context.reset(false);
            *has_ended = false;
        }
        let before = context.total_in();
        // Make room for what is probably needed, up to one byte more than the limit. At least double the buffer, so
        // that it is moved only a few times.
        let room_max = limit.saturating_sub(message.len()).saturating_add(1);
        let needed = (part.len() * 3).clamp(1, 64 << 10).min(room_max);
        if message.capacity() - message.len() < needed {
            message.reserve_exact(needed.max(512).max(message.len()).min(room_max));
        }
        let status = context
            .decompress_vec(part, message, FlushDecompress::Sync)
            .map_err(|_| InflateError::Invalid)?;
        let taken = (context.total_in() - before) as usize;
        part = &part[taken..];
        if message.len() > limit {
            return Err(InflateError::TooLong);
        }
        if status == Status::StreamEnd {
            *has_ended = true;
            if part.is_empty() {
                return Ok(());
            }
        } else if message.len() < message.capacity() {
            // zlib's manual, inflate(): with room left in the output, it has processed all of the input.
            return if part.is_empty() {
                Ok(())
            } else {
                Err(InflateError::Invalid)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(offers: &str, config: &Deflate) -> Option<String> {
        negotiate(offers.as_bytes(), config)
            .expect("well-formed")
            .map(|negotiated| {
                let mut value = Vec::new();
                negotiated.write(&mut value);
                let value = String::from_utf8(value).unwrap();
                value.replacen("permessage-deflate", "", 1)
            })
    }

    /// Settings that leave everything to the client.
    fn generous() -> Deflate {
        Deflate {
            server_context_takeover: true,
            client_context_takeover: true,
            server_window_bits: 15,
            client_window_bits: 15,
            ..Deflate::default()
        }
    }

    #[test]
    fn the_first_offer_that_is_possible_is_accepted() {
        for (offers, expected) in [
            ("permessage-deflate", Some("")),
            ("x-webkit-deflate-frame", None),
            ("x;a=b;c=\"d\" , permessage-deflate", Some("")),
            (
                "permessage-deflate; server_no_context_takeover",
                Some("; server_no_context_takeover"),
            ),
            (
                "permessage-deflate;client_no_context_takeover",
                Some("; client_no_context_takeover"),
            ),
            ("permessage-deflate; client_max_window_bits", Some("")),
            (
                "permessage-deflate; client_max_window_bits=10",
                Some("; client_max_window_bits=10"),
            ),
            (
                "permessage-deflate; client_max_window_bits=\"10\"",
                Some("; client_max_window_bits=10"),
            ),
            (
                "permessage-deflate; client_max_window_bits=8",
                Some("; client_max_window_bits=8"),
            ),
            (
                "permessage-deflate; server_max_window_bits=9",
                Some("; server_max_window_bits=9"),
            ),
            // zlib cannot do 8, so the next offer counts.
            ("permessage-deflate; server_max_window_bits=8", None),
            (
                "permessage-deflate; server_max_window_bits=8, permessage-deflate; server_max_window_bits=11",
                Some("; server_max_window_bits=11"),
            ),
            // RFC 7692, section 7.1: decline these.
            ("permessage-deflate; unknown", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=7", None),
            ("permessage-deflate; server_max_window_bits=010", None),
            ("permessage-deflate; client_max_window_bits=0", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            (
                "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
                None,
            ),
            (
                "permessage-deflate; client_max_window_bits; client_max_window_bits",
                None,
            ),
        ] {
            let found = accepted(offers, &generous());
            assert_eq!(found.as_deref(), expected, "{offers}");
        }
    }

    #[test]
    fn the_server_can_ask_for_less() {
        let config = Deflate {
            server_window_bits: 12,
            client_window_bits: 11,
            ..Deflate::default()
        };
        let least =
            "; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=12";
        for (offers, expected) in [
            ("permessage-deflate", least.to_owned()),
            (
                "permessage-deflate; client_max_window_bits",
                format!("{least}; client_max_window_bits=11"),
            ),
            (
                "permessage-deflate; client_max_window_bits=9",
                format!("{least}; client_max_window_bits=9"),
            ),
        ] {
            assert_eq!(accepted(offers, &config), Some(expected));
        }
    }

    #[test]
    fn malformed_offers_are_told() {
        for wrong in [
            "",
            ",",
            "a,",
            "a,,b",
            "a;",
            "a;;b",
            "a;b=",
            "a b",
            "a;b=c d",
            "a;b=\"c",
            "a;b=\"\"",
            "a;b=\"c d\"",
            "a;b=\"c\\",
            "a=b",
            "a/b",
            "é",
        ] {
            assert_eq!(negotiate(wrong.as_bytes(), &generous()), Err(()), "{wrong}");
        }
    }

    /// Decompresses a message that consists of `parts`.
    fn inflated(
        inflater: &mut Inflater,
        parts: &[&[u8]],
        limit: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let mut pool = Pool::default();
        let mut message = Vec::new();
        for part in parts {
            inflater.inflate(part, &mut message, limit, &mut pool)?;
        }
        inflater.finish(&mut message, limit, &mut pool)?;
        Ok(message)
    }

    fn negotiated(config: &Deflate) -> Negotiated {
        negotiate(b"permessage-deflate; client_max_window_bits", config)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn the_examples_of_rfc_7692_are_read() {
        let hello = b"Hello".to_vec();
        let one = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        // Section 7.2.3.1, in one frame and in two.
        let mut inflater = Inflater::new(negotiated(&generous()));
        assert_eq!(inflated(&mut inflater, &[one], 5), Ok(hello.clone()));
        let mut inflater = Inflater::new(negotiated(&generous()));
        assert_eq!(
            inflated(&mut inflater, &[&one[..3], &one[3..]], 5),
            Ok(hello.clone())
        );
        // Section 7.2.3.2: with the context of the message before.
        assert_eq!(
            inflated(&mut inflater, &[b"\xf2\x00\x11\x00\x00"], 5),
            Ok(hello.clone())
        );
        // Section 7.2.3.3: a block that is not compressed.
        assert_eq!(
            inflated(
                &mut inflater,
                &[b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00"],
                5
            ),
            Ok(hello.clone())
        );
        // Section 7.2.3.4: a final block, and another message after it.
        for _ in 0..2 {
            assert_eq!(
                inflated(&mut inflater, &[b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00"], 5),
                Ok(hello.clone())
            );
        }
        // The same without the byte after the final block.
        for _ in 0..2 {
            assert_eq!(
                inflated(&mut inflater, &[b"\xf3\x48\xcd\xc9\xc9\x07\x00"], 5),
                Ok(hello.clone())
            );
        }
        // Section 7.2.3.5: two blocks.
        assert_eq!(
            inflated(
                &mut inflater,
                &[b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00"],
                5
            ),
            Ok(hello)
        );
    }

    #[test]
    fn messages_are_not_decompressed_beyond_the_limit() {
        let mut pool = Pool::default();
        let mut deflater = Deflater::new(negotiated(&generous()));
        let zeros = vec![0; 10 << 20];
        deflater.compress(&zeros, &mut pool).unwrap();
        assert!(pool.output.len() < zeros.len() / 20);
        for limit in [0, 1, 1000, zeros.len() - 1] {
            let mut inflater = Inflater::new(negotiated(&generous()));
            let mut message = Vec::new();
            let result = inflater.inflate(&pool.output, &mut message, limit, &mut Pool::default());
            assert_eq!(result, Err(InflateError::TooLong));
            assert!(message.capacity() <= limit + 1);
        }
        let mut inflater = Inflater::new(negotiated(&generous()));
        assert_eq!(
            inflated(&mut inflater, &[&pool.output], zeros.len()),
            Ok(zeros)
        );
    }

    #[test]
    fn a_message_in_many_small_pieces_is_moved_rarely() {
        // Data that cannot be compressed, so that each byte of input gives about one of output.
        let mut state = 1_u32;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(200_000)
        .collect();
        let mut pool = Pool::default();
        Deflater::new(negotiated(&generous()))
            .compress(&data, &mut pool)
            .unwrap();
        let compressed = std::mem::take(&mut pool.output);
        let mut inflater = Inflater::new(negotiated(&generous()));
        let (mut message, mut moves) = (Vec::new(), 0);
        for byte in &compressed {
            let before = message.capacity();
            inflater
                .inflate(&[*byte], &mut message, data.len(), &mut pool)
                .unwrap();
            moves += usize::from(message.capacity() != before);
        }
        inflater
            .finish(&mut message, data.len(), &mut pool)
            .unwrap();
        assert_eq!(message, data);
        assert!(message.capacity() <= data.len() + 1);
        assert!(moves <= 20, "{moves}");
    }

    /// The context stays as it is.
    #[test]
    fn a_message_without_data_is_empty() {
        let first = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        let second = b"\xf2\x00\x11\x00\x00";
        for empty in [&[][..], &[&b""[..]], &[b"", b""], &[b"\x00"]] {
            let mut inflater = Inflater::new(negotiated(&generous()));
            assert_eq!(inflated(&mut inflater, empty, 0), Ok(Vec::new()));
            let hello = Ok(b"Hello".to_vec());
            assert_eq!(inflated(&mut inflater, &[first], 100), hello);
            assert_eq!(inflated(&mut inflater, empty, 0), Ok(Vec::new()));
            assert_eq!(inflated(&mut inflater, &[second], 100), hello);
        }
    }

    #[test]
    fn what_is_not_deflated_is_refused() {
        for wrong in [&b"\xFF\xFF\xFF\xFF"[..], b"\x07", b"\x00\x05\x00\x00\x00"] {
            let mut inflater = Inflater::new(negotiated(&generous()));
            assert_eq!(
                inflated(&mut inflater, &[wrong], 100),
                Err(InflateError::Invalid),
                "{wrong:x?}"
            );
        }
    }

    #[test]
    fn contexts_are_kept_by_their_connection_or_by_the_pool() {
        let text = b"the same words, the same words, and the same words again".repeat(4);
        for takeover in [false, true] {
            for bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
                let config = Deflate {
                    server_context_takeover: takeover,
                    client_context_takeover: takeover,
                    server_window_bits: bits,
                    client_window_bits: bits,
                    ..Deflate::default()
                };
                let mut pool = Pool::default();
                let mut deflater = Deflater::new(negotiated(&config));
                let mut inflater = Inflater::new(negotiated(&config));
                let mut lengths = Vec::new();
                for _ in 0..3 {
                    deflater.compress(&text, &mut pool).unwrap();
                    lengths.push(pool.output.len());
                    let mut message = Vec::new();
                    let compressed = pool.output.clone();
                    inflater
                        .inflate(&compressed, &mut message, text.len(), &mut pool)
                        .unwrap();
                    inflater
                        .finish(&mut message, text.len(), &mut pool)
                        .unwrap();
                    assert_eq!(message, text);
                }
                // With context takeover, a repeated message is only a reference to the first.
                assert_eq!(lengths[1] < lengths[0], takeover, "{lengths:?}");
                assert_eq!(deflater.context.is_some(), takeover);
                assert_eq!(inflater.context.is_some(), takeover);
                assert_eq!(pool.compressors[place(bits)].len(), usize::from(!takeover));
                assert_eq!(pool.decompressors.len(), usize::from(!takeover));
            }
        }
    }
}
