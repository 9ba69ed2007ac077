//! The command line.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use socket2::SockAddr;

use crate::endpoint::Endpoint;
use crate::link;
use crate::settings::Settings;
use crate::system;
use crate::windows::Windows;

const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (debug)")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (release)")
};

/// The timeout of the connections that find out on which address of a name a server listens.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum size of a message, in bytes.
const SIZE_MAX: u64 = 256 * 1024 * 1024;
/// The maximum size of a datagram on IPv4, in bytes: 65,535 less the heads of IP and UDP.
const DATAGRAM_MAX: usize = 65_507;
/// The maximum size of the message that a stream repeats, in bytes.
const STREAM_MESSAGE_MAX: usize = 64 * 1024;
/// How often the expected body may be repeated.
const TIMES_MAX: u64 = 1024 * 1024;
/// The maximum rate of requests per second: far more than a server answers, but the generator can still count them.
const RATE_MAX: f64 = 1e7;

const RESULT_HELP: &str = "\
The result:
  void          null, or why the figures are meaningless: a wrong byte came back, or nothing did
  window_s      the length of the measurement in seconds; all figures are over exactly this time
  operations    frames, requests or messages that were answered correctly; and operations_per_s
  bytes_in/_out payload received and sent, in bytes
  latency       service: from sending a request to the whole answer (--churn: from opening the
                connection); corrected (open loop): from when it should have been sent; cold (rtt):
                first messages. Each {count, mean_ns, min_ns, p50_ns, ..., p999_ns, max_ns, hdr},
                with three significant digits
  errors        {kind: {count, first}}, where first describes the first one; empty without errors.
                Kinds: connect, handshake, reset, closed, half_answer, timeout, lost (a datagram
                without an echo within --timeout), mismatch, unexpected, status, malformed, other
  connections   asked, opened, reopened, alive_at_end, opening_s, and connect (latencies)
  fairness      operations per connection: min, p5, median, p95, max, and Jain's index (1: all
                equal)
  streams       (echo --mode stream) outstanding_bytes_max: the maximum that was sent on a
                connection and had not come back; held_back: how often sending stopped on a
                connection, because outstanding_bytes_most was reached, until half had come back;
                reads and writes: calls in the window that received or sent something.
                (discard) counted_bytes: what the server has counted, over the whole run
  levels        (--idle with --steps) the memory of the server's processes after each step:
                connections, rss_bytes, pss_bytes. The slope over the connections is what one costs
  littles_law   requests in flight: in_flight_average is rate times latency, expected is counted;
                their ratio is 1, or the figures contradict each other
  open_loop     due: requests of the window; unfinished: those that were never answered, which
                count in corrected with the time that they waited; send_lateness: how late
                requests were sent on free connections, which is the generator's own delay
  client        cpu_ns, and busy_fraction: the part of the time in which the generator did
                anything but wait. Above 0.67 it could not have sent half as much load again:
                then the rate is not limited by the server alone
  server        with --account: cpu_ns of all threads and child processes, including ended ones
                and kernel threads that work for them; user_ns and system_ns (in steps of 10 ms);
                context switches; threads; memory at rest, with connections and at the end;
                processes
  ceiling       (ceiling) operations_per_s if the generator were busy all the time
  beside        (http --beside) connections, and how many of their requests were answered
  windows       (--windows-on-stdin) each window: seconds, operations, and with --account the
                server's cpu_ns. All other figures are over all windows together. rest_s: how long the
                connections rested between them, and in server rest_cpu_ns: what that cost
and interrupted, ended_early, options, schema_version, workload.

Example: 50 connections for 5 s, on CPU 1, with the cost of the server:
  ringlab-load http --address 127.0.0.1:8080 --cpu 1 --account $(pgrep -o myserver)
Each workload has its own help: ringlab-load http --help";

