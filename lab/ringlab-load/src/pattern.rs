//! The bytes of echo frames. Each frame contains the numbers of its connection and message. The rest is determined by a seed.
//!
//! A frame of `size` bytes is a header of 16 bytes and filler. The header is an 8-byte mark, which is a hash of seed, connection
//! and sequence, then the connection's number and the frame's sequence number (4 bytes each, little-endian). The filler is a part
//! of a fixed sequence of random bytes, chosen by the mark. So successive frames differ everywhere, and a frame costs no more
//! than writing 16 bytes. Frames shorter than 16 bytes consist of the beginning of the header.

use std::fmt;
use std::io::{self, Write};

use crate::failure::{Failure, Kind};

const HEADER_BYTES: usize = 16;
/// The number of different starting points in the filler. A prime, so that regular sequences of numbers use many of them.
const VARIANTS: usize = 4093;
/// How many bytes are sent at once, if several frames are due.
const TOGETHER_BYTES: usize = 64 * 1024;

/// The bytes of all frames of a run.
#[derive(Debug)]
pub(crate) struct Pattern {
    seed: u64,
    size: usize,
    filler: Vec<u8>,
    /// Where several frames are assembled.
    together: Vec<u8>,
}

/// The identity of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) connection: u32,
    pub(crate) sequence: u32,
}

impl fmt::Display for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            sequence,
        } = self;
        write!(formatter, "connection {connection}, message {sequence}")
    }
}

/// Frames that are to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsent {
    pub(crate) first: Frame,
    /// How many bytes of the first are sent already.
    pub(crate) position: usize,
    pub(crate) count: usize,
}

/// Where bytes that came differ first from the right ones.
pub(crate) fn difference(came: &[u8], right: &[u8]) -> usize {
    let differs = |(came, right): (&u8, &u8)| came != right;
    came.iter().zip(right).position(differs).unwrap_or(0)
}

