//! The settings and limits of a connection.

/// The settings and limits of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The flow-control window of a stream in bytes: how much of a request's body can wait for the application.
    /// Default: 65,535, as in RFC 9113, section 6.9.2.
    pub stream_window_bytes: u32,
    /// The flow-control window of the connection in bytes, for all streams together. If it is less than
    /// `concurrent_streams` windows of streams, bodies that nobody takes can keep the others from arriving. Default:
    /// 128 windows of streams, 8 MiB.
    pub connection_window_bytes: u32,
    /// The size of a request's fields in bytes, with 32 bytes added for each (RFC 9113, section 6.5.2). Default: 64
    /// KiB.
    pub header_list_bytes: u32,
    /// The number of fields of a request. Cookies count as one. More get a 431. Default: 128.
    pub fields: usize,
    /// The number of concurrent streams. Default: 128.
    pub concurrent_streams: u32,
    /// Whether requests for WebSockets are accepted (RFC 8441), and the client is told so. Otherwise they are malformed, as
    /// those for other protocols always are. Default: no.
    pub websocket: bool,
    /// The number of requests after which the client is asked to open a new connection, by GOAWAY. Default: 1,000.
    pub requests: u64,
    /// How many streams a client can reset at once. Malformed requests and trailers count, too. Default: 200.
    pub resets: u32,
    /// How many more streams a client can reset per second. Default: 50.
    pub resets_per_s: u32,
    /// How many other control frames (PING, SETTINGS, PRIORITY, GOAWAY and unknown frames) a client can send at once.
    /// Default: 1,000.
    pub control_frames: u32,
    /// How many more control frames a client can send per second. Default: 200.
    pub control_frames_per_s: u32,
    /// How many WINDOW_UPDATE frames a client can send at once, besides two for each DATA frame and one for each 256 bytes
    /// that were sent to it. Default: 10,000.
    pub window_updates: u32,
    /// How many more WINDOW_UPDATE frames a client can send per second. Default: 5,000.
    pub window_updates_per_s: u32,
    /// How many DATA frames that are empty or may consist of padding, and do not end a request, a client can send at
    /// once. Default: 20,000.
    pub empty_data_frames: u32,
    /// How many more of these DATA frames a client can send per second. Default: 10,000.
    pub empty_data_frames_per_s: u32,
    /// How many streams the `h2` crate refuses or resets, because the client violates the protocol, before it ends the
    /// connection. Default: 256.
    pub error_resets: usize,
    /// How many bytes of output are produced before [`Connection::take_output`](super::Connection::take_output) must be called. Default: 64 KiB.
    pub output_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            stream_window_bytes: (64 << 10) - 1,
            connection_window_bytes: 128 * ((64 << 10) - 1),
            header_list_bytes: 64 << 10,
            fields: 128,
            concurrent_streams: 128,
            websocket: false,
            requests: 1_000,
            resets: 200,
            resets_per_s: 50,
            control_frames: 1_000,
            control_frames_per_s: 200,
            window_updates: 10_000,
            window_updates_per_s: 5_000,
            empty_data_frames: 20_000,
            empty_data_frames_per_s: 10_000,
            error_resets: 256,
            output_bytes: 64 << 10,
        }
    }
}