const EXAMPLES: &str = "\
Examples:
  ringlab-load echo --address 127.0.0.1:5050 --connections 100 --size 16384 --window 10
  ringlab-load echo --address 127.0.0.1:5050 --mode stream --message 'hello world'
  ringlab-load echo --address 127.0.0.1:5050 --rate 20000
  ringlab-load echo --address unix:/run/server.sock
  ringlab-load echo --address 127.0.0.1:5050 --tls --certificate server.pem
  ringlab-load echo --address udp:127.0.0.1:5050 --timeout 0.5
  ringlab-load echo --address 127.0.0.1:5050 --churn
  ringlab-load echo --address 127.0.0.1:5050 --idle -c 1000 --steps 10
  ringlab-load discard --address 127.0.0.1:5051 --connections 100 --message 'hello world'
  ringlab-load http --address localhost:8080 --rate 20000 --path /index.html --any-body
  ringlab-load http --address 127.0.0.1:8080 --send 1024 --body 1024
  ringlab-load http --address 127.0.0.1:8080 --http2 --tls
  ringlab-load http --address 127.0.0.1:8080 --beside 16 --beside-path /slow
  ringlab-load http --address 127.0.0.1:8080 --probe
  ringlab-load websocket --address 127.0.0.1:8080 --path /echo --size 1024
  ringlab-load rtt --address 127.0.0.1:5050 --size 64 --cold 200
  ringlab-load ceiling http --cpu 1 --responder-cpu 0

`ringlab-load --help` explains the result.";

/// Loads a server, checks every byte that comes back, and measures throughput, latency, and the cost of the server's processes.
///
/// Prints JSON on stdout, one object per line: events while it runs ("connected", "window_start", "window_end"), and as
/// the last line the "result". Sizes are in bytes, times on the command line in seconds, times in the output in the unit that their names
/// end with (_s, _ns).
///
/// Exit status: 0 if it measured, also if the server made mistakes (they are in the result); 1 if it could not measure (stderr says why);
/// 2 for a wrong command line. Ctrl-C ends a run early and still prints its result, with "interrupted": true.
#[derive(Debug, Parser)]
#[command(name = "ringlab-load", version = VERSION, max_term_width = 120, after_long_help = RESULT_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) workload: Workload,
}

impl Arguments {
    /// The command line. Ends the process if it is wrong or asks for help.
    pub(crate) fn get() -> Self {
        let arguments = Self::parse();
        if let Some(words) = arguments.workload.contradiction() {
            Self::command()
                .error(ErrorKind::ArgumentConflict, words)
                .exit();
        }
        arguments
    }
}

impl Workload {
    /// Why its options contradict each other, if they do in a way of which clap knows nothing.
    fn contradiction(&self) -> Option<String> {
        let (common, name, echo) = match self {
            Self::Echo(echo) => (&echo.common, "echo", Some(echo)),
            Self::Discard(discard) => (&discard.common, "discard", None),
            Self::Http(http) => (&http.common, "http", None),
            Self::Websocket(websocket) => (&websocket.common, "websocket", None),
            Self::Rtt(rtt) => (&rtt.common, "rtt", None),
            Self::Ceiling(_) | Self::Responder(_) => return None,
        };
        let mode_stream = echo.is_some_and(|echo| echo.mode == Mode::Stream);
        let connecting = echo.map(|echo| echo.connecting.clone()).unwrap_or_default();
        let of_connections = [
            ("--churn", connecting.churn),
            ("--idle", connecting.idle),
            ("--tls", connecting.tls),
        ];
        let of_messages = [
            ("--pipeline", common.measuring.pipeline > 1),
            ("--rate", connecting.rate.is_some()),
        ];
        let mut given = Vec::new();
        let words = match &common.address.endpoint {
            Endpoint::Unix(_) if name == "discard" => {
                return Some(
                    "discard counts what the server's kernel has acknowledged, which a Unix socket can't tell: use HOST:PORT"
                        .to_owned(),
                );
            }
            Endpoint::Udp(_) => {
                let Some(echo) = echo else {
                    return Some(format!(
                        "{name} needs connections, and UDP has none: use HOST:PORT"
                    ));
                };
                if common.measuring.pipeline > 1 {
                    return Some("with UDP, each socket has one datagram in flight: use more --connections instead of --pipeline".to_owned());
                }
                if echo.size.size > DATAGRAM_MAX {
                    return Some(format!(
                        "a datagram has at most {DATAGRAM_MAX} bytes: ask for a smaller --size"
                    ));
                }
                given.push(("--mode stream", mode_stream));
                given.extend(of_connections);
                "is for connections, and UDP has none: leave it out"
            }
            _ if mode_stream => {
                given.extend(of_messages);
                given.extend(of_connections);
                "is for messages, and a stream has none: leave it out, or use --mode framed"
            }
            _ if name == "discard" => {
                given.extend(of_messages);
                "is for messages, and a stream has none: leave it out"
            }
            _ => "",
        };
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            return Some(format!("{option} {words}"));
        }
        (common.windows_on_stdin && (mode_stream || name == "discard"))
            .then(|| "--windows-on-stdin is for messages, and a stream has none".to_owned())
    }
}

