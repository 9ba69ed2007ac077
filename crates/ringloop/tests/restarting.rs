//! A program that is restarted again and again loses no connection, and one that is started by a service manager uses its
//! sockets. Each server is a process of its own.

mod common;

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, backends, pool_config};
use ringloop::server::{
    AnyListener, Connection, Handler, Server, Transport, inherited_any_listeners,
    inherited_listeners,
};

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
        ["serve_privately", backend, address, path] => {
            serve_with(Server::unix(address).unix_mode(0o600), backend, Some(path));
        }
        ["fail", backend, address, path] => {
            let server = Server::unix(address).and("127.0.0.1:no-port");
            let server = server.pool_config(pool_config(backend.parse().unwrap()));
            server.restart_path(path).serve(|| Echo).unwrap_err();
        }
        ["inherit", backend] => inherit(backend),
        ["inherit_any", backend] => inherit_any(backend),
        ["inherit_what_is_not_tcp"] => {
            let error = inherited_listeners().unwrap_err().to_string();
            assert!(error.contains("descriptor 3"), "{error}");
            assert!(error.contains("inherited_any_listeners"), "{error}");
        }
        ["inherit_in_two_attempts"] => inherit_in_two_attempts(),
        _ => check_all(),
    }
}

type Case = fn(&str);

