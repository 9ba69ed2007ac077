//! Starting examples as programs, ending them, and connecting to them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{self, LONG};

/// A command for an example, which cargo builds along with the tests.
pub(crate) fn command(example: &str) -> Command {
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

/// A running example.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) errors: Option<JoinHandle<String>>,
}

impl Program {
    pub(crate) fn start(example: &str, arguments: &[&str]) -> Self {
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

    pub(crate) fn connect(&self) -> TcpStream {
        common::connect(self.address)
    }

    /// Asks it to end, checks that it does so properly, and returns what it has printed about that.
    pub(crate) fn end(mut self, signal: i32) -> String {
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
        assert!(said.contains(&format!("{name}: waiting up to ")), "{said}");
        said
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
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

/// Runs a body with each backend, with one worker and with two, and ends the program with either signal.
pub(crate) fn with_each(example: &str, arguments: &[&str], body: impl Fn(&Program)) {
    for backend in common::backends() {
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

/// A folder for one test, which is removed with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
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

/// Sends bytes while they come back, and checks each.
pub(crate) fn echoes(stream: &TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(bytes).unwrap());
        let mut answer = vec![0; bytes.len()];
        (&*stream).read_exact(&mut answer).unwrap();
        assert!(answer == bytes);
    });
}

/// Reads until the peer ends it.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}
