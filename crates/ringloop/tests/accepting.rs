//! The promises of listeners: to clients that leave early, to several tasks, and to other listeners on the same
//! address.

mod common;

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::TcpStream as Plain;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as PlainUnixListener, UnixStream as PlainUnix};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{LONG, ReadOnce, on_both, poll_times};
use ringloop::net::{TcpListener, UnixListener};
use ringloop::time::timeout;
use ringloop::{spawn, yield_now};
use socket2::SockRef;

fn name() -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ringloop-accepting-{}-{count}", std::process::id());
    SocketAddr::from_abstract_name(name).unwrap()
}

#[test]
fn clients_that_are_gone_before_they_are_accepted_end_no_accept_loop() {
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let unix = UnixListener::bind(name()).unwrap();
            // The first time nothing is known of the listener yet.
            for round in 0_u8..3 {
                let gone = Plain::connect(listener.local_addr().unwrap()).unwrap();
                let address = gone.local_addr().unwrap();
                SockRef::from(&gone)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(gone);
                let (mut stream, peer) = listener.accept().await.unwrap();
                assert_eq!(peer, address, "round {round}");
                let (count, _) = stream.read(Vec::with_capacity(1)).await;
                assert_eq!(count.unwrap_err().kind(), ErrorKind::ConnectionReset);

                drop(PlainUnix::connect_addr(&unix.local_addr().unwrap()).unwrap());
                let (mut stream, _) = unix.accept().await.unwrap();
                assert_eq!(stream.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
            }
            let near = Plain::connect(listener.local_addr().unwrap()).unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, near.local_addr().unwrap());
        });
    });
}

#[test]
fn several_tasks_accept_from_one_listener() {
    const TASKS: usize = 5;
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = Rc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
            let unix = Rc::new(UnixListener::bind(name()).unwrap());
            let accepted = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let (listener, unix) = (Rc::clone(&listener), Rc::clone(&unix));
                    let accepted = Rc::clone(&accepted);
                    spawn(async move {
                        let (stream, peer) = listener.accept().await.unwrap();
                        accepted.borrow_mut().push(peer);
                        let unix = unix.accept().await.unwrap();
                        (stream, unix)
                    })
                })
                .collect();
            yield_now().await;
            // One that has stopped waiting takes none.
            assert!(poll_times(1, listener.accept()).await.is_none());
            let mut clients = Vec::new();
            for _ in 0..TASKS {
                clients.push(Plain::connect(listener.local_addr().unwrap()).unwrap());
                yield_now().await;
            }
            let unix: Vec<_> = (0..TASKS)
                .map(|_| PlainUnix::connect_addr(&unix.local_addr().unwrap()).unwrap())
                .collect();
            for task in tasks {
                timeout(LONG, task).await.unwrap().unwrap();
            }
            let addresses: Vec<_> = clients
                .iter()
                .map(|near| near.local_addr().unwrap())
                .collect();
            assert_eq!(*accepted.borrow(), addresses, "in their order, each once");
            drop(unix);
        });
    });
}

/// As for a restart without a gap: another listener on the same socket gets the connections that this one was not asked
/// for.
#[test]
fn what_nobody_has_accepted_is_left_to_whoever_listens_next() {
    const CLIENTS: usize = 100;
    on_both(|runtime| {
        runtime.block_on(async {
            let next = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = next.local_addr().unwrap();
            let listener = TcpListener::try_from(next.try_clone().unwrap()).unwrap();
            let next_unix = PlainUnixListener::bind_addr(&name()).unwrap();
            let unix = UnixListener::try_from(next_unix.try_clone().unwrap()).unwrap();
            let unix_address = unix.local_addr().unwrap();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| Plain::connect(address).unwrap())
                .collect();
            let unix_clients: Vec<_> = (0..CLIENTS)
                .map(|_| PlainUnix::connect_addr(&unix_address).unwrap())
                .collect();
            for _ in 0..2 {
                listener.accept().await.unwrap();
                unix.accept().await.unwrap();
                yield_now().await;
            }
            drop((listener, unix));
            yield_now().await;
            next.set_nonblocking(true).unwrap();
            for client in &clients[2..] {
                let (_, peer) = next.accept().expect("it was taken, and reset");
                assert_eq!(peer, client.local_addr().unwrap());
            }
            next_unix.set_nonblocking(true).unwrap();
            for mut client in unix_clients.into_iter().skip(2) {
                drop(next_unix.accept().expect("it was taken, and closed"));
                // Only now.
                assert_eq!(client.read_once(&mut [0]).unwrap(), 0);
            }
        });
    });
}

#[test]
fn who_accepts_many_lets_the_others_run() {
    const CLIENTS: usize = 600;
    on_both(|runtime| {
        runtime.block_on(async {
            let name = name();
            let listener = UnixListener::bind(&name).unwrap();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| PlainUnix::connect_addr(&name).unwrap())
                .collect();
            let accepted = Rc::new(RefCell::new(0));
            let counting = Rc::clone(&accepted);
            let accepting = spawn(async move {
                while *counting.borrow() < CLIENTS {
                    listener.accept().await.unwrap();
                    *counting.borrow_mut() += 1;
                }
            });
            let seen = spawn(async move { *accepted.borrow() });
            let before = seen.await.unwrap();
            assert!((1..CLIENTS).contains(&before), "{before} in one go");
            timeout(LONG, accepting).await.unwrap().unwrap();
            drop(clients);
        });
    });
}