fn check_all() {
    for backend in backends() {
        let backend = &backend.to_string();
        let cases: [(&str, Case); 10] = [
            (
                "a_path_that_is_no_longer_the_servers_is_bound_anew",
                a_path_that_is_no_longer_the_servers_is_bound_anew,
            ),
            (
                "a_path_that_is_no_longer_served_is_removed",
                a_path_that_is_no_longer_served_is_removed,
            ),
            (
                "a_successor_that_cannot_start_leaves_the_unix_socket",
                a_successor_that_cannot_start_leaves_the_unix_socket,
            ),
            (
                "no_connection_is_lost_in_a_restart",
                no_connection_is_lost_in_a_restart,
            ),
            (
                "no_connection_of_a_unix_socket_is_lost_in_a_restart",
                no_connection_of_a_unix_socket_is_lost_in_a_restart,
            ),
            (
                "unix_sockets_of_a_service_manager_are_used",
                unix_sockets_of_a_service_manager_are_used,
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
    if address.starts_with('/') {
        serve_with(Server::unix(address), backend, path);
    } else {
        serve_with(Server::new(address), backend, path);
    }
}

fn serve_with<S: Transport>(server: Server<S>, backend: &str, path: Option<&str>) {
    let mut server = server
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

fn inherit_any(backend: &str) {
    let inherited = inherited_any_listeners().unwrap();
    assert!(matches!(
        inherited[..],
        [AnyListener::Tcp(_), AnyListener::Unix(_)]
    ));
    let running = Server::from_any_listeners(inherited)
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
    fn start(backend: &str, address: &str, path: &Path) -> Self {
        Self::start_as("serve", backend, address, path)
    }

    fn start_as(mode: &str, backend: &str, address: &str, path: &Path) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args([mode, backend, address])
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
fn free_address() -> String {
    let [_, _, high, low] = process::id().to_be_bytes();
    let host = format!("127.77.{high}.{low}");
    let taken = TcpListener::bind((host.as_str(), 0)).unwrap();
    taken.local_addr().unwrap().to_string()
}

/// Connects to an address or a path, asks, and reads the answer.
fn ask(address: &str) -> io::Result<()> {
    if address.starts_with('/') {
        let stream = UnixStream::connect(address)?;
        stream.set_read_timeout(Some(LONG))?;
        ask_by(stream)
    } else {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LONG))?;
        ask_by(stream)
    }
}

fn ask_by(mut stream: impl Read + Write) -> io::Result<()> {
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
    let now = || fs::symlink_metadata(path).ok().map(|found| inode(&found));
    until("a new socket", || now().is_some() && now() != before);
    now().unwrap()
}

fn inode(found: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(found)
}

fn no_connection_is_lost_in_a_restart(backend: &str) {
    restart(backend, &Folder::new(), &free_address());
}

fn no_connection_of_a_unix_socket_is_lost_in_a_restart(backend: &str) {
    let folder = Folder::new();
    let path = folder.0.join("service.sock");
    restart(backend, &folder, path.to_str().unwrap());
    assert!(!path.exists(), "the last one has left its socket");
}

fn restart(backend: &str, folder: &Folder, address: &str) {
    let path = folder.socket();
    let connections =
        env::var("RINGLOOP_TEST_CONNECTIONS").map_or(CONNECTIONS, |number| number.parse().unwrap());
    let mut server = Program::start(backend, address, &path);
    let mut socket = until_replaced(&path, None);
    let before = fs::symlink_metadata(address)
        .ok()
        .map(|found| inode(&found));
    let asked = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (asked, is_over) = (Arc::clone(&asked), Arc::clone(&is_over));
            let address = address.to_owned();
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    ask(&address).expect("a connection was lost");
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
    let after = fs::symlink_metadata(address)
        .ok()
        .map(|found| inode(&found));
    assert_eq!(before, after, "it was handed over, not made anew");
    server.terminate();
    server.wait();
    assert!(!path.exists(), "the last one has left its socket");
    ask(address).expect_err("nobody listens any more");
}

fn a_successor_that_fails_changes_nothing(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    let address = free_address();
    let server = Program::start(backend, &address, &path);
    until_replaced(&path, None);
    // They take the sockets, or do not even say what they want, and end.
    for takes in [true, false] {
        let mut link = UnixStream::connect(&path).unwrap();
        if takes {
            link.write_all(b"t").unwrap();
            link.read_exact(&mut [0; 4]).unwrap();
        }
        drop(link);
        ask(&address).unwrap();
    }
    // A connection that waits for the server when it ends is served by it: nobody else does.
    server.signal(libc::SIGSTOP);
    let mut waiting = TcpStream::connect(&address).unwrap();
    waiting.write_all(b"hello").unwrap();
    server.terminate();
    server.signal(libc::SIGCONT);
    let mut answer = [0; 5];
    waiting.read_exact(&mut answer).expect("it was dropped");
    assert_eq!(&answer, b"hello");
    server.wait();
    TcpStream::connect(&address).expect_err("nobody listens any more");
}

fn a_successor_that_cannot_start_leaves_the_unix_socket(backend: &str) {
    let folder = Folder::new();
    let (path, service) = (folder.socket(), folder.0.join("service.sock"));
    let address = service.to_str().unwrap();
    let server = Program::start(backend, address, &path);
    until_replaced(&path, None);
    let failed = Command::new(env::current_exe().unwrap())
        .args(["fail", backend, address])
        .arg(&path)
        .status()
        .unwrap();
    assert!(failed.success(), "{failed}");
    ask(address).unwrap();
    // Whoever comes next is heard when the server knows of the failure.
    let mut link = UnixStream::connect(&path).unwrap();
    link.write_all(b"?").unwrap();
    assert_eq!(link.read(&mut [0]).unwrap_or(0), 0);
    server.terminate();
    server.wait();
    assert!(!service.exists(), "it has left its socket");
}

fn a_path_that_is_no_longer_the_servers_is_bound_anew(backend: &str) {
    let folder = Folder::new();
    let (path, service) = (folder.socket(), folder.0.join("service.sock"));
    let address = service.to_str().unwrap();
    let mut server = Program::start(backend, address, &path);
    let mut socket = until_replaced(&path, None);
    // Somebody has removed it, and then another server has taken it.
    for is_taken in [false, true] {
        fs::remove_file(&service).unwrap();
        let other = is_taken.then(|| UnixListener::bind(&service).unwrap());
        let successor = Program::start(backend, address, &path);
        socket = until_replaced(&path, Some(socket));
        server.wait();
        server = successor;
        ask(address).unwrap();
        drop(other);
    }
    server.terminate();
    server.wait();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

fn a_path_that_is_no_longer_served_is_removed(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    let services = ["one.sock", "other.sock"].map(|name| folder.0.join(name));
    let [one, other] = services.each_ref().map(|path| path.to_str().unwrap());
    let mode = |path: &str| {
        let permissions = fs::metadata(path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o777
    };
    let server = Program::start(backend, one, &path);
    let socket = until_replaced(&path, None);
    let next = Program::start(backend, other, &path);
    let socket = until_replaced(&path, Some(socket));
    server.wait();
    until("the path is gone", || !Path::new(one).exists());
    assert_eq!(mode(other), 0o666);
    // Permissions that are asked for are set where the socket is handed over, too.
    let last = Program::start_as("serve_privately", backend, other, &path);
    until_replaced(&path, Some(socket));
    next.wait();
    assert_eq!(mode(other), 0o600);
    ask(other).unwrap();
    last.terminate();
    last.wait();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

fn what_is_in_the_way_is_kept(backend: &str) {
    let folder = Folder::new();
    let path = folder.socket();
    fs::write(&path, "not a socket").unwrap();
    let mut failed = Command::new(env::current_exe().unwrap())
        .args(["serve", backend, &free_address()])
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
    drop(UnixListener::bind(&path).unwrap());
    let address = free_address();
    let server = Program::start(backend, &address, &path);
    until("it listens", || ask(&address).is_ok());
    server.terminate();
    server.wait();
}

fn sockets_of_a_service_manager_are_used(backend: &str) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [0, 1].map(|index| listeners[index].local_addr().unwrap().to_string());
    inherited("inherit", backend, listeners.map(OwnedFd::from), &addresses);
}

fn unix_sockets_of_a_service_manager_are_used(backend: &str) {
    let folder = Folder::new();
    let path = folder.0.join("service.sock");
    let unix = UnixListener::bind(&path).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" inherit_what_is_not_tcp 3<&0 0</dev/null"#;
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .stdin(OwnedFd::from(unix.try_clone().unwrap()))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let addresses = [
        tcp.local_addr().unwrap().to_string(),
        path.to_str().unwrap().to_owned(),
    ];
    inherited(
        "inherit_any",
        backend,
        [tcp.into(), unix.into()],
        &addresses,
    );
    assert!(path.exists(), "it is the service manager's");
}

/// Starts a program that listens on these sockets, asks it, and ends it.
fn inherited(mode: &str, backend: &str, [first, second]: [OwnedFd; 2], addresses: &[String; 2]) {
    // The process learns its own number as systemd would tell it.
    let script = r#"LISTEN_FDS=2 LISTEN_PID=$$ exec "$0" "$1" "$2" 3<&1 4<&2 1>&5 5>&-"#;
    let (output, there) = io::pipe().unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .args([mode, backend])
        .stdin(Stdio::piped())
        .stdout(first)
        .stderr(second);
    let mut child = spawn_with_fifth(&mut command, there.into());
    drop(command);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for address in addresses {
        ask(address).unwrap();
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
