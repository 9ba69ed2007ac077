//! Small servers whose behaviour is known, and the generator as a process.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ringlab-load");

/// Serves each connection on a thread of its own, until the test ends. `serve` gets the connection and its number, in the order of
/// accepting; its errors end the connection, as the generator may close it at any time.
pub(crate) fn server(
    serve: impl Fn(TcpStream, usize) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || serve(stream, number));
        }
    });
    address
}

/// A server of messages of `size` bytes: each is changed by `answer`, which gets the connection's number and the message's, and sent
/// back as far as that is something.
pub(crate) fn message_server(
    size: usize,
    answer: impl Fn(usize, usize, &mut Vec<u8>) -> Answer + Send + Sync + 'static,
) -> SocketAddr {
    server(move |mut stream, connection| {
        for number in 0.. {
            let mut message = vec![0; size];
            stream.read_exact(&mut message)?;
            let what = answer(connection, number, &mut message);
            let piece = match what {
                Answer::Dawdle => 1,
                _ => size.max(message.len()),
            };
            for piece in message.chunks(piece) {
                stream.write_all(piece)?;
                if matches!(what, Answer::Dawdle) {
                    thread::sleep(std::time::Duration::from_millis(100));
                }
            }
            match what {
                Answer::Sent | Answer::Dawdle => {}
                Answer::Close => return Ok(()),
                Answer::Reset => {
                    socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO))?;
                    return Ok(());
                }
                Answer::Hang => loop {
                    thread::park();
                },
            }
        }
        Ok(())
    })
}

/// The next step of a server that has sent its answer, or a part of it, or nothing.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Sent,
    Close,
    Reset,
    Hang,
    /// It sends its answer byte by byte, ten per second.
    Dawdle,
}

/// Sends back everything as it comes, after `change` has seen it.
pub(crate) fn echo(mut stream: impl Read + Write, change: impl Fn(&mut [u8])) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        change(&mut buffer[..bytes]);
        stream.write_all(&buffer[..bytes])?;
    }
}

/// Sends back everything as it comes.
pub(crate) fn echo_server() -> SocketAddr {
    server(|stream, _| echo(stream, |_| ()))
}

pub(crate) const RIGHT_RESPONSE: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";

/// Answers each request (up to its empty line) with what `answer` makes for the connection's and the request's number.
pub(crate) fn http_server(
    answer: impl Fn(usize, usize) -> (String, Answer) + Send + Sync + 'static,
) -> SocketAddr {
    server(move |mut stream, connection| {
        let mut received = Vec::new();
        for number in 0.. {
            loop {
                if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                    received.drain(..end + 4);
                    break;
                }
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    bytes => received.extend_from_slice(&buffer[..bytes]),
                }
            }
            let (response, what) = answer(connection, number);
            stream.write_all(response.as_bytes())?;
            match what {
                Answer::Close => return Ok(()),
                Answer::Hang => loop {
                    thread::park();
                },
                Answer::Sent | Answer::Reset | Answer::Dawdle => {}
            }
        }
        Ok(())
    })
}

/// Runs the generator to its end. Unless a test is about it, a server of a test may answer late, on a busy machine.
pub(crate) fn run(workload: &str, address: impl Display, options: &[&str]) -> Output {
    let patience: &[&str] = if options.contains(&"--timeout") {
        &[]
    } else {
        &["--timeout", "60"]
    };
    Command::new(PROGRAM)
        .arg(workload)
        .args(["--address", &address.to_string()])
        .args(patience)
        .args(options)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs the generator, which must have measured; returns its events.
pub(crate) fn events(workload: &str, address: impl Display, options: &[&str]) -> Vec<Value> {
    events_of(&run(workload, address, options))
}

pub(crate) fn events_of(output: &Output) -> Vec<Value> {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert_eq!(stderr, "");
    stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs the generator, which must have measured; returns its result.
pub(crate) fn result(workload: &str, address: impl Display, options: &[&str]) -> Value {
    let result = events(workload, address, options).pop().unwrap();
    assert_eq!(result["event"], "result");
    result
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The result has no other failures than `count` of this kind, whose first one says `words`.
pub(crate) fn assert_only_failure(result: &Value, kind: &str, count: u64, words: &str) {
    let errors = result["errors"].as_object().unwrap();
    let kinds: Vec<_> = errors.keys().collect();
    assert_eq!(kinds, [kind], "{result}");
    assert_eq!(errors[kind]["count"], count, "{result}");
    let first = errors[kind]["first"].as_str().unwrap();
    assert!(first.contains(words), "{first}");
}

pub(crate) fn assert_flawless(result: &Value) {
    assert_eq!(result["errors"], serde_json::json!({}), "{result}");
    assert!(result["void"].is_null(), "{result}");
    assert!(result["operations"].as_u64().unwrap() > 0, "{result}");
}

/// Whether this process runs this test only. If not, it is run in a process of its own, and must pass there: it is about the process of
/// the server with its children, and the generators that other tests run would be children that come and go.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "RINGLAB_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(ALONE, "yes")
        .status();
    assert!(status.unwrap().success());
    false
}

/// Runs the generator, which must have measured something, and met no failure; returns its result. A busy machine may leave a server
/// no time in a short window: it is tried again with one that is twice as long.
pub(crate) fn flawless(workload: &str, address: impl Display, options: &[&str]) -> Value {
    let at = options
        .iter()
        .position(|option| *option == "--window")
        .expect("its length is given")
        + 1;
    let mut window_s: f64 = options[at].parse().unwrap();
    loop {
        let window = window_s.to_string();
        let mut options = options.to_vec();
        options[at] = &window;
        let result = result(workload, &address, &options);
        if result["void"] != "nothing was answered in the window" || window_s > 60.0 {
            assert_flawless(&result);
            return result;
        }
        window_s *= 2.0;
    }
}

/// The histogram that a result has under `latency.name` (with --hdr).
pub(crate) fn histogram(result: &Value, name: &str) -> Histogram<u64> {
    let encoded = result["latency"][name]["hdr"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .unwrap();
    Deserializer::new().deserialize(&mut &bytes[..]).unwrap()
}
