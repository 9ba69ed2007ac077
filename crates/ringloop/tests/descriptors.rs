//! Sockets that are dropped during operations on them: what these keep open, and what gets their numbers next.

mod common;

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as Plain, TcpStream as PlainStream};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ringloop::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use ringloop::signal::{SignalKind, signal};
use ringloop::time::{sleep, timeout};
use ringloop::{spawn, yield_now};
use socket2::SockRef;

use common::{LONG, on_both, poll_times, tcp};

/// Numbers belong to the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the peer of the connection that a plain listener accepts; an error if there is none.
fn accepted(listener: &Plain) -> SocketAddr {
    // accept(2) heeds it, too.
    SockRef::from(listener)
        .set_read_timeout(Some(LONG))
        .unwrap();
    listener.accept().expect("the connection was lost").1
}

/// A listener that has begun to accept and was dropped in the same turn: the next listener gets its number before the
/// kernel knows about either.
#[test]
fn a_listener_that_is_dropped_takes_no_connection_of_the_next_one() {
    let _alone = alone();
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 1..4 {
                let next = Plain::bind("127.0.0.1:0").unwrap();
                let client = PlainStream::connect(next.local_addr().unwrap()).unwrap();
                let dropped = TcpListener::bind("127.0.0.1:0").await.unwrap();
                assert!(poll_times(polls, dropped.accept()).await.is_none());
                drop(dropped);
                let path = std::env::temp_dir().join(format!("ringloop-{}", std::process::id()));
                let unix = UnixListener::bind(&path).unwrap();
                assert!(poll_times(polls, unix.accept()).await.is_none());
                drop(unix);
                std::fs::remove_file(path).unwrap();
                // The lowest number that is free.
                let same = next.try_clone().unwrap();
                for _ in 0..3 {
                    yield_now().await;
                }
                assert_eq!(accepted(&same), client.local_addr().unwrap());
            }
        });
    });
}

#[test]
fn a_listener_that_is_dropped_leaves_its_port_at_once() {
    let _alone = alone();
    on_both(|runtime| {
        let is_refused = |address| {
            let error = PlainStream::connect(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        };
        let accepting = async |polls| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            assert!(poll_times(polls, listener.accept()).await.is_none());
            let address = listener.local_addr().unwrap();
            (listener, address)
        };
        for polls in 0..3 {
            // In a turn, in the last one, and where there is none.
            runtime.block_on(async {
                let (listener, address) = accepting(polls).await;
                drop(listener);
                yield_now().await;
                yield_now().await;
                is_refused(address);
            });
            is_refused(runtime.block_on(async { accepting(polls).await.1 }));
            let (listener, address) = runtime.block_on(accepting(polls));
            drop(listener);
            is_refused(address);
        }
    });
}

/// Never drops a value, but lets leak checkers find it.
fn forget<T>(value: T) {
    static FORGOTTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let address = ptr::from_mut(Box::leak(Box::new(value))).expose_provenance();
    FORGOTTEN.lock().unwrap().push(address);
}

/// A future that is forgotten is never dropped, and so does not end its operation.
#[test]
fn a_send_that_is_forgotten_writes_to_no_other_connection() {
    let _alone = alone();
    on_both(|runtime| {
        for polls in 1..4 {
            runtime.block_on(async {
                let (mut near, _never_reads) = tcp().await;
                while near.try_write(&[7; 4096]).is_ok() {}
                let number = near.as_fd().as_raw_fd();
                let bytes = Bytes::from(vec![7; 64 * 1024]);
                let mut sending = Box::pin(near.write_all_zero_copy(bytes));
                assert!(poll_times(polls, sending.as_mut()).await.is_none());
                forget(sending);
                drop(near);
                // Closed in the next turn, so that the number is free.
                yield_now().await;
                yield_now().await;
                let (one, other) = tcp().await;
                let has_number = [&one, &other]
                    .iter()
                    .any(|stream| stream.as_fd().as_raw_fd() == number);
                assert!(has_number, "{number} was not used again");
                for stream in &mut [one, other] {
                    let reading = stream.read(Vec::with_capacity(8));
                    assert!(poll_times(3, reading).await.is_none());
                }
            });
        }
    });
}

