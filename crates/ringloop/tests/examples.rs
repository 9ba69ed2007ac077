//! The examples, as programs of their own: what they say on the wire, byte by byte, and how they end.

mod common;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{LONG, config, pattern};
use ringloop::Runtime;
use ringloop::driver::BackendChoice;
use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A command for an example, which cargo builds beside the tests.
fn command(example: &str) -> Command {
    // target/PROFILE/deps/examples-HASH
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    let program = folder.join("examples").join(example);
    assert!(
        program.exists(),
        "{} is missing: `cargo test` builds the examples only where it is not told which tests to build; \
         `cargo build -p ringloop --all-features --examples` does",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_remove(ringloop::driver::BACKEND_VARIABLE);
    command
}

/// An example that runs.
struct Program {
    child: Child,
    address: SocketAddr,
    errors: Option<JoinHandle<String>>,
}

impl Program {
    fn start(example: &str, arguments: &[&str]) -> Self {
        let mut child = command(example)
            .args(["--port", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .strip_prefix("listening on ")
            .and_then(|line| line.strip_suffix(", Ctrl-C ends it\n"))
            .unwrap_or_else(|| panic!("{example} says {line:?}"));
        Self {
            child,
            address: address.parse().unwrap(),
            errors: Some(errors),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Asks it to end, looks that it does so properly, and gives what it has said about that.
    fn end(mut self, signal: i32) -> String {
        // SAFETY: a signal, to a child of ours that nobody has waited for.
        let sent = unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        assert_eq!(sent, 0);
        let status = self.wait();
        let said = self.errors.take().unwrap().join().unwrap();
        assert_eq!(status.code(), Some(0), "{status}: {said}");
        assert!(TcpStream::connect(self.address).is_err());
        let name = if signal == libc::SIGINT {
            "SIGINT"
        } else {
            "SIGTERM"
        };
        assert!(
            said.starts_with(&format!("{name}: waiting up to ")),
            "{said}"
        );
        said
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LONG, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a body with the arguments for each backend that is to be had, with one worker and with two, and ends the program by
/// each signal.
fn with_each(example: &str, arguments: &[&str], body: impl Fn(&Program)) {
    for backend in [BackendChoice::IoUring, BackendChoice::Epoll] {
        if let Err(error) = Runtime::new(&config(backend)) {
            assert!(backend == BackendChoice::IoUring, "{error}");
            eprintln!("left out: {error}");
            continue;
        }
        let backend = backend.to_string();
        for (workers, signal) in [("1", libc::SIGINT), ("2", libc::SIGTERM)] {
            let mut all = vec!["--backend", &backend, "--workers", workers];
            all.extend(arguments);
            let program = Program::start(example, &all);
            body(&program);
            program.end(signal);
        }
    }
}

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringloop-examples-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Sends bytes while they come back, and looks at each.
fn echoes(stream: &TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(bytes).unwrap());
        let mut answer = vec![0; bytes.len()];
        (&*stream).read_exact(&mut answer).unwrap();
        assert!(answer == bytes);
    });
}

/// Reads until the peer ends it.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn echo_sends_each_byte_back() {
    with_each("echo", &["--drain-timeout", "0"], |program| {
        let streams: Vec<_> = (0..8).map(|_| program.connect()).collect();
        for (index, stream) in streams.iter().enumerate() {
            echoes(stream, &pattern(1 << (2 * index)));
        }
        let mut one = program.connect();
        one.write_all(&pattern(100_000)).unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        assert!(rest(&mut one) == pattern(100_000));
    });
}

#[test]
fn connections_that_do_not_end_are_waited_for_and_then_closed() {
    let program = Program::start("echo", &["--workers", "2", "--drain-timeout", "1"]);
    let mut stream = program.connect();
    echoes(&stream, b"hello");
    let said = program.end(libc::SIGINT);
    assert_eq!(said, "SIGINT: waiting up to 1 s for 1 connections\nended\n");
    assert_eq!(rest(&mut stream), b"");
}

#[test]
fn tls_echo_sends_each_byte_back_to_who_trusts_it() {
    let made = rcgen::generate_simple_self_signed(["ringloop.test".to_owned()]).unwrap();
    let folder = Folder::new();
    let (certificate, key) = (folder.0.join("certificate.pem"), folder.0.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let arguments = [
        "--certificate",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    with_each("tls_echo", &arguments, |program| {
        let name = "ringloop.test".try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(connection, program.connect());
        let bytes = pattern(100_000);
        for piece in bytes.chunks(30_000) {
            stream.write_all(piece).unwrap();
            let mut answer = vec![0; piece.len()];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer == piece);
        }
    });
    // Without a certificate it makes one that nobody trusts.
    with_each("tls_echo", &[], |program| {
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(connection, program.connect());
        let error = stream.write_all(b"hello").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    });
}

#[test]
fn http_raw_answers_each_request_however_it_arrives() {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
    let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    with_each("http_raw", &[], |program| {
        let mut stream = program.connect();
        let mut answer = vec![0; ANSWER.len()];
        for _ in 0..3 {
            stream.write_all(request).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, ANSWER);
        }
        stream.set_nodelay(true).unwrap();
        for byte in request {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, ANSWER);
        stream.write_all(&request.repeat(100)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut stream), ANSWER.repeat(100));
    });
}

/// An answer over HTTP.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn read(reader: &mut impl BufRead, has_body: bool) -> Self {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head:?}");
        }
        let status = head[9..12].parse().unwrap();
        let mut answer = Self {
            status,
            head,
            body: Vec::new(),
        };
        if let Some(length) = answer.header("content-length").filter(|_| has_body) {
            let length = length.parse().unwrap();
            let read = reader.take(length).read_to_end(&mut answer.body);
            assert_eq!(
                (read.ok(), answer.body.len() as u64),
                (Some(answer.body.len()), length),
                "{}",
                answer.head
            );
        }
        answer
    }
}

