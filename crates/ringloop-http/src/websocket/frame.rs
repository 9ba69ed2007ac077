//! Frames (RFC 6455, section 5).

/// The longest payload of a control frame, in bytes.
pub(super) const CONTROL_BYTES_MAX: usize = 125;

pub(super) const FIN: u8 = 0x80;
pub(super) const RSV1: u8 = 0x40;
const RSV: u8 = 0x70;
const MASKED: u8 = 0x80;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    pub(super) fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The head of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) opcode: Opcode,
    pub(super) fin: bool,
    /// RSV1.
    pub(super) compressed: bool,
    pub(super) mask: [u8; 4],
    pub(super) length: u64,
}

/// The length of the frame head at the start of `bytes`. 2 if there are fewer bytes than that.
pub(super) fn head_length(bytes: &[u8]) -> usize {
    let Some(second) = bytes.get(1) else {
        return 2;
    };
    let extended = match second & !MASKED {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + extended + if second & MASKED == 0 { 0 } else { 4 }
}

/// Parses `bytes`, the complete head of a client's frame. The error says what is wrong.
pub(super) fn parse_head(bytes: &[u8]) -> Result<Head, &'static str> {
    let (first, second) = (bytes[0], bytes[1]);
    if first & RSV & !RSV1 != 0 {
        return Err("reserved bits set");
    }
    let opcode = Opcode::from_bits(first & 0x0F).ok_or("invalid opcode")?;
    if second & MASKED == 0 {
        return Err("frame not masked");
    }
    let (extended, mask) = bytes[2..].split_at(bytes.len() - 2 - 4);
    let number = extended
        .iter()
        .fold(0, |number, &byte| number << 8 | u64::from(byte));
    let length = match extended.len() {
        0 => u64::from(second & !MASKED),
        // RFC 6455, section 5.2: the length must be encoded in as few bytes as possible.
        2 if number <= 125 => return Err("frame length encoded in too many bytes"),
        8 if number <= 0xFFFF => return Err("frame length encoded in too many bytes"),
        8 if number >> 63 != 0 => return Err("invalid frame length"),
        _ => number,
    };
    let fin = first & FIN != 0;
    if opcode.is_control() && (!fin || length > CONTROL_BYTES_MAX as u64) {
        return Err("control frame fragmented or too long");
    }
    let compressed = first & RSV1 != 0;
    if compressed && (opcode.is_control() || opcode == Opcode::Continuation) {
        return Err("reserved bits set");
    }
    let mut head = Head {
        opcode,
        fin,
        compressed,
        mask: [0; 4],
        length,
    };
    head.mask.copy_from_slice(mask);
    Ok(head)
}

/// The head of a server's frame, which is never masked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerHead {
    bytes: [u8; 10],
    length: u8,
}

