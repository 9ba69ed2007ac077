//! The settings of a server's WebSockets.

use super::deflate::Deflate;

/// The settings of a server's WebSockets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The size of the largest message to receive, in bytes, after decompression. A larger one ends the connection with
    /// 1009, as soon as its size is known. Default: 16 MiB.
    pub message_bytes: usize,
    /// How to compress messages, with clients that support it. `None` turns compression off. Default: on.
    pub deflate: Option<Deflate>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            message_bytes: 16 << 20,
            deflate: Some(Deflate::default()),
        }
    }
}