/// The workload to run.
#[derive(Debug, Serialize, Subcommand)]
#[serde(tag = "workload", rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Messages that an echo server sends back, on many connections: framed and checked, or endless streams
    ///
    /// A frame carries the number of its connection, its sequence number and seeded random bytes; each connection sends the next one
    /// when it has received the whole echo (closed loop). A single wrong byte ends the run and voids it. An operation is one frame.
    ///
    /// With UDP a frame is a datagram, and each connection a socket of its own. A datagram without an echo within --timeout is lost: it counts
    /// in "errors", and a new socket sends the next one.
    #[command(after_long_help = EXAMPLES)]
    Echo(Echo),

    /// Endless streams that a server reads and throws away, on many connections
    ///
    /// After the window the generator ends each stream (shutdown(2)), and the server must answer with the number of bytes that it has received
    /// on the connection, in decimal digits and with a line feed. A wrong number, or anything that comes earlier, voids the run. An operation
    /// is one --message. Counted is what the server's kernel has acknowledged in the window, not what lies in this machine's buffers.
    #[command(after_long_help = EXAMPLES)]
    Discard(Discard),

    /// Requests to an HTTP server: as many as it can answer, or at a fixed rate; or a probe of its parser; or idle connections
    ///
    /// Without --rate each connection sends its next request when it has received the whole response (closed loop). This shows the
    /// server's capacity. With --rate requests are due at instants that are evenly distributed over time and connections (open loop), whether
    /// the server keeps up or not. "corrected" latencies then count from these instants, so that a server that stalls is charged
    /// for all requests that had to wait (free of coordinated omission); "service" latencies count from when a request was sent.
    #[command(after_long_help = EXAMPLES)]
    Http(Http),

    /// Messages that a WebSocket server sends back, on many connections
    ///
    /// Each connection is upgraded, without extensions, and then sends a masked binary message when the echo of the previous one has
    /// come (closed loop). The messages are those of `echo`, and every byte is checked.
    #[command(after_long_help = EXAMPLES)]
    Websocket(WebSocket),

    /// Round trips of one message at a time on one connection, and separately the first message of fresh connections
    ///
    /// The fresh connections come first, one after another: connect, one message, close ("cold"). Then one connection sends messages
    /// during the warm-up and the window, each after the echo of the previous one. Every byte is checked.
    #[command(after_long_help = EXAMPLES)]
    Rtt(Rtt),

    /// The generator's own maximum, against a minimal responder that runs on CPUs of its own and never sleeps
    ///
    /// An answer costs the responder about as much as a request costs the generator, so the responder may limit the rate. Therefore
    /// "ceiling" in the result is the rate that the generator would reach if it were busy all the time, at the same cost per operation.
    #[command(after_long_help = EXAMPLES)]
    Ceiling(Ceiling),

    /// The responder of `ceiling`, on a free port of 127.0.0.1. It ends when its stdin ends
    #[serde(skip)]
    Responder(Responder),
}

/// How any load is made and measured.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Measuring {
    /// Connections to open [default: 50, rtt: 1]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: Option<u32>,

    /// Requests in flight on each connection (not for streams)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pipeline: u32,

    /// Seconds of load before anything is counted
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    #[serde(rename = "warm_up_s", serialize_with = "as_seconds")]
    pub(crate) warm_up: Duration,

    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_positive_seconds)]
    #[serde(rename = "window_s", serialize_with = "as_seconds")]
    pub(crate) window: Duration,

    /// CPU for the generator [default: any]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,

    /// Microseconds to poll for events before sleeping; 0: sleep at once
    ///
    /// Waking a sleeping generator costs a local server CPU time, and the more often, the slower it answers. This cost is not the server's
    /// own and differs between servers. So the generator sleeps only when nothing has come for a while.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100)]
    pub(crate) spin_us: u32,

    /// Include the latency histograms in the result, in HdrHistogram's compressed V2 format, as base64
    #[arg(long)]
    pub(crate) hdr: bool,
}

