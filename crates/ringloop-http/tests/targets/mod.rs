//! The bodies of the fuzz targets, which are also run by the tests.

// Each test uses only some of these.
#![allow(dead_code)]

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod hyper_server;
pub(crate) mod tls;
pub(crate) mod websocket;

/// Cuts `input` into pieces of pseudo-random lengths.
pub(crate) fn pieces(input: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = seed | 1;
    let mut rest = input;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Most of them are short, so that many states are cut.
        let longest = [1, 2, 5, 40, 1000][(random >> 32) as usize % 5];
        let length = (1 + (random as usize >> 8) % longest).min(rest.len());
        let (piece, others) = rest.split_at(length);
        pieces.push(piece);
        rest = others;
    }
    pieces
}
