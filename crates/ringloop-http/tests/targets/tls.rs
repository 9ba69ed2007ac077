//! Where TLS records end: the same must be found however the stream is cut, and nothing must be taken for a record that is none.
//!
//! The module is one of ringloop-python, whose tests need Python. It stands alone, so it is tested here.

#[path = "../../../ringloop-python/src/tls/records.rs"]
mod records;

use records::Records;

use super::pieces;

/// Finds the end of each complete record in `stream`, and whether something else than a record follows them.
fn ends_of(stream: &[u8]) -> (Vec<usize>, bool) {
    let mut ends = Vec::new();
    let mut start = 0;
    while let Some(&[kind, major, minor, high, low]) = stream.get(start..start + 5) {
        let len = usize::from(high) << 8 | usize::from(low);
        // RFC 8446, 5.1, RFC 5246, 6.2.3, and RFC 6520 (24, heartbeats). OpenSSL accepts 320 bytes beyond the plaintext.
        let is_record = (20..=24).contains(&kind) && major == 3 && minor <= 4;
        if !is_record || len == 0 || len > (1 << 14) + 320 {
            return (ends, true);
        }
        start += 5 + len;
        if start > stream.len() {
            break;
        }
        ends.push(start);
    }
    (ends, false)
}

/// Eight bytes that say how to cut, then the stream. OpenSSL takes some of it after each piece.
pub(crate) fn records(input: &[u8]) {
    let Some((seed, stream)) = input.split_first_chunk() else {
        return;
    };
    let seed = u64::from_le_bytes(*seed);
    let mut records = Records::new();
    let (mut arrived, mut taken, mut settled) = (0, 0, 0);
    for (number, piece) in pieces(stream, seed).into_iter().enumerate() {
        records.follow(piece);
        arrived += piece.len();
        let choice = seed.rotate_left(7 * number as u32) as usize;
        if choice & 1 == 0 {
            taken += (choice >> 8) % (arrived - taken + 1);
        }
        let pending = (arrived - taken) as u64;
        let (ends, is_lost) = ends_of(&stream[..arrived]);
        let last_end = ends.last().copied().unwrap_or(0);
        assert_eq!(records.beyond_complete(), (arrived - last_end) as u64);
        if is_lost {
            assert!(records.is_any_complete(pending));
            assert_eq!(records.only_complete(pending), None);
            assert_eq!(records.unread(pending), pending);
            continue;
        }
        let left = ends.iter().filter(|end| **end > taken).count();
        assert_eq!(records.is_any_complete(pending), left > 0);
        let before_last = ends.iter().rev().nth(1).copied().unwrap_or(0);
        assert_eq!(
            records.only_complete(pending),
            (left == 1).then_some(last_end - before_last)
        );
        assert_eq!(
            records.unread(pending),
            pending.min((arrived - settled) as u64)
        );
        if choice & 2 == 0 {
            records.settle();
            settled = arrived;
        }
    }
    records.lose_track();
    assert!(records.is_any_complete(0));
}
