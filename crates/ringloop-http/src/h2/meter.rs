//! Counts the frames that a client sends, by their kinds.

use super::config::Config;

/// The length of a frame head in bytes (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// The length of the client's preface in bytes (RFC 9113, section 3.4).
const PREFACE: u64 = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// A padded DATA frame with at most this payload, in bytes, may consist of padding only.
const PADDING_MAX: u64 = 256;
/// Bytes that must have been sent for each WINDOW_UPDATE frame of a client. Clients send two, for the stream and
/// for the connection, for what they have read: Go's for each 4 KiB, others for what one segment has brought, which has 536
/// bytes or more (RFC 9293, section 3.7.1).
const BYTES_PER_UPDATE: u64 = 256;
/// WINDOW_UPDATE frames that may follow from each DATA frame, however small it is: for its stream, and for the
/// connection.
const UPDATES_PER_FRAME: u64 = 2;

/// A limit for a kind of frames: how many at once, and how many per second (a token bucket).
#[derive(Debug)]
struct Allowance {
    burst: u32,
    per_s: u32,
    /// In thousandths of a frame.
    left: u64,
    then_ms: u64,
}

impl Allowance {
    fn new(burst: u32, per_s: u32) -> Self {
        Allowance {
            burst,
            per_s,
            left: u64::from(burst) * 1000,
            then_ms: 0,
        }
    }

    /// Counts a frame. Returns whether it is within the limit.
    fn take(&mut self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.then_ms);
        self.then_ms = self.then_ms.max(now_ms);
        self.left = self
            .left
            .saturating_add(since_ms.saturating_mul(u64::from(self.per_s)))
            .min(u64::from(self.burst) * 1000);
        match self.left.checked_sub(1000) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// Finds the heads of frames, which come in pieces.
#[derive(Debug)]
struct Heads {
    head: [u8; HEAD],
    length: usize,
    /// The number of bytes before the next head.
    skip: u64,
}

impl Heads {
    fn new(skip: u64) -> Self {
        Heads {
            head: [0; HEAD],
            length: 0,
            skip,
        }
    }

    /// The kind and the flags of the next frame, if its head is complete. `skip` then is the length of its payload.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<(u8, u8)> {
        let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
        *bytes = &bytes[skipped..];
        self.skip -= skipped as u64;
        let length = bytes.len().min(HEAD - self.length);
        self.head[self.length..self.length + length].copy_from_slice(&bytes[..length]);
        self.length += length;
        *bytes = &bytes[length..];
        if self.length < HEAD {
            return None;
        }
        self.length = 0;
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skip = u64::from(u32::from_be_bytes([0, high, middle, low]));
        Some((kind, flags))
    }
}

/// Reads the heads of frames, and counts them.
#[derive(Debug)]
pub(super) struct Meter {
    received: Heads,
    written: Heads,
    /// Whether the last frame was a part of a header block, and whether it was the last part.
    is_block: bool,
    ends_block: bool,
    resets: Allowance,
    control_frames: Allowance,
    window_updates: Allowance,
    /// Bytes that were sent, or count as sent, and that no WINDOW_UPDATE frame has been counted for.
    sent: u64,
    empty_data_frames: Allowance,
}

impl Meter {
    pub(super) fn new(config: &Config) -> Self {
        Meter {
            received: Heads::new(PREFACE),
            written: Heads::new(0),
            is_block: false,
            ends_block: false,
            resets: Allowance::new(config.resets, config.resets_per_s),
            control_frames: Allowance::new(config.control_frames, config.control_frames_per_s),
            window_updates: Allowance::new(config.window_updates, config.window_updates_per_s),
            sent: 0,
            empty_data_frames: Allowance::new(
                config.empty_data_frames,
                config.empty_data_frames_per_s,
            ),
        }
    }

    /// Whether a header block has begun and is not complete.
    pub(super) fn is_in_head(&self) -> bool {
        self.is_block && !(self.ends_block && self.received.skip == 0)
    }

    /// Counts a reset that the server had to send. Returns whether it is within the limit for the client's own resets.
    pub(super) fn count_reset(&mut self, now_ms: u64) -> bool {
        self.resets.take(now_ms)
    }

    /// Counts bytes that were sent.
    ///
    /// Each DATA frame counts, also those that the client's window has cut a piece of a body into. A client that gives room
    /// for each frame as it comes may get smaller and smaller ones: its window gives out within a piece, and what it gives
    /// room for next ends within another.
    pub(super) fn count_sent(&mut self, mut bytes: &[u8]) {
        let mut earned = bytes.len() as u64;
        while let Some((kind, _)) = self.written.next(&mut bytes) {
            if kind == DATA && self.written.skip > 0 {
                earned += UPDATES_PER_FRAME * BYTES_PER_UPDATE;
            }
        }
        self.sent = self.sent.saturating_add(earned);
    }

    /// Counts a WINDOW_UPDATE frame. Returns whether it is within the limit, or follows from what was sent.
    fn take_window_update(&mut self, now_ms: u64) -> bool {
        match self.sent.checked_sub(BYTES_PER_UPDATE) {
            Some(sent) => {
                self.sent = sent;
                true
            }
            None => self.window_updates.take(now_ms),
        }
    }

