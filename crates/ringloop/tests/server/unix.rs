//! Servers at Unix sockets: the same promises as over TCP, and the paths.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::net::AnyStream;
use ringloop::server::{AnyListener, Connection, ConnectionHandle, Handler, Running, Server};

use crate::case::{Echo, Stream, ask};
use crate::common::{self, LONG, ReadOnce, backends, pool_config};
use crate::queued::{block, shut_down};

/// A folder for one test, removed with this.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("ringloop-unix-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A body on each backend, with a server at a path.
fn on_both(test: &str, body: impl Fn(Server<AnyStream>, &Folder)) {
    for backend in backends() {
        let folder = Folder::new(&format!("{test}-{backend}"));
        let server = Server::unix(folder.socket())
            .workers(2)
            .pool_config(pool_config(backend));
        body(server, &folder);
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn wait_for(running: &Running, condition: impl Fn(&Running) -> bool) {
    let start = Instant::now();
    while !condition(running) {
        assert!(start.elapsed() < LONG, "{:?}", running.counters());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn handlers_serve_and_limits_hold_as_over_tcp() {
    on_both("handlers", |server, folder| {
        let running = server.max_connections(1).start(|| Echo).unwrap();
        let path = folder.socket();
        assert_eq!(running.local_unix_addrs().len(), 1);
        assert_eq!(running.local_unix_addrs()[0].as_pathname(), Some(&*path));
        assert!(running.local_addrs().is_empty() && running.local_addr().port() == 0);
        let mut first = connect(&path);
        common::echo(&mut first, &common::pattern(300_000));
        let mut second = connect(&path);
        second.write_all(b"hello").unwrap();
        second.set_nonblocking(true).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert_eq!(
            second.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        second.set_nonblocking(false).unwrap();
        first.write_all(b"close").unwrap();
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
        drop(first);
        let mut answer = [0; 5];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        // A panic ends its own connection.
        second.write_all(b"panic").unwrap();
        assert_eq!(second.read_once(&mut answer).unwrap(), 0);
        common::echo(&mut connect(&path), b"still there");
        let counters = running.counters();
        assert_eq!((counters.accepted, counters.panics), (3, 1));
        running.shutdown(LONG);
    });
}

#[test]
fn idle_connections_are_closed() {
    on_both("idle", |server, folder| {
        let limit = Duration::from_millis(50);
        let running = server.idle_timeout(limit).start(|| Echo).unwrap();
        let mut client = connect(&folder.socket());
        common::echo(&mut client, b"hello");
        assert_eq!(client.read_once(&mut [0]).unwrap(), 0);
        assert_eq!(running.counters().timeouts, 1);
    });
}

#[test]
fn functions_get_streams_of_both_families_and_know_the_peer() {
    on_both("mixed", |server, folder| {
        let running = server
            .and("127.0.0.1:0")
            .start_with(|mut stream, client| async move {
                let peer = stream.peer_credentials()?;
                let text = match (&stream, peer) {
                    (AnyStream::Unix(_), Some(peer)) => {
                        assert_eq!(client.addr().port(), 0);
                        assert_eq!(client.to_string(), "a Unix socket");
                        format!("process {}", peer.pid.unwrap())
                    }
                    (AnyStream::Tcp(stream), None) => {
                        assert!(stream.nodelay()?);
                        assert_eq!(stream.peer_addr()?, client.addr());
                        format!("port {}", client.addr().port())
                    }
                    other => panic!("{other:?}"),
                };
                stream.write_all(text.as_bytes()).await.0?;
                client.draining().await;
                stream.write_all(&b", bye"[..]).await.0
            })
            .unwrap();
        let mut unix = connect(&folder.socket());
        let mut tcp = common::connect(running.local_addr());
        wait_for(&running, |running| running.counters().live == 2);
        let (mut read, mut piece) = ([Vec::new(), Vec::new()], [0; 100]);
        for (text, stream) in read.iter_mut().zip([&mut unix as &mut dyn Read, &mut tcp]) {
            let count = stream.read_once(&mut piece).unwrap();
            text.extend_from_slice(&piece[..count]);
        }
        let port = tcp.local_addr().unwrap().port();
        running.shutdown(LONG);
        for (text, stream) in read.iter_mut().zip([&mut unix as &mut dyn Read, &mut tcp]) {
            stream.read_to_end(text).unwrap();
        }
        let expected = [
            format!("process {}, bye", std::process::id()),
            format!("port {port}, bye"),
        ];
        assert_eq!(read.map(|text| String::from_utf8(text).unwrap()), expected);
        assert!(folder.is_empty());
    });
}

/// Passes its handle on, and who is at the other end.
struct Passing(mpsc::Sender<(ConnectionHandle, u32)>);

impl Handler for Passing {
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        assert!(connection.tcp().is_none());
        let peer = connection.unix().unwrap().peer_credentials()?;
        self.0.send((connection.handle(), peer.uid)).unwrap();
        Ok(())
    }

    fn data(&mut self, _: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_handle_writes_from_outside() {
    on_both("outside", |server, folder| {
        let (sender, receiver) = mpsc::channel();
        let running = server.start(move || Passing(sender.clone())).unwrap();
        let mut client = connect(&folder.socket());
        let (handle, user) = receiver.recv_timeout(LONG).unwrap();
        // SAFETY: it accesses no memory.
        assert_eq!(user, unsafe { libc::geteuid() });
        handle.write(&b"from outside"[..]).unwrap();
        handle.close();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "from outside");
        running.shutdown(LONG);
    });
}

#[test]
fn connections_that_wait_are_served_before_the_end_and_later_ones_are_refused() {
    on_both("queued", |server, folder| {
        // Some are accepted and held back, the others wait in the kernel.
        let running = server.max_connections(18).start(|| Echo).unwrap();
        let path = folder.socket();
        let blocked = vec![block(&running, 0), block(&running, 1)];
        let mut clients: Vec<_> = (0..20).map(|_| connect(&path)).collect();
        for client in &mut clients {
            client.write_all(b"hello").unwrap();
        }
        let address = SocketAddr::from_pathname(&path).unwrap();
        shut_down(running, blocked).join().unwrap();
        for client in &mut clients {
            let mut answer = [0; 5];
            client.read_exact(&mut answer).expect("it was dropped");
            assert_eq!(&answer, b"hello");
            assert_eq!(client.read_once(&mut answer).unwrap(), 0);
        }
        UnixStream::connect_addr(&address).expect_err("it has ended");
        assert!(folder.is_empty());
    });
}

/// Whoever connects while the server ends is served, or refused in order: nobody is cut off.
#[test]
fn nobody_is_accepted_and_dropped_while_a_server_ends() {
    for backend in backends() {
        // A name has no path that could be removed.
        let name = format!("\0ringloop-ending-{}-{backend}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        for _ in 0..20 {
            let running = Server::unix(&name)
                .workers(2)
                .pool_config(pool_config(backend))
                .start(|| Echo)
                .unwrap();
            let clients: Vec<_> = (0..3)
                .map(|_| {
                    let address = address.clone();
                    thread::spawn(move || {
                        let mut served = 0;
                        loop {
                            let mut client = match UnixStream::connect_addr(&address) {
                                Ok(client) => client,
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                                    return served;
                                }
                            };
                            common::echo(&mut client, b"hello");
                            served += 1;
                        }
                    })
                })
                .collect();
            wait_for(&running, |running| running.counters().accepted > 3);
            running.shutdown(LONG);
            let served: u64 = clients.into_iter().map(|each| each.join().unwrap()).sum();
            assert!(served > 3);
        }
    }
}

#[test]
fn all_workers_accept_from_one_socket() {
    for backend in backends() {
        let folder = Folder::new(&format!("shared-{backend}"));
        let running = Server::unix(folder.socket())
            .workers(4)
            .pool_config(pool_config(backend))
            .start(|| Echo)
            .unwrap();
        let path = folder.socket();
        // Three of them are busy: the fourth serves.
        for free in 0..4 {
            let others = (0..4).filter(|worker| *worker != free);
            let blocked: Vec<_> = others.map(|worker| block(&running, worker)).collect();
            for _ in 0..20 {
                common::echo(&mut connect(&path), b"hello");
            }
            drop(blocked);
        }
        assert_eq!(running.counters().accepted, 80);
        assert_eq!(running.counters().accept_errors, 0);
        running.shutdown(LONG);
    }
}

#[test]
fn a_path_has_its_mode_and_is_removed_at_the_end() {
    on_both("paths", |server, folder| {
        let path = folder.socket();
        let running = server.clone().start(|| Echo).unwrap();
        assert_eq!(mode(&path), 0o666);
        running.shutdown(LONG);
        assert!(folder.is_empty());
        let private = server.clone().unix_mode(0o600).start(|| Echo).unwrap();
        assert_eq!(mode(&path), 0o600);
        // A new process takes over, with the permissions, and its socket stays when the old one ends.
        let next = server.clone().start(|| Echo).unwrap();
        assert_eq!(mode(&path), 0o600);
        private.shutdown(LONG);
        common::echo(&mut connect(&path), b"hello");
        // A service ends with a drop, too.
        drop(next);
        assert!(folder.is_empty());
        fs::write(&path, "kept").unwrap();
        let error = server.start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains("socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    });
}

#[test]
fn a_start_that_fails_leaves_the_socket_of_a_server_that_runs() {
    on_both("failing", |server, folder| {
        let path = folder.socket();
        let running = server.clone().unix_mode(0o600).start(|| Echo).unwrap();
        let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        let before = inode(&path);
        // The first fails before the path is touched, the second after it.
        for failing in [
            server.clone().and("127.0.0.1:no-port"),
            server.clone().unix_mode(0o666).and_unix("/nowhere/at/all"),
        ] {
            failing.start(|| Echo).unwrap_err();
            common::echo(&mut connect(&path), b"hello");
            assert_eq!((inode(&path), mode(&path)), (before, 0o600));
            assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        }
        running.shutdown(LONG);
        assert!(folder.is_empty());
    });
}

#[test]
fn a_link_at_the_path_is_no_socket_to_replace() {
    on_both("link", |server, folder| {
        let target = folder.0.join("target");
        drop(UnixListener::bind(&target).unwrap());
        let before = mode(&target);
        std::os::unix::fs::symlink(&target, folder.socket()).unwrap();
        let error = server.unix_mode(0o600).start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert_eq!(mode(&target), before);
        assert!(fs::symlink_metadata(folder.socket()).unwrap().is_symlink());
    });
}

#[test]
fn a_path_that_cannot_be_is_an_error() {
    let error = Server::unix("").start(|| Echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = Server::unix("/".repeat(200)).start(|| Echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = Server::new("127.0.0.1:0")
        .and_unix("/nowhere/at/all")
        .start(|| Echo);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn sockets_that_listen_already_are_shared_and_their_paths_stay() {
    for backend in backends() {
        let folder = Folder::new(&format!("given-{backend}"));
        let path = folder.socket();
        let unix = UnixListener::bind(&path).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let start = || {
            let listeners = [
                AnyListener::from(unix.try_clone().unwrap()),
                AnyListener::from(tcp.try_clone().unwrap()),
            ];
            Server::from_any_listeners(listeners)
                .workers(3)
                .pool_config(pool_config(backend))
                .start(|| Echo)
                .unwrap()
        };
        let first = start();
        let address = tcp.local_addr().unwrap();
        assert_eq!(first.local_addr(), address);
        assert_eq!(first.local_unix_addrs()[0].as_pathname(), Some(&*path));
        common::echo(&mut connect(&path), b"hello");
        assert_eq!(
            ask(&mut Stream::Plain(common::connect(address)), b"hello"),
            b"hello"
        );
        first.shutdown(LONG);
        // Nobody serves, and still nobody is refused.
        let mut waiting = connect(&path);
        let second = start();
        common::echo(&mut waiting, b"hello");
        second.shutdown(LONG);
        assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    }
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let silent = AnyListener::Unix(socket.into());
    let error = Server::from_any_listeners([silent])
        .start(|| Echo)
        .unwrap_err();
    assert!(error.to_string().contains("does not listen"), "{error}");
}

#[test]
fn a_child_of_the_server_does_not_remove_its_path() {
    on_both("fork", |server, folder| {
        let running = server.start(|| Echo).unwrap();
        let running = std::mem::ManuallyDrop::new(running);
        common::in_child(|| {
            // SAFETY: in the child, this is the only use of it.
            drop(unsafe { std::ptr::read(&raw const *running) });
            true
        });
        common::echo(&mut connect(&folder.socket()), b"hello");
        std::mem::ManuallyDrop::into_inner(running).shutdown(LONG);
        assert!(folder.is_empty());
    });
}
