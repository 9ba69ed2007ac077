//! A program that is restarted again and again loses no connection, and one that is started by a service manager uses its
//! sockets. Each server is a process of its own.

mod common;

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, backends, pool_config};
use ringloop::server::{Connection, Handler, Server, inherited_listeners};

/// How many connections are made while the program is restarted; `RINGLOOP_TEST_CONNECTIONS` says another number.
const CONNECTIONS: u64 = 5_000;
const CLIENTS: u64 = 4;
/// How often it is restarted meanwhile.
const RESTARTS: u64 = 5;

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", backend, address, path] => serve(backend, address, Some(path)),
        ["inherit", backend] => inherit(backend),
        ["inherit_in_two_attempts"] => inherit_in_two_attempts(),
        _ => check_all(),
    }
}

type Case = fn(&str);

fn check_all() {
    for backend in backends() {
        let backend = &backend.to_string();
        let cases: [(&str, Case); 5] = [
            (
                "no_connection_is_lost_in_a_restart",
                no_connection_is_lost_in_a_restart,
            ),
            (
                "a_successor_that_fails_changes_nothing",
                a_successor_that_fails_changes_nothing,
            ),
            ("what_is_in_the_way_is_kept", what_is_in_the_way_is_kept),
            (
                "sockets_of_a_service_manager_are_used",
                sockets_of_a_service_manager_are_used,
            ),
            (
                "a_socket_that_is_missing_leaves_the_others",
                a_socket_that_is_missing_leaves_the_others,
            ),
        ];
        for (name, case) in cases {
            case(backend);
            println!("test {name} ({backend}) ... ok");
        }
    }
}

fn serve(backend: &str, address: &str, path: Option<&str>) {
    let mut server = Server::new(address)
        .workers(2)
        .backlog(4096)
        .pool_config(pool_config(backend.parse().unwrap()));
    if let Some(path) = path {
        server = server.restart_path(path);
    }
    server.drain_timeout(LONG).serve(|| Echo).unwrap();
    println!("ended");
}

fn inherit(backend: &str) {
    let inherited = inherited_listeners().unwrap();
    assert_eq!(inherited.len(), 2);
    assert!(
        inherited_listeners().unwrap().is_empty(),
        "they were taken twice"
    );
    let running = Server::from_listeners(inherited)
        .workers(2)
        .pool_config(pool_config(backend.parse().unwrap()))
        .start(|| Echo)
        .unwrap();
    println!("ready");
    // Until the parent closes its end.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    running.shutdown(LONG);
}

fn inherit_in_two_attempts() {
    let error = inherited_listeners().unwrap_err();
    assert!(error.to_string().contains("descriptor 4"), "{error}");
    // SAFETY: F_GETFD accesses no memory and changes nothing.
    let flags = unsafe { libc::fcntl(3, libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, 0, "it was changed");
    // SAFETY: accesses no memory. Nobody has a descriptor with this number, as was said above.
    assert_eq!(unsafe { libc::dup2(3, 4) }, 4);
    assert_eq!(inherited_listeners().unwrap().len(), 2);
    assert!(inherited_listeners().unwrap().is_empty());
}

/// A process that ends with this.
struct Program(Child);

impl Program {
    fn start(backend: &str, address: SocketAddr, path: &Path) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["serve", backend, &address.to_string()])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it ends by itself, in order.
    fn wait(mut self) {
        let mut printed = String::new();
        let output = self.0.stdout.as_mut().unwrap();
        output.read_to_string(&mut printed).unwrap();
        assert!(self.0.wait().unwrap().success());
        assert_eq!(printed, "ended\n");
    }

    fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: takes no memory of ours. The child is ours, and has not been waited for.
        unsafe { libc::kill(self.0.id().cast_signed(), signal) };
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder of this process, removed with this.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("ringloop-restart-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("restart.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An address that is free. Only this process uses this host's address, so nobody else takes it.
fn free_address() -> SocketAddr {
    let [_, _, high, low] = process::id().to_be_bytes();
    let host = format!("127.77.{high}.{low}");
    let taken = TcpListener::bind((host.as_str(), 0)).unwrap();
    taken.local_addr().unwrap()
}

/// Connects, asks, and reads the answer.
fn ask(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(b"hello")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"hello");
    Ok(())
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "{what}: never");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the socket at a path is another one than before.
fn until_replaced(path: &Path, before: Option<u64>) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let inode = || fs::symlink_metadata(path).ok().map(|found| found.ino());
    until("a new socket", || inode().is_some() && inode() != before);
    inode().unwrap()
}