/// The options that all loads of a server have in common.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Common {
    /// Server to load, as in 127.0.0.1:8080, [::1]:8080 or localhost:8080; for a Unix stream socket as in unix:/run/server.sock, and for UDP
    /// (echo) as in udp:127.0.0.1:5050
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    pub(crate) address: Address,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) measuring: Measuring,

    /// Seconds over which the connections are opened, evenly, at most 8000 per second
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    #[serde(rename = "ramp_s", serialize_with = "as_seconds")]
    pub(crate) ramp: Duration,

    /// Connect and warm up, and then measure a window of --window seconds for each line on stdin, until stdin ends (closed loop)
    ///
    /// Between windows the connections rest, and nothing is in flight. A window ends when everything is answered, and costs the server all
    /// that it did for it. Generators of several servers can so take turns, with all of these servers alive.
    #[arg(long, conflicts_with = "max_operations")]
    pub(crate) windows_on_stdin: bool,

    /// Seconds after which an answer, a datagram or a connection counts as lost
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_positive_seconds)]
    #[serde(rename = "timeout_s", serialize_with = "as_seconds")]
    pub(crate) timeout: Duration,

    /// Ends the window early when this many operations (or a few more) are counted [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_operations: Option<u64>,

    /// Seed of the bytes that are sent, and of the order in which connections are used
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Process of the server: its CPU time and memory, with those of its descendants, are in the result. May be given several times [default: none]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) account: Vec<i32>,

    /// Process that adopts what the server's processes leave behind (PR_SET_CHILD_SUBREAPER). With --account, all that is below it counts
    /// as well, but not the process itself
    #[arg(long, value_name = "PID", requires = "account", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) account_below: Option<i32>,
}

/// The size of messages.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub(crate) struct Size {
    /// Bytes of each echoed message (not for streams and http)
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = RangedU64ValueParser::<usize>::new().range(1..=SIZE_MAX))]
    #[serde(rename = "size_bytes")]
    pub(crate) size: usize,
}

/// The data that an echo server is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Frames, each sent after the echo of the previous one
    Framed,
    /// --message repeated, as fast as the server takes it. An operation is one such message; there are no latencies
    Stream,
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Echo {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) size: Size,

    /// The data to send
    #[arg(long, value_enum, default_value_t = Mode::Framed)]
    pub(crate) mode: Mode,

    /// The text that a stream repeats
    #[arg(long, value_name = "TEXT", default_value = "hello world", value_parser = parse_message)]
    pub(crate) message: String,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) connecting: Connecting,
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Discard {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,

    /// The text that a stream repeats
    #[arg(long, value_name = "TEXT", default_value = "hello world", value_parser = parse_message)]
    pub(crate) message: String,
}

/// When messages or requests are sent, and the use of connections.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub(crate) struct Connecting {
    /// Messages or requests per second, over all connections, whether the server keeps up or not (open loop) [default: closed loop]
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate, conflicts_with = "windows_on_stdin")]
    #[serde(rename = "rate_per_s")]
    rate: Option<f64>,

    /// Speak TLS 1.3
    #[arg(long)]
    pub(crate) tls: bool,

    /// File in PEM with the certificate that the server must show [default: any will do]
    #[arg(long, value_name = "FILE", requires = "tls")]
    certificate: Option<PathBuf>,

    /// Send one message or request on each connection, close it, and open another one in its place. An operation is the whole cycle, from
    /// opening the connection to its whole answer. It is closed by a reset (SO_LINGER of 0), so that nothing stays in TIME_WAIT
    #[arg(long, conflicts_with_all = ["idle", "rate", "pipeline", "windows_on_stdin"])]
    churn: bool,

    /// Send one message or request on each connection, before the warm-up, and nothing in the window. The result shows what memory the
    /// connections cost (--account)
    #[arg(long, conflicts_with_all = ["rate", "windows_on_stdin"])]
    idle: bool,

    /// With --idle: open the connections in this many equal steps, and read the memory after each ("levels" in the result)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, requires = "idle",
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    steps: u32,
}