impl ServerHead {
    pub(super) fn new(first: u8, payload: usize) -> Self {
        let mut bytes = [0; 10];
        bytes[0] = first;
        let length = match payload {
            0..=125 => {
                bytes[1] = payload as u8;
                2
            }
            126..=0xFFFF => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&(payload as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = 127;
                bytes[2..].copy_from_slice(&(payload as u64).to_be_bytes());
                10
            }
        };
        ServerHead { bytes, length }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A complete control frame to send.
#[derive(Clone, Copy, Debug)]
pub struct ControlFrame {
    bytes: [u8; 2 + CONTROL_BYTES_MAX],
    length: u8,
}

impl ControlFrame {
    /// `parts` are the payload. Together they must not exceed [`CONTROL_BYTES_MAX`].
    pub(super) fn new(opcode: Opcode, parts: [&[u8]; 2]) -> Self {
        let mut frame = ControlFrame {
            bytes: [0; 2 + CONTROL_BYTES_MAX],
            length: 2,
        };
        for part in parts {
            let start = usize::from(frame.length);
            frame.bytes[start..start + part.len()].copy_from_slice(part);
            frame.length += part.len() as u8;
        }
        frame.bytes[0] = FIN | opcode as u8;
        frame.bytes[1] = frame.length - 2;
        frame
    }

    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Unmasks a part of a payload, after the first `before` bytes.
pub(super) fn unmask(payload: &mut [u8], mut mask: [u8; 4], before: u64) {
    mask.rotate_left((before % 4) as usize);
    let [a, b, c, d] = mask;
    // The compiler vectorizes this loop.
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = payload.chunks_exact_mut(8);
    for eight in &mut words {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(eight);
        eight.copy_from_slice(&(u64::from_ne_bytes(bytes) ^ word).to_ne_bytes());
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmasking_is_the_same_in_any_pieces() {
        let plain: Vec<u8> = (0..100).collect();
        let mask = [0x12, 0x34, 0x56, 0x78];
        let masked: Vec<u8> = plain
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        for length in 0..=plain.len() {
            for cut in 0..=length {
                let mut payload = masked[..length].to_vec();
                let (first, second) = payload.split_at_mut(cut);
                unmask(first, mask, 0);
                unmask(second, mask, cut as u64);
                assert_eq!(payload, plain[..length]);
            }
        }
        let mut payload = *b"a";
        unmask(&mut payload, mask, u64::MAX);
        assert_eq!(payload, [b'a' ^ mask[3]]);
    }

    #[test]
    fn lengths_are_written_in_as_few_bytes_as_possible() {
        for (payload, expected) in [
            (0, &b"\x82\x00"[..]),
            (125, b"\x82\x7D"),
            (126, b"\x82\x7E\x00\x7E"),
            (65535, b"\x82\x7E\xFF\xFF"),
            (65536, b"\x82\x7F\x00\x00\x00\x00\x00\x01\x00\x00"),
        ] {
            assert_eq!(ServerHead::new(0x82, payload).as_slice(), expected);
        }
    }

    #[test]
    fn heads_are_read_or_refused() {
        let mask = b"\x01\x02\x03\x04";
        let parse = |start: &[u8]| {
            let bytes = [start, mask].concat();
            assert_eq!(head_length(&bytes), bytes.len());
            parse_head(&bytes)
        };
        let head = Head {
            opcode: Opcode::Binary,
            fin: true,
            compressed: false,
            mask: *mask,
            length: 0,
        };
        for (start, length) in [
            (&b"\x82\x80"[..], 0),
            (b"\x82\xFD", 125),
            (b"\x82\xFE\x00\x7E", 126),
            (b"\x82\xFE\xFF\xFF", 65535),
            (b"\x82\xFF\x00\x00\x00\x00\x00\x01\x00\x00", 65536),
            (b"\x82\xFF\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF", u64::MAX >> 1),
        ] {
            assert_eq!(parse(start), Ok(Head { length, ..head }));
        }
        for wrong in [
            // RSV2, RSV3, and RSV1 in the wrong frames.
            &b"\xA2\x80"[..],
            b"\x92\x80",
            b"\xC0\x80",
            b"\xC9\x80",
            // Reserved opcodes.
            b"\x83\x80",
            b"\x87\x80",
            b"\x8B\x80",
            b"\x8F\x80",
            // Fragmented control frames, and too long ones.
            b"\x08\x80",
            b"\x09\x80",
            b"\x89\xFE\x00\x7E",
            // Lengths in too many bytes, and one with the highest bit set.
            b"\x82\xFE\x00\x7D",
            b"\x82\xFF\x00\x00\x00\x00\x00\x00\xFF\xFF",
            b"\x82\xFF\x80\x00\x00\x00\x00\x00\x00\x00",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:x?}");
        }
        assert!(parse_head(b"\x82\x05").is_err());
        assert_eq!(head_length(b""), 2);
        assert_eq!(head_length(b"\x82"), 2);
        assert_eq!(head_length(b"\x82\x7E"), 4);
    }
}