/// The view of a plain listener in another thread, which knows nothing of the runtime.
#[test]
fn listeners_of_another_thread_lose_nothing_to_those_that_are_dropped() {
    let _alone = alone();
    on_both(|runtime| {
        let other = std::thread::spawn(|| {
            for _ in 0..300 {
                let listener = Plain::bind("127.0.0.1:0").unwrap();
                let client = PlainStream::connect(listener.local_addr().unwrap()).unwrap();
                std::thread::yield_now();
                assert_eq!(accepted(&listener), client.local_addr().unwrap());
            }
        });
        runtime
            .block_on(ringloop::time::timeout(LONG, async {
                while !other.is_finished() {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    assert!(poll_times(1, listener.accept()).await.is_none());
                    drop(listener);
                    std::thread::yield_now();
                    yield_now().await;
                }
            }))
            .unwrap();
        other.join().unwrap();
    });
}

#[test]
fn an_address_is_free_as_soon_as_its_socket_is_dropped() {
    let _alone = alone();
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..3 {
                let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                drop(poll_times(polls, socket.recv(Vec::with_capacity(1))).await);
                let address = socket.local_addr().unwrap();
                drop(socket);
                drop(UdpSocket::bind(address).await.unwrap());

                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                assert!(poll_times(polls, listener.accept()).await.is_none());
                let address = listener.local_addr().unwrap();
                drop(listener);
                drop(TcpListener::bind(address).await.unwrap());

                let name = format!("\0ringloop-free-{}", std::process::id());
                let listener = UnixListener::bind(&name).unwrap();
                assert!(poll_times(polls, listener.accept()).await.is_none());
                drop(listener);
                drop(UnixListener::bind(&name).unwrap());

                let name = format!("{name}-datagrams");
                drop(UnixDatagram::bind(&name).unwrap());
                drop(UnixDatagram::bind(&name).unwrap());
            }
        });
    });
}

/// Limits the number of descriptors of this process, until it is dropped.
struct Limit {
    before: (u64, u64),
    /// Takes the free numbers below the highest one in use.
    _fillers: Vec<File>,
}

impl Limit {
    /// Allows this many more descriptors.
    fn new(more: u64) -> Self {
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
        let number = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_str()?.parse().ok()
        };
        let highest: i32 = numbers.filter_map(number).max().unwrap();
        let mut fillers = Vec::new();
        while fillers
            .last()
            .is_none_or(|last: &File| last.as_raw_fd() < highest)
        {
            fillers.push(File::open("/dev/null").unwrap());
        }
        let end = fillers.last().unwrap().as_raw_fd() as u64 + 1;
        let before = rlimit::Resource::NOFILE.get().unwrap();
        rlimit::Resource::NOFILE.set(end + more, before.1).unwrap();
        Self {
            before,
            _fillers: fillers,
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let (soft, hard) = self.before;
        rlimit::Resource::NOFILE.set(soft, hard).unwrap();
    }
}

#[test]
fn a_descriptor_is_free_as_soon_as_its_socket_is_dropped() {
    const ROOM: u64 = 6;
    let _alone = alone();
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            drop(poll_times(1, listener.accept()).await);
            // Operations on files have threads on epoll, which get what they need before.
            drop(ringloop::fs::File::open("/dev/null").await.unwrap());
            let _limit = Limit::new(ROOM);
            let use_all = async || {
                for _ in 0..ROOM / 2 {
                    drop(UnixDatagram::pair().unwrap());
                }
            };
            for _ in 0..3 * ROOM {
                drop(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                drop(UnixDatagram::unbound().unwrap());
                drop(UnixStream::pair().unwrap());
                use_all().await;
                drop(signal(SignalKind::user_defined1()).unwrap());
                use_all().await;
                let client = TcpStream::connect(address).await.unwrap();
                drop(client);
                use_all().await;
                drop(listener.accept().await.unwrap());
                use_all().await;
                drop(ringloop::fs::File::open("/dev/null").await.unwrap());
            }
        });
    });
}

#[test]
fn a_datagram_waits_for_room_even_if_no_descriptor_is_free() {
    let _alone = alone();
    on_both(|runtime| {
        runtime.block_on(async {
            let name = format!("\0ringloop-scarce-{}", std::process::id());
            let receiver = UnixDatagram::bind(&name).unwrap();
            let sender = UnixDatagram::unbound().unwrap();
            let mut queued = 0;
            while sender.try_send_to(b"filler", &name).is_ok() {
                queued += 1;
            }
            let _limit = Limit::new(0);
            let sending = spawn(async move { sender.send_to(&b"late"[..], name).await.0 });
            sleep(Duration::from_millis(5)).await;
            assert!(!sending.is_finished());
            for _ in 0..=queued {
                let receiving = receiver.recv(Vec::with_capacity(8));
                timeout(LONG, receiving).await.unwrap().0.unwrap();
            }
            assert_eq!(sending.await.unwrap().unwrap(), 4);
        });
    });
}