    /// Counts the frames in `bytes`. Returns whether they are within the limits.
    pub(super) fn count(&mut self, mut bytes: &[u8], now_ms: u64) -> bool {
        while let Some((kind, flags)) = self.received.next(&mut bytes) {
            let length = self.received.skip;
            self.is_block = matches!(kind, HEADERS | CONTINUATION);
            self.ends_block = flags & END_HEADERS != 0;
            let is_allowed = match kind {
                RST_STREAM => self.resets.take(now_ms),
                WINDOW_UPDATE => self.take_window_update(now_ms),
                DATA if flags & END_STREAM == 0
                    && (length == 0 || (flags & PADDED != 0 && length <= PADDING_MAX)) =>
                {
                    self.empty_data_frames.take(now_ms)
                }
                // These have their own limits.
                DATA | HEADERS | CONTINUATION => true,
                _ => self.control_frames.take(now_ms),
            };
            if !is_allowed {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![
            0,
            (payload >> 8) as u8,
            payload as u8,
            kind,
            flags,
            0,
            0,
            0,
            1,
        ];
        frame.resize(HEAD + payload, kind);
        frame
    }

    /// The index of the first of 20 frames that exceeds a limit.
    fn first_refused(kind: u8, flags: u8, payload: usize, step: usize) -> Option<usize> {
        let config = Config {
            resets: 3,
            control_frames: 5,
            window_updates: 7,
            empty_data_frames: 9,
            ..Config::default()
        };
        let mut meter = Meter::new(&config);
        assert!(meter.count(&[0; PREFACE as usize], 0));
        (0..20).find(|_| {
            let frame = frame(kind, flags, payload);
            !frame.chunks(step).all(|piece| meter.count(piece, 0))
        })
    }

    #[test]
    fn frames_are_counted_by_their_kind() {
        for step in [1, 4, 1000] {
            for (kind, flags, expected) in [
                (RST_STREAM, 0, Some(3)),
                // SETTINGS and PING, and their acknowledgements; PRIORITY, PUSH_PROMISE, GOAWAY, PRIORITY_UPDATE,
                // unknown.
                (4, 0, Some(5)),
                (4, 1, Some(5)),
                (6, 0, Some(5)),
                (6, 1, Some(5)),
                (2, 0, Some(5)),
                (5, 0, Some(5)),
                (7, 0, Some(5)),
                (16, 0, Some(5)),
                (200, 0, Some(5)),
                (WINDOW_UPDATE, 0, Some(7)),
                // DATA, HEADERS, CONTINUATION.
                (0, 0, None),
                (1, 4, None),
                (9, 4, None),
            ] {
                assert_eq!(
                    first_refused(kind, flags, 300, step),
                    expected,
                    "{kind} by {step}"
                );
            }
            for (flags, payload, expected) in [
                (0, 0, Some(9)),
                (0, 1, None),
                (PADDED, 256, Some(9)),
                (PADDED, 257, None),
                (END_STREAM, 0, None),
            ] {
                assert_eq!(first_refused(DATA, flags, payload, step), expected);
            }
        }
    }

    #[test]
    fn what_was_sent_may_be_answered_by_window_updates() {
        let config = Config {
            window_updates: 7,
            ..Config::default()
        };
        let update = frame(WINDOW_UPDATE, 0, 4);
        for step in [1, 4, 1000] {
            // Two for each DATA frame that is not empty, and one for each 256 bytes: 5 frames have 45 bytes more.
            let sent = [
                frame(HEADERS, END_HEADERS, 3 * 256 - 45),
                frame(DATA, 0, 255),
                frame(4, 0, 0),
                frame(DATA, 0, 1),
                frame(DATA, END_STREAM, 0),
            ]
            .concat();
            let mut meter = Meter::new(&config);
            assert!(meter.count(&[0; PREFACE as usize], 0));
            for piece in sent.chunks(step) {
                meter.count_sent(piece);
            }
            assert_eq!(
                (0..20).find(|_| !meter.count(&update, 0)),
                Some(2 + 2 + 4 + 7)
            );
        }
    }

    #[test]
    fn header_blocks_are_followed_to_their_end() {
        let mut meter = Meter::new(&Config::default());
        let mut is_in_head_after = |bytes: &[u8]| {
            assert!(meter.count(bytes, 0));
            meter.is_in_head()
        };
        assert!(!is_in_head_after(&[0; PREFACE as usize]));
        assert!(!is_in_head_after(&frame(4, 0, 6)));
        // One frame, in two pieces.
        let whole = frame(HEADERS, END_HEADERS | END_STREAM, 10);
        assert!(is_in_head_after(&whole[..15]));
        assert!(!is_in_head_after(&whole[15..]));
        // Several frames.
        assert!(is_in_head_after(&frame(HEADERS, END_STREAM, 10)));
        assert!(is_in_head_after(&frame(CONTINUATION, 0, 0)));
        assert!(!is_in_head_after(&frame(CONTINUATION, END_HEADERS, 0)));
        assert!(!is_in_head_after(&frame(DATA, 0, 10)[..12]));
    }

    #[test]
    fn what_was_used_up_comes_back_with_time() {
        let mut allowance = Allowance::new(2, 10);
        let mut take = |now_ms| allowance.take(now_ms);
        assert!(take(0) && take(0) && !take(0));
        assert!(!take(99));
        assert!(take(100) && !take(100));
        // Not more than the burst.
        assert!(take(1_000_000) && take(1_000_000) && !take(1_000_000));
        // A clock that goes backwards adds nothing.
        assert!(!take(5));
        assert!(take(u64::MAX));
    }
}
