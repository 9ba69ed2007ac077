//! Which traits the public types have, and which they must not have.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use ringloop::fs::{AlignedBuf, File, FileStream};
use ringloop::net::{
    AnyStream, TcpListener, TcpSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
};
use ringloop::process::{Child, Command};
use ringloop::server::{EndSignals, Running, Server};
use ringloop::stdio::{Stdin, Stdout};
use ringloop::time::Sleep;
use ringloop::{
    AbortHandle, AbortOnDrop, AsyncFd, Handle, JoinError, JoinHandle, JoinSet, Metrics, Pool,
    PoolConfig, Reactor, ReactorConfig, Runtime, RuntimeConfig,
};

/// Whether a type has a trait.
macro_rules! has {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code, reason = "if the type has the trait")]
        trait Absent {
            const HAS: bool = false;
        }
        impl<T: ?Sized> Absent for T {}
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        // Found before the trait's.
        #[allow(dead_code, reason = "if the type does not have the trait")]
        impl<T: ?Sized + $($bound)+> Probe<T> {
            const HAS: bool = true;
        }
        <Probe<$type>>::HAS
    }};
}

/// A conversion of a socket that does not make it non-blocking would let a wait block its whole thread.
#[test]
fn sockets_are_made_only_of_what_can_be_made_non_blocking() {
    assert!(has!(TcpListener: TryFrom<std::net::TcpListener, Error = std::io::Error>));
    macro_rules! check {
        ($($socket:ty)*) => {$(
            assert!(!has!($socket: From<socket2::Socket>), stringify!($socket));
            assert!(!has!($socket: From<OwnedFd>), stringify!($socket));
        )*};
    }
    check!(TcpListener TcpStream UdpSocket UnixDatagram UnixListener UnixStream);
}

/// The types that are passed between threads are `Send`, and those that belong to one thread are not.
#[test]
fn types_are_bound_to_threads_as_documented() {
    macro_rules! check {
        ($bound:ident: $($type:ty)*) => {$(
            assert!(has!($type: $bound), "{} is {}", stringify!($type), stringify!($bound));
        )*};
        (not $bound:ident: $($type:ty)*) => {$(
            assert!(!has!($type: $bound), "{} is not {}", stringify!($type), stringify!($bound));
        )*};
    }
    check!(Send: File Handle JoinHandle<u8> JoinError Pool PoolConfig RuntimeConfig Metrics);
    check!(Sync: File Handle JoinHandle<u8> JoinError Pool PoolConfig RuntimeConfig Metrics);
    check!(Send: AbortHandle AbortOnDrop<u8> JoinSet<u8>);
    check!(Sync: AbortHandle AbortOnDrop<u8>);
    check!(not Send: AbortOnDrop<Rc<u8>> JoinSet<Rc<u8>>);
    check!(Send: Server<TcpStream> Running EndSignals Reactor ReactorConfig);
    check!(Send: AlignedBuf Server<AnyStream> Command TcpSocket);
    check!(Sync: AlignedBuf);
    check!(not Send: AnyStream FileStream);
    check!(not Send: AsyncFd<OwnedFd> Child Stdin Stdout);
    check!(not Sync: AsyncFd<OwnedFd> Child Stdin Stdout);
    check!(not Send: JoinHandle<Rc<u8>> Runtime TcpStream TcpListener UnixStream UdpSocket Sleep);
    check!(not Sync: JoinHandle<Rc<u8>> Runtime TcpStream TcpListener UnixStream UdpSocket Reactor);
}