impl Connecting {
    /// Puts these options into the settings of a run. `protocol` is what ALPN asks for.
    pub(crate) fn apply(
        &self,
        settings: &mut Settings,
        protocol: Option<&str>,
    ) -> anyhow::Result<()> {
        settings.rate = self.rate;
        settings.churn = self.churn;
        settings.idle = self.idle;
        settings.steps = self.steps.min(settings.connections);
        if !self.tls {
            return Ok(());
        }
        let read = |path: &PathBuf| {
            CertificateDer::from_pem_file(path).with_context(|| {
                format!(
                    "there is no certificate in {} (--certificate)",
                    path.display()
                )
            })
        };
        let certificate = self.certificate.as_ref().map(read).transpose()?;
        settings.tls = Some(link::tls(protocol, certificate).context("TLS can't be set up")?);
        Ok(())
    }
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Http {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,

    /// Path to ask for
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = parse_path)]
    pub(crate) path: String,

    /// Header to send with each request, as in 'Accept: text/html'; may be given several times [default: Host alone, from --address]
    #[arg(long, value_name = "HEADER", value_parser = parse_header)]
    pub(crate) header: Vec<String>,

    /// Method of each request, except HEAD and CONNECT, whose answers have no body [default: GET, or POST with a body]
    #[arg(long, value_name = "METHOD", value_parser = parse_method)]
    pub(crate) method: Option<String>,

    /// Body of each request [default: none]
    #[arg(long, value_name = "TEXT", conflicts_with = "send")]
    pub(crate) data: Option<String>,

    /// Send POST requests with a body of this size [default: GET, without a body]
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true, value_parser = RangedU64ValueParser::<usize>::new().range(0..=SIZE_MAX))]
    #[serde(rename = "send_bytes")]
    pub(crate) send: usize,

    /// Status that each response must have
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    pub(crate) status: u16,

    /// Body that each response must have
    #[arg(long, value_name = "TEXT", default_value = "Hello, World!")]
    pub(crate) body: String,

    /// Text that each response's body must contain, whatever else is in it
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["body", "any_body", "http2"])]
    pub(crate) contains: Option<String>,

    /// The body is this many times --body
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "any_body", value_parser = RangedU64ValueParser::<usize>::new().range(1..=TIMES_MAX))]
    pub(crate) times: usize,

    /// Header that each response must have, as in 'Content-Type: text/html'; may be given several times
    #[arg(long, value_name = "HEADER", value_parser = parse_field, conflicts_with = "http2")]
    pub(crate) expect_header: Vec<(String, String)>,

    /// Accept any body
    #[arg(long, conflicts_with = "body")]
    pub(crate) any_body: bool,

    /// Speak HTTP/2, with --pipeline streams at a time on each connection; with prior knowledge, unless with --tls. GET requests only
    #[arg(long, conflicts_with_all = ["send", "data", "method", "status", "header", "idle", "churn"])]
    pub(crate) http2: bool,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) connecting: Connecting,

    /// Extra connections that request --beside-path again and again, during warm-up and window. They are not measured: use them to see how slow
    /// requests affect the measured ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with_all = ["http2", "tls", "idle", "windows_on_stdin"])]
    pub(crate) beside: Option<u32>,

    /// Path that the connections of --beside request
    #[arg(long, value_name = "PATH", default_value = "/", requires = "beside", value_parser = parse_path)]
    pub(crate) beside_path: String,

    /// Don't measure. Find out whether the server parses requests or sends a canned answer, and print the answers. Uses only --address,
    /// --path and --timeout
    #[arg(long, conflicts_with = "rate")]
    #[serde(skip)]
    pub(crate) probe: bool,
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct WebSocket {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) size: Size,

    /// Path to connect to
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = parse_path)]
    pub(crate) path: String,
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Rtt {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) size: Size,

    /// Fresh connections that send one message each, before the measurement
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) cold: u32,
}

/// The protocol of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// Frames of --size bytes, sent back as they come
    Echo,
    /// GET requests with a fixed answer
    Http,
}

#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Ceiling {
    /// The protocol to load the responder with
    #[arg(value_enum)]
    pub(crate) protocol: Protocol,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) measuring: Measuring,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) size: Size,

    /// CPUs for the responder, with a thread on each. Use others than for the generator (--cpu) [default: one thread]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) responder_cpu: Vec<usize>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Responder {
    /// Protocol to speak
    #[arg(value_enum)]
    pub(crate) protocol: Protocol,

    /// CPUs to run on, with a thread on each
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpu: Vec<usize>,
}

impl Ceiling {
    /// The same options for a load of the server at `socket`.
    pub(crate) fn common(&self, socket: SocketAddr, pid: i32) -> Common {
        Common {
            address: Address {
                name: socket.to_string(),
                endpoint: Endpoint::Tcp(socket),
            },
            measuring: self.measuring.clone(),
            ramp: Duration::ZERO,
            windows_on_stdin: false,
            timeout: Duration::from_secs(5),
            max_operations: None,
            seed: 1,
            account: vec![pid],
            account_below: None,
        }
    }
}