fn no_connection_is_lost_in_a_restart(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    let address = free_address();
    let connections =
        env::var("RINGLOOP_TEST_CONNECTIONS").map_or(CONNECTIONS, |number| number.parse().unwrap());
    let mut server = Program::start(backend, address, &path);
    let mut socket = until_replaced(&path, None);
    let asked = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (asked, is_over) = (Arc::clone(&asked), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    ask(address).expect("a connection was lost");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for restart in 1..=RESTARTS {
        let so_far = connections * restart / (RESTARTS + 1);
        until("enough connections", || {
            asked.load(Ordering::Relaxed) >= so_far
                || clients.iter().any(thread::JoinHandle::is_finished)
        });
        let successor = Program::start(backend, address, &path);
        socket = until_replaced(&path, Some(socket));
        server.wait();
        server = successor;
    }
    until("enough connections", || {
        asked.load(Ordering::Relaxed) >= connections
            || clients.iter().any(thread::JoinHandle::is_finished)
    });
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    server.terminate();
    server.wait();
    assert!(!path.exists(), "the last one has left its socket");
    TcpStream::connect(address).expect_err("nobody listens any more");
}

fn a_successor_that_fails_changes_nothing(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    let address = free_address();
    let server = Program::start(backend, address, &path);
    until_replaced(&path, None);
    // They take the sockets, or do not even say what they want, and end.
    for takes in [true, false] {
        let mut link = std::os::unix::net::UnixStream::connect(&path).unwrap();
        if takes {
            link.write_all(b"t").unwrap();
            link.read_exact(&mut [0; 4]).unwrap();
        }
        drop(link);
        ask(address).unwrap();
    }
    // A connection that waits for the server when it ends is served by it: nobody else does.
    server.signal(libc::SIGSTOP);
    let mut waiting = TcpStream::connect(address).unwrap();
    waiting.write_all(b"hello").unwrap();
    server.terminate();
    server.signal(libc::SIGCONT);
    let mut answer = [0; 5];
    waiting.read_exact(&mut answer).expect("it was dropped");
    assert_eq!(&answer, b"hello");
    server.wait();
    TcpStream::connect(address).expect_err("nobody listens any more");
}

fn what_is_in_the_way_is_kept(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    fs::write(&path, "not a socket").unwrap();
    let mut failed = Command::new(env::current_exe().unwrap())
        .args(["serve", backend, &free_address().to_string()])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut message = String::new();
    let errors = failed.stderr.as_mut().unwrap();
    errors.read_to_string(&mut message).unwrap();
    assert!(!failed.wait().unwrap().success());
    assert!(message.contains("restart.sock"), "{message}");
    assert_eq!(fs::read(&path).unwrap(), b"not a socket");
    // A socket that nobody listens at is what a process leaves that was killed.
    fs::remove_file(&path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = free_address();
    let server = Program::start(backend, address, &path);
    until("it listens", || ask(address).is_ok());
    server.terminate();
    server.wait();
}

fn sockets_of_a_service_manager_are_used(backend: &str) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = &listeners;
    // The process learns its own number as systemd would tell it.
    let script = r#"LISTEN_FDS=2 LISTEN_PID=$$ exec "$0" inherit "$1" 3<&1 4<&2 1>&5 5>&-"#;
    let (output, there) = io::pipe().unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .arg(backend)
        .stdin(Stdio::piped())
        .stdout(OwnedFd::from(first.try_clone().unwrap()))
        .stderr(OwnedFd::from(second.try_clone().unwrap()));
    let mut child = spawn_with_fifth(&mut command, there.into());
    drop(command);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for listener in &listeners {
        ask(listener.local_addr().unwrap()).unwrap();
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

fn a_socket_that_is_missing_leaves_the_others(_: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let script =
        r#"LISTEN_FDS=2 LISTEN_PID=$$ exec "$0" inherit_in_two_attempts 3<&0 4<&- 0</dev/null"#;
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .stdin(OwnedFd::from(listener))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// Starts a process that has one more descriptor, with the number 5.
fn spawn_with_fifth(command: &mut Command, descriptor: OwnedFd) -> Child {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let number = descriptor.as_raw_fd();
    // SAFETY: dup2(2) and fcntl(2) may be called between fork(2) and exec(2), and the descriptor is open until then.
    unsafe {
        command.pre_exec(move || {
            // A descriptor that has the number already would be closed by exec(2).
            let result = if number == 5 {
                libc::fcntl(number, libc::F_SETFD, 0)
            } else {
                libc::dup2(number, 5)
            };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    };
    let child = command.spawn().unwrap();
    drop(descriptor);
    child
}