/// A bijection on 64 bits whose results look random (splitmix64's finalizer, by Sebastiano Vigna, in the public domain).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Pattern {
    /// Frames of `size` bytes (at least one).
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let filler = (0..(size + VARIANTS).div_ceil(8) as u64)
            .flat_map(|word| mix(seed ^ mix(word)).to_le_bytes())
            .collect();
        Self {
            seed,
            size,
            filler,
            together: Vec::new(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn mark(&self, frame: Frame) -> u64 {
        let number = (u64::from(frame.connection) << 32) | u64::from(frame.sequence);
        mix(self.seed ^ mix(number))
    }

    /// The header, and where the filler begins.
    fn header(&self, frame: Frame) -> ([u8; HEADER_BYTES], usize) {
        let mark = self.mark(frame);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&mark.to_le_bytes());
        header[8..12].copy_from_slice(&frame.connection.to_le_bytes());
        header[12..].copy_from_slice(&frame.sequence.to_le_bytes());
        (header, (mark % VARIANTS as u64) as usize)
    }

    /// Writes frames in one call. Returns how many bytes were written.
    pub(crate) fn write(&mut self, mut to: impl Write, unsent: Unsent) -> io::Result<usize> {
        let Unsent {
            first,
            position,
            count,
        } = unsent;
        if count == 1 || self.size >= TOGETHER_BYTES {
            return self.with_frame(first, |frame| to.write(&frame[position..]));
        }
        let mut together = std::mem::take(&mut self.together);
        together.clear();
        let count = count.min((TOGETHER_BYTES + position).div_ceil(self.size));
        for index in 0..count as u32 {
            let frame = Frame {
                sequence: first.sequence.wrapping_add(index),
                ..first
            };
            self.with_frame(frame, |frame| together.extend_from_slice(frame));
        }
        let result = to.write(&together[position..]);
        self.together = together;
        result
    }

    /// Provides a frame in one piece: its header temporarily replaces a part of the filler.
    pub(crate) fn with_frame<R>(&mut self, frame: Frame, show: impl FnOnce(&[u8]) -> R) -> R {
        let (header, offset) = self.header(frame);
        let length = HEADER_BYTES.min(self.size);
        let mut covered = [0; HEADER_BYTES];
        covered[..length].copy_from_slice(&self.filler[offset..offset + length]);
        self.filler[offset..offset + length].copy_from_slice(&header[..length]);
        let result = show(&self.filler[offset..offset + self.size]);
        self.filler[offset..offset + length].copy_from_slice(&covered[..length]);
        result
    }

    /// Whether `received` are the bytes at `position` of a frame.
    pub(crate) fn check(
        &mut self,
        frame: Frame,
        position: usize,
        received: &[u8],
    ) -> Result<(), Failure> {
        let (header, offset) = self.header(frame);
        let header = &header[..HEADER_BYTES.min(self.size)];
        let in_header = header.len().saturating_sub(position).min(received.len());
        let (first, rest) = received.split_at(in_header);
        let at = offset + position + in_header;
        if first == &header[position.min(header.len())..][..in_header]
            && rest == &self.filler[at..at + rest.len()]
        {
            return Ok(());
        }
        Err(self.explain(frame, position, received))
    }

    /// Describes what is wrong with received bytes.
    #[cold]
    fn explain(&mut self, frame: Frame, position: usize, received: &[u8]) -> Failure {
        let size = self.size;
        let (at, expected) = self.with_frame(frame, |right| {
            let at = difference(received, &right[position..]);
            (at, right[position + at])
        });
        let came = match self.recognize(received) {
            Some(other) if position == 0 => format!(
                "; what came begins as message {} of connection {}",
                other.sequence, other.connection
            ),
            _ => String::new(),
        };
        let words = format!(
            "wrong echo on {frame}: byte {} of {size} is 0x{:02x}, 0x{expected:02x} was sent{came}",
            position + at,
            received[at],
        );
        Failure::new(Kind::Mismatch, words)
    }

    /// The frame that received bytes begin with, if it is one of this run.
    fn recognize(&self, received: &[u8]) -> Option<Frame> {
        let (mark, rest) = received.split_first_chunk()?;
        let (connection, rest) = rest.split_first_chunk()?;
        let (sequence, _) = rest.split_first_chunk()?;
        let frame = Frame {
            connection: u32::from_le_bytes(*connection),
            sequence: u32::from_le_bytes(*sequence),
        };
        (u64::from_le_bytes(*mark) == self.mark(frame)).then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(connection: u32, sequence: u32) -> Frame {
        Frame {
            connection,
            sequence,
        }
    }

    fn bytes_of(pattern: &mut Pattern, which: Frame) -> Vec<u8> {
        pattern.with_frame(which, <[u8]>::to_vec)
    }

    #[test]
    fn a_frame_passes_in_any_pieces_and_no_other_frame_does() {
        for size in [1, 7, 8, 15, 16, 17, 1024, 70_000] {
            let mut pattern = Pattern::new(7, size);
            let sent = bytes_of(&mut pattern, frame(3, 9));
            assert_eq!(sent.len(), size);
            for split in [0, 1, 8, 15, 16, 17, size / 2, size] {
                let split = split.min(size);
                pattern.check(frame(3, 9), 0, &sent[..split]).unwrap();
                pattern.check(frame(3, 9), split, &sent[split..]).unwrap();
            }
            assert!(size < 8 || pattern.check(frame(3, 10), 0, &sent).is_err());
            assert!(size < 8 || pattern.check(frame(4, 9), 0, &sent).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_found_at_its_byte() {
        let mut pattern = Pattern::new(1, 100);
        let sent = bytes_of(&mut pattern, frame(0, 1));
        for position in 0..100 {
            let mut received = sent.clone();
            received[position] ^= 0x10;
            let failure = pattern.check(frame(0, 1), 0, &received).unwrap_err();
            assert_eq!(failure.kind, Kind::Mismatch);
            assert!(
                failure.message.contains(&format!("byte {position} of 100")),
                "{failure}"
            );
        }
    }

    #[test]
    fn another_connections_frame_is_named() {
        let mut pattern = Pattern::new(1, 64);
        let sent = bytes_of(&mut pattern, frame(5, 17));
        let failure = pattern.check(frame(4, 16), 0, &sent).unwrap_err();
        assert!(
            failure
                .message
                .ends_with("what came begins as message 17 of connection 5"),
            "{failure}"
        );
    }

    #[test]
    fn frames_written_together_are_the_frames_one_by_one() {
        for size in [1, 11, 1000, 64 * 1024, 100_000] {
            let mut pattern = Pattern::new(3, size);
            let whole: Vec<u8> = (u32::MAX - 1..=u32::MAX)
                .chain(0..3)
                .flat_map(|sequence| bytes_of(&mut pattern, frame(2, sequence)))
                .collect();
            let mut written = Vec::new();
            while written.len() < whole.len() {
                let (index, position) = (written.len() / size, written.len() % size);
                let unsent = Unsent {
                    first: frame(2, (u32::MAX - 1).wrapping_add(index as u32)),
                    position,
                    count: 5 - index,
                };
                let before = written.len();
                let bytes = pattern.write(&mut written, unsent).unwrap();
                assert_eq!(written.len(), before + bytes);
                assert!(bytes > 0);
            }
            assert!(written == whole, "frames of {size} bytes");
        }
    }
}