impl Common {
    /// The settings of a run with this load.
    pub(crate) fn settings(&self, connections_default: u32) -> Settings {
        let measuring = &self.measuring;
        Settings {
            endpoint: self.address.endpoint.clone(),
            connections: measuring.connections.unwrap_or(connections_default),
            pipeline: measuring.pipeline,
            cpu: measuring.cpu,
            ramp_ns: system::ns(self.ramp),
            windows: self.windows_on_stdin.then(Windows::from_stdin),
            warm_up_ns: system::ns(measuring.warm_up),
            window_ns: system::ns(measuring.window),
            rate: None,
            tls: None,
            idle: false,
            steps: 0,
            churn: false,
            max_operations: self.max_operations,
            timeout_ns: system::ns(self.timeout),
            seed: self.seed,
            spin_ns: u64::from(measuring.spin_us) * 1000,
            account: self.account.clone(),
            account_below: self.account_below,
            beside: None,
            hdr: measuring.hdr,
        }
    }
}

/// Where the server is.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The address as it was given, with the port; what requests call the server. A Unix socket is called localhost.
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.endpoint)
    }
}

fn parse_address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(
                "the path of the socket is missing, as in unix:/run/server.sock".to_owned(),
            );
        }
        SockAddr::unix(path).map_err(|error| format!("no socket can have this path: {error}"))?;
        return Ok(Address {
            name: "localhost".to_owned(),
            endpoint: Endpoint::Unix(PathBuf::from(path)),
        });
    }
    let (udp, place) = match text.strip_prefix("udp:") {
        Some(place) => (true, place),
        None => (false, text),
    };
    let addresses: Vec<SocketAddr> = place
        .to_socket_addrs()
        .map_err(|error| format!("{error}; write it as HOST:PORT, for example 127.0.0.1:5050"))?
        .collect();
    // Nothing answers to a mere attempt at UDP.
    let found = if udp {
        addresses.first().copied()
    } else {
        first_that_answers(&addresses)
    };
    let socket = found.ok_or_else(|| format!("'{text}' has no address"))?;
    if socket.port() == 0 {
        return Err("the port must be the one that the server listens on, not 0".to_owned());
    }
    Ok(Address {
        name: text.to_owned(),
        endpoint: if udp {
            Endpoint::Udp(socket)
        } else {
            Endpoint::Tcp(socket)
        },
    })
}

/// A name may have several addresses, and the server may listen on only one of them. Returns the first that accepts a connection, or the
/// first of all if none does.
fn first_that_answers(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, NAME_TIMEOUT).is_ok();
    let found = match addresses {
        [] | [_] => None,
        several => several.iter().find(answers),
    };
    found.or(addresses.first()).copied()
}

fn parse_message(text: &str) -> Result<String, String> {
    match text.len() {
        1..=STREAM_MESSAGE_MAX => Ok(text.to_owned()),
        _ => Err(format!("it must have 1 to {STREAM_MESSAGE_MAX} bytes")),
    }
}

fn parse_field(text: &str) -> Result<(String, String), String> {
    let header = parse_header(text)?;
    let (name, value) = header.split_once(':').unwrap_or((&header, ""));
    Ok((name.to_owned(), value.trim().to_owned()))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write it as a number of seconds, for example 0.5".to_owned())?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err("it must be from 0 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_positive_seconds(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        Duration::ZERO => Err("it must be more than 0 seconds".to_owned()),
        duration => Ok(duration),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err(format!(
            "it must be a number of requests per second, from 0.001 to {RATE_MAX}"
        )),
    }
}

fn parse_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("it must begin with / and hold neither spaces nor control characters".to_owned())
    }
}

fn parse_method(text: &str) -> Result<String, String> {
    if matches!(text, "" | "HEAD" | "CONNECT")
        || !text.bytes().all(|byte| byte.is_ascii_uppercase())
    {
        return Err("it must be in capitals, as in PUT, and neither HEAD nor CONNECT".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_header(text: &str) -> Result<String, String> {
    if text.contains(':') && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        Ok(text.to_owned())
    } else {
        Err("write it as 'Name: value', in one line".to_owned())
    }
}

fn as_seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn of_several_addresses_the_one_that_is_listened_on_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let right = listener.local_addr().unwrap();
        // All of 127/8 is this machine, and nobody listens there on that port.
        let wrong = SocketAddr::from(([127, 83, 41, 7], right.port()));
        assert_eq!(first_that_answers(&[wrong, right]), Some(right));
        assert_eq!(first_that_answers(&[wrong]), Some(wrong));
        assert_eq!(first_that_answers(&[wrong, wrong]), Some(wrong));
        assert_eq!(first_that_answers(&[]), None);
    }
}