/// Asks for something over a connection of its own, and looks that nothing follows the answer.
fn ask(program: &Program, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = program.connect();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut reader = BufReader::new(&mut stream);
    let answer = Answer::read(&mut reader, method != "HEAD");
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    answer
}

#[test]
fn http_hello_greets_and_keeps_the_connection() {
    with_each("http_hello", &["--drain-timeout", "0"], |program| {
        let mut stream = BufReader::new(program.connect());
        for path in ["/", "/other"] {
            write!(
                stream.get_mut(),
                "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"
            )
            .unwrap();
            let answer = Answer::read(&mut stream, true);
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("text/plain"));
            assert_eq!(answer.body, b"Hello, World!");
        }
        let answer = ask(program, "HEAD", "/", "");
        assert_eq!(answer.header("content-length"), Some("13"));
    });
}

#[test]
fn axum_hello_greets_by_name() {
    with_each("axum_hello", &["--drain-timeout", "0"], |program| {
        assert_eq!(ask(program, "GET", "/", "").body, b"Hello, World!\n");
        let answer = ask(program, "GET", "/greet/Ada%20L.", "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, b"Hello, Ada L.!\n");
        assert_eq!(ask(program, "GET", "/nowhere", "").status, 404);
    });
}

/// Somebody in the chat room.
struct Person {
    stream: BufReader<TcpStream>,
}

impl Person {
    fn arrives(program: &Program) -> Self {
        let mut person = Self {
            stream: BufReader::new(program.connect()),
        };
        assert_eq!(person.hears(), "What is your name?");
        person
    }

    /// Arrives under a name, and hears who is there.
    fn joins(program: &Program, name: &str) -> Self {
        let mut person = Self::arrives(program);
        person.says(name);
        assert!(person.hears().starts_with("* Welcome! Here are: "));
        assert_eq!(person.hears(), format!("* {name} has joined."));
        person
    }

    fn says(&self, line: &str) {
        let mut stream = self.stream.get_ref();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert_eq!(line.pop(), Some('\n'), "the room has ended it: {line:?}");
        line
    }

    fn hears_the_end(mut self) {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn the_chat_room_has_one_order_for_everybody() {
    const LINES: usize = 200;
    with_each("chat", &[], |program| {
        let names = ["ada", "bob", "eve", "kim", "lea", "max"];
        let mut people: Vec<_> = names.map(|name| Person::joins(program, name)).into();
        for (index, person) in people.iter_mut().enumerate() {
            for name in &names[index + 1..] {
                assert_eq!(person.hears(), format!("* {name} has joined."));
            }
        }
        let transcripts: Vec<Vec<String>> = thread::scope(|scope| {
            let talking: Vec<_> = people
                .iter_mut()
                .map(|person| {
                    scope.spawn(|| {
                        let stream = person.stream.get_ref().try_clone().unwrap();
                        let mut transcript = Vec::new();
                        // In steps that no queue is too short for, whoever reads last.
                        for step in 0..LINES / 10 {
                            for line in 0..10 {
                                let line = format!("line {}\r\n", step * 10 + line);
                                (&stream).write_all(line.as_bytes()).unwrap();
                            }
                            for _ in 0..10 * names.len() {
                                transcript.push(person.hears());
                            }
                        }
                        transcript
                    })
                })
                .collect();
            let transcripts = talking.into_iter().map(|thread| thread.join().unwrap());
            transcripts.collect()
        });
        for transcript in &transcripts {
            assert_eq!(*transcript, transcripts[0]);
        }
        for name in names {
            let prefix = format!("{name}: line ");
            let lines = transcripts[0].iter();
            let numbers: Vec<usize> = lines
                .filter_map(|line| line.strip_prefix(&prefix)?.parse().ok())
                .collect();
            assert_eq!(numbers, (0..LINES).collect::<Vec<_>>());
        }
        // The room is full of people still, whom the end of the program tells.
    });
}

#[test]
fn the_chat_room_knows_its_rules() {
    with_each("chat", &[], |program| {
        let mut ada = Person::joins(program, "ada");
        let mut bob = Person::arrives(program);
        for name in ["", "a b", "12345678901234567890x", "\u{e4}"] {
            bob.says(name);
            assert_eq!(
                bob.hears(),
                "A name has 1 to 20 letters, digits, - or _; another one?"
            );
        }
        bob.says("ada");
        assert_eq!(bob.hears(), "That name is taken; another one?");
        bob.says("bob\r");
        assert_eq!(bob.hears(), "* Welcome! Here are: ada, bob.");
        assert_eq!(bob.hears(), "* bob has joined.");
        assert_eq!(ada.hears(), "* bob has joined.");
        // Neither empty lines nor escapes reach anybody; half a character does, as a replacement.
        ada.says("");
        ada.says("a\u{1b}[2Jb");
        let broken = [b'x', 0xff, b'\n'];
        ada.stream.get_ref().write_all(&broken).unwrap();
        for person in [&mut ada, &mut bob] {
            assert_eq!(person.hears(), "ada: a[2Jb");
            assert_eq!(person.hears(), "ada: x\u{fffd}");
        }
        ada.says("/who");
        assert_eq!(ada.hears(), "* Here are: ada, bob.");
        // The longest line, and a longer one.
        let longest = "l".repeat(1024);
        bob.says(&longest);
        assert_eq!(ada.hears(), format!("bob: {longest}"));
        assert_eq!(bob.hears(), format!("bob: {longest}"));
        bob.says(&"l".repeat(1025));
        assert_eq!(ada.hears(), "* bob has left.");
        drop(bob);

        let eve = Person::joins(program, "eve");
        assert_eq!(ada.hears(), "* eve has joined.");
        eve.says("/quit");
        eve.hears_the_end();
        assert_eq!(ada.hears(), "* eve has left.");
        // One who has finished sending hears what was said before.
        let mut kim = Person::joins(program, "kim");
        assert_eq!(ada.hears(), "* kim has joined.");
        kim.says("bye");
        kim.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(kim.hears(), "kim: bye");
        kim.hears_the_end();
        assert_eq!(ada.hears(), "kim: bye");
        assert_eq!(ada.hears(), "* kim has left.");
        ada.says("/quit");
        ada.hears_the_end();
    });
}

#[test]
fn the_chat_room_drops_who_reads_too_slowly_and_closes_for_all() {
    for workers in ["1", "2"] {
        let program = Program::start("chat", &["--workers", workers]);
        let mut ada = Person::joins(&program, "ada");
        // Reads nothing from here on.
        let slow = Person::joins(&program, "slow");
        assert_eq!(ada.hears(), "* slow has joined.");
        let line = "x".repeat(1000);
        let mut is_out = false;
        // What sockets may hold for it is some megabytes.
        for _ in 0..100_000 {
            ada.says(&line);
            match ada.hears() {
                said if said == "* slow was too slow, and is out." => {
                    is_out = true;
                    assert_eq!(ada.hears(), format!("ada: {line}"));
                    break;
                }
                said => assert_eq!(said, format!("ada: {line}")),
            }
        }
        if !is_out {
            assert_eq!(ada.hears(), "* slow was too slow, and is out.");
        }
        drop(slow);
        let bob = Person::joins(&program, "bob");
        assert_eq!(ada.hears(), "* bob has joined.");
        program.end(libc::SIGTERM);
        for mut person in [ada, bob] {
            assert_eq!(person.hears(), "* The room closes.");
            person.hears_the_end();
        }
    }
}

#[test]
fn static_files_serves_files_and_parts_of_them() {
    let folder = Folder::new();
    let root = folder.0.join("root");
    fs::create_dir_all(root.join("a folder")).unwrap();
    let big = pattern(3_000_000);
    fs::write(root.join("big.bin"), &big).unwrap();
    fs::write(root.join("page.html"), "<p>page").unwrap();
    fs::write(root.join("empty.css"), "").unwrap();
    fs::write(root.join("a folder/\u{e4} & <b>.txt"), "umlaut").unwrap();
    with_each("static_files", &[root.to_str().unwrap()], |program| {
        let get = |path: &str, headers: &str| ask(program, "GET", path, headers);
        let answer = get("/big.bin", "");
        assert_eq!(answer.status, 200);
        assert!(answer.body == big);
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        let head = ask(program, "HEAD", "/big.bin", "");
        assert_eq!(head.status, 200);
        for name in ["content-length", "content-type", "etag", "last-modified"] {
            assert_eq!(head.header(name), answer.header(name));
        }

        let answer = get("/page.html?query#x", "");
        assert_eq!(answer.body, b"<p>page");
        assert_eq!(
            answer.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(get("/empty.css", "").header("content-length"), Some("0"));
        assert_eq!(
            get("/a%20folder/%C3%A4%20%26%20%3Cb%3E.txt", "").body,
            b"umlaut"
        );

        for (asked, range) in [
            ("0-0", 0..1),
            ("0-", 0..3_000_000),
            ("100000-299999", 100_000..300_000),
            ("2999999-", 2_999_999..3_000_000),
            ("2999990-9999999", 2_999_990..3_000_000),
            ("-5", 2_999_995..3_000_000),
            ("-9999999", 0..3_000_000),
        ] {
            let answer = get("/big.bin", &format!("Range: bytes={asked}\r\n"));
            assert_eq!(answer.status, 206, "{asked}");
            assert!(answer.body == big[range.clone()], "{asked}");
            let content_range = format!("bytes {}-{}/3000000", range.start, range.end - 1);
            assert_eq!(answer.header("content-range"), Some(&*content_range));
        }
        for (path, asked) in [
            ("/big.bin", "3000000-"),
            ("/big.bin", "-0"),
            ("/empty.css", "0-"),
            ("/empty.css", "-0"),
        ] {
            let answer = get(path, &format!("Range: bytes={asked}\r\n"));
            assert_eq!(answer.status, 416);
            let length = if path == "/big.bin" { 3_000_000 } else { 0 };
            let content_range = format!("bytes */{length}");
            assert_eq!(answer.header("content-range"), Some(&*content_range));
            assert_eq!(answer.body, b"");
        }
        // What is no range, or several, is no reason to send less.
        for asked in [
            "bytes=5-2",
            "bytes=0-1,5-6",
            "bytes=x",
            "lines=1-2",
            "bytes=",
            "bytes=0-1,-0",
            "bytes=-0,0-1",
        ] {
            let answer = get("/big.bin", &format!("Range: {asked}\r\n"));
            assert_eq!((answer.status, answer.body.len()), (200, 3_000_000));
        }
        let answer = get("/empty.css", "Range: bytes=-5\r\n");
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        // Nor do other methods have ranges.
        for asked in ["bytes=0-1", "bytes=3000000-"] {
            let head = ask(program, "HEAD", "/big.bin", &format!("Range: {asked}\r\n"));
            assert_eq!(head.status, 200);
            assert_eq!(head.header("content-length"), Some("3000000"));
        }
    });
}

#[test]
fn static_files_sends_nothing_that_is_known_already() {
    let folder = Folder::new();
    fs::write(folder.0.join("file.txt"), pattern(1000)).unwrap();
    with_each("static_files", &[folder.0.to_str().unwrap()], |program| {
        let get = |headers: &str| ask(program, "GET", "/file.txt", headers);
        let first = get("");
        let (etag, date) = (
            first.header("etag").unwrap(),
            first.header("last-modified").unwrap(),
        );
        let old = "Thu, 01 Jan 1970 00:00:00 GMT";
        for (condition, status) in [
            (format!("If-None-Match: {etag}"), 304),
            (format!("If-None-Match: \"other\", {etag}"), 304),
            ("If-None-Match: *".to_owned(), 304),
            ("If-None-Match: \"other\"".to_owned(), 200),
            (format!("If-Modified-Since: {date}"), 304),
            (format!("If-Modified-Since: {old}"), 200),
            ("If-Modified-Since: yesterday".to_owned(), 200),
            // The tag knows better than the date.
            (
                format!("If-None-Match: \"other\"\r\nIf-Modified-Since: {date}"),
                200,
            ),
            (format!("If-Match: {etag}"), 200),
            ("If-Match: \"other\"".to_owned(), 412),
            (format!("If-Unmodified-Since: {date}"), 200),
            (format!("If-Unmodified-Since: {old}"), 412),
            (format!("If-Range: {etag}\r\nRange: bytes=0-9"), 206),
            (format!("If-Range: {date}\r\nRange: bytes=0-9"), 206),
            ("If-Range: \"other\"\r\nRange: bytes=0-9".to_owned(), 200),
            (format!("If-None-Match: {etag}\r\nRange: bytes=0-9"), 304),
        ] {
            let answer = get(&format!("{condition}\r\n"));
            assert_eq!(answer.status, status, "{condition}");
            let length = match status {
                200 => 1000,
                206 => 10,
                _ => 0,
            };
            assert!(answer.body == pattern(length), "{condition}");
            assert_eq!(answer.header("etag"), Some(etag));
        }
    });
}

#[test]
fn static_files_shows_directories_and_refuses_the_rest() {
    let folder = Folder::new();
    let root = folder.0.join("root");
    fs::create_dir_all(root.join("list/deeper")).unwrap();
    fs::create_dir_all(root.join("index")).unwrap();
    fs::write(folder.0.join("secret.txt"), "secret").unwrap();
    fs::create_dir(folder.0.join("root-sibling")).unwrap();
    fs::write(folder.0.join("root-sibling/secret.txt"), "secret").unwrap();
    fs::write(root.join("index/index.html"), "the index").unwrap();
    fs::write(root.join("list/a&b<c>.txt"), "x").unwrap();
    fs::write(root.join("list/.hidden"), "x").unwrap();
    fs::write(root.join("plain.txt"), "plain").unwrap();
    symlink("plain.txt", root.join("link.txt")).unwrap();
    symlink("../secret.txt", root.join("escape.txt")).unwrap();
    symlink("../root-sibling", root.join("escape")).unwrap();
    symlink("/etc", root.join("absolute")).unwrap();
    symlink("circle", root.join("circle")).unwrap();
    symlink("missing", root.join("nowhere")).unwrap();
    let fifo = Command::new("mkfifo").arg(root.join("fifo")).status();
    assert!(fifo.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    with_each("static_files", &[root.to_str().unwrap()], |program| {
        let get = |path: &str| ask(program, "GET", path, "");
        assert_eq!(get("/index/").body, b"the index");
        assert_eq!(get("/link.txt").body, b"plain");
        let page = String::from_utf8(get("/list/").body).unwrap();
        let links: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("<li>"))
            .collect();
        assert_eq!(
            links,
            [
                "<li><a href=\"a%26b%3Cc%3E.txt\">a&amp;b&lt;c>.txt</a>",
                "<li><a href=\"deeper/\">deeper/</a>",
            ]
        );
        for (path, location) in [("/list", "/list/"), ("//list/deeper", "/list/deeper/")] {
            let answer = get(path);
            assert_eq!(answer.status, 301);
            assert_eq!(answer.header("location"), Some(location));
        }
        for path in [
            "/none",
            "/nowhere",
            "/plain.txt/",
            "/plain.txt/more",
            "/list/.hidden",
            "/.",
            "/list%2Fdeeper/",
            "/plain.txt%00.html",
            "/..%2Fsecret.txt",
            "/%2e%2e%2fsecret.txt",
            "/..%5Csecret.txt",
            "/%252e%252e/secret.txt",
            "/%2Fetc/passwd",
            "/%c0%ae%c0%ae/secret.txt",
            &format!("/{}", "n".repeat(256)),
        ] {
            assert_eq!(get(path).status, 404, "{path}");
        }
        for path in [
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/.%2E/secret.txt",
            "/list/../../secret.txt",
            "/list/%2e%2e/%2e%2e/secret.txt",
            "/list/..",
            "/escape.txt",
            "/escape/secret.txt",
            "/escape/",
            "/absolute/passwd",
            "/absolute/",
            "/circle",
            "/fifo",
            "/socket",
        ] {
            let answer = get(path);
            assert_eq!(answer.status, 403, "{path}");
            assert!(!answer.body.starts_with(b"secret"));
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let answer = ask(program, method, "/plain.txt", "Content-Length: 0\r\n");
            assert_eq!(answer.status, 405);
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
        }
    });
}

#[test]
fn static_files_waits_for_slow_clients_and_breaks_off_what_it_cannot_finish() {
    let folder = Folder::new();
    // Far more than sockets hold.
    let length = 32_000_000;
    let file = folder.0.join("big");
    with_each("static_files", &[folder.0.to_str().unwrap()], |program| {
        fs::write(&file, pattern(length)).unwrap();
        let request = "GET /big HTTP/1.1\r\nHost: here\r\n\r\n";
        // One that never reads.
        let mut stuck = program.connect();
        stuck.write_all(request.as_bytes()).unwrap();
        // One that begins to read later, over a connection that it keeps.
        let mut late = BufReader::new(program.connect());
        for _ in 0..2 {
            late.get_mut().write_all(request.as_bytes()).unwrap();
        }
        let short = ask(program, "GET", "/big", "Range: bytes=7-8\r\n");
        assert_eq!(short.body, pattern(9)[7..]);
        for _ in 0..2 {
            let answer = Answer::read(&mut late, true);
            assert!(answer.body == pattern(length));
        }
        // The file is cut off: what was promised cannot be kept, and the client can tell.
        let shortened = fs::File::options().write(true).open(&file).unwrap();
        shortened.set_len(1000).unwrap();
        let mut bytes = Vec::new();
        // A reset or an end, but before all is there.
        let _ = stuck.read_to_end(&mut bytes);
        assert!(bytes.len() < length, "{}", bytes.len());
    });
}

/// A server for one connection, for a proxy to connect to.
fn upstream<T: Send + 'static>(
    body: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        body(stream)
    });
    (address, thread)
}

/// Runs a proxy on each backend, for one connection that the program behind it ends in a way of its own.
fn through_a_proxy(
    at_server: impl FnOnce(TcpStream) + Clone + Send + 'static,
    at_client: impl Fn(TcpStream),
) {
    let backends: &[&str] = match Runtime::new(&config(BackendChoice::IoUring)) {
        Ok(_) => &["io_uring", "epoll"],
        Err(error) => {
            eprintln!("left out: {error}");
            &["epoll"]
        }
    };
    for backend in backends {
        for workers in ["1", "2"] {
            let (address, server) = upstream(at_server.clone());
            let options = ["--backend", backend, "--workers", workers, "--to", &address];
            let program = Program::start("proxy", &options);
            at_client(program.connect());
            server.join().unwrap();
            let said = program.end(libc::SIGINT);
            assert!(
                said.contains("1 connections passed on, of which 0 failed; 0 refused; "),
                "{said}"
            );
        }
    }
}

#[test]
fn the_proxy_passes_on_what_either_side_finishes_first() {
    // The client is done first, and gets its answer all the same.
    through_a_proxy(
        |mut stream| {
            let bytes = rest(&mut stream);
            assert!(bytes == pattern(5_000_000));
            stream.write_all(&pattern(7_000_000)).unwrap();
        },
        |mut stream| {
            stream.write_all(&pattern(5_000_000)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(rest(&mut stream) == pattern(7_000_000));
        },
    );
    // The server is.
    through_a_proxy(
        |mut stream| {
            stream.write_all(b"only this").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(rest(&mut stream) == pattern(5_000_000));
        },
        |mut stream| {
            assert_eq!(rest(&mut stream), b"only this");
            stream.write_all(&pattern(5_000_000)).unwrap();
        },
    );
    // Both talk at once.
    through_a_proxy(
        |stream| {
            let mut writer = stream.try_clone().unwrap();
            io::copy(&mut &stream, &mut writer).unwrap();
        },
        |stream| {
            for length in [1, 1000, 8_000_000] {
                echoes(&stream, &pattern(length));
            }
        },
    );
}

#[test]
fn the_proxy_counts_and_closes_what_it_cannot_pass_on() {
    // A port that nobody listens on.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    let program = Program::start("proxy", &["--to", &address]);
    assert_eq!(rest(&mut program.connect()), b"");
    let said = program.end(libc::SIGTERM);
    let counts =
        "0 connections passed on, of which 0 failed; 1 refused; 0 bytes there, 0 bytes back\n";
    assert!(said.ends_with(counts), "{said}");

    // A listener whose queue is full lets the kernel try for minutes.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&full).listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _waiting: Vec<_> = (0..8)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok())
        .collect();
    let options = ["--to", &address.to_string(), "--connect-timeout", "1"];
    let program = Program::start("proxy", &options);
    assert_eq!(rest(&mut program.connect()), b"");
    let said = program.end(libc::SIGTERM);
    assert!(said.ends_with(counts), "{said}");

    // The server resets the connection.
    let (address, server) = upstream(|stream| {
        let mut first = [0; 5];
        (&stream).read_exact(&mut first).unwrap();
        // Closing with bytes unread resets.
        assert_eq!(stream.peek(&mut first).unwrap(), 5);
    });
    let program = Program::start("proxy", &["--to", &address]);
    let mut stream = program.connect();
    stream.write_all(b"helloagain").unwrap();
    server.join().unwrap();
    let mut left = Vec::new();
    let _ = stream.read_to_end(&mut left);
    assert_eq!(left, b"");
    let said = program.end(libc::SIGTERM);
    let counts =
        "1 connections passed on, of which 1 failed; 0 refused; 10 bytes there, 0 bytes back\n";
    assert!(said.ends_with(counts), "{said}");
}

/// Runs an example that is to fail.
fn fails(example: &str, arguments: &[&str]) -> Output {
    let output = command(example).args(arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    output
}

#[test]
fn an_error_is_one_line_and_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let in_use =
        format!("error: cannot serve on 127.0.0.1:{port}: Address already in use (os error 98)\n");
    let to = &["--to", "127.0.0.1:1"][..];
    for (example, more) in [
        ("echo", &[][..]),
        ("http_raw", &[]),
        ("http_hello", &[]),
        ("axum_hello", &[]),
        ("chat", &[]),
        ("static_files", &[]),
        ("proxy", to),
        ("tls_echo", &[]),
    ] {
        for workers in ["1", "2"] {
            let mut arguments = vec!["--port", &port, "--workers", workers];
            arguments.extend(more);
            let output = fails(example, &arguments);
            assert_eq!(String::from_utf8_lossy(&output.stderr), in_use);
            assert_eq!(output.status.code(), Some(1));
        }
    }
    for (example, arguments, error) in [
        (
            "static_files",
            &["/nonexistent"][..],
            "error: cannot serve /nonexistent: No such file or directory (os error 2)\n",
        ),
        (
            "static_files",
            &["/etc/passwd"],
            "error: cannot serve /etc/passwd: Not a directory (os error 20)\n",
        ),
        (
            "proxy",
            &["--to", "nowhere"],
            "error: --to nowhere: invalid socket address\n",
        ),
        (
            "echo",
            &["--port", "0", "--workers", "0"],
            "error: cannot serve on 127.0.0.1:0: a pool needs at least one worker\n",
        ),
        (
            "echo",
            &["--host", "300.0.0.1:80"],
            "error: cannot serve on [300.0.0.1:80]:7000: ",
        ),
    ] {
        let output = fails(example, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(error), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    let output = fails("echo", &["--backend", "kqueue"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("unknown backend \"kqueue\""), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn each_program_explains_itself() {
    for (example, about) in [
        ("echo", "Sends back what it receives"),
        ("chat", "A chat room"),
        ("proxy", "Passes TCP connections on"),
        ("http_hello", "Hello, World!"),
        ("http_raw", "every HTTP request"),
        ("axum_hello", "Says hello"),
        ("tls_echo", "over TLS"),
        ("static_files", "the files of a directory"),
    ] {
        let output = command(example).arg("--help").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{example}");
        assert!(said.contains(about), "{example}: {said}");
        for option in ["--port", "--workers", "--backend"] {
            assert!(said.contains(option), "{example}: {said}");
        }
    }
}
