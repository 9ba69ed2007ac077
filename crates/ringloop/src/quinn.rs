//! QUIC with the `quinn` library; feature `quinn`.
//!
//! Give quinn a [`RingloopRuntime`], and it runs on a worker of ringloop: its tasks, its timers and its UDP sockets. The
//! endpoint, its connections and streams are used as quinn's documentation says. They may be used in other threads, too;
//! quinn's own tasks stay on the worker.
//!
//! This crate chooses no cryptography: enable quinn's feature `rustls-ring` or `rustls-aws-lc-rs`. None of quinn's features
//! for runtimes is needed.
//!
//! ```
//! use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, rustls::RootCertStore};
//! use ringloop::quinn::RingloopRuntime;
//! use ringloop::{Runtime, RuntimeConfig, spawn};
//! use std::net::UdpSocket;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
//! let certificate = identity.cert.der().clone();
//! let key = identity.signing_key.serialize_der().try_into()?;
//! let server_config = ServerConfig::with_single_cert(vec![certificate.clone()], key)?;
//! let mut roots = RootCertStore::empty();
//! roots.add(certificate)?;
//! let client_config = ClientConfig::with_root_certificates(Arc::new(roots))?;
//!
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let runtime = Arc::new(RingloopRuntime::current());
//!     let socket = UdpSocket::bind("127.0.0.1:0")?;
//!     let server = Endpoint::new(
//!         EndpointConfig::default(),
//!         Some(server_config),
//!         socket,
//!         runtime.clone(),
//!     )?;
//!     let address = server.local_addr()?;
//!     let serving = spawn(async move {
//!         let connection = server.accept().await.unwrap().await?;
//!         let (mut answer, mut question) = connection.accept_bi().await?;
//!         let question = question.read_to_end(1024).await.unwrap();
//!         answer.write_all(&question).await.unwrap();
//!         answer.finish().unwrap();
//!         connection.closed().await;
//!         Ok::<_, quinn::ConnectionError>(())
//!     });
//!
//!     let socket = UdpSocket::bind("127.0.0.1:0")?;
//!     let client = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
//!     let connecting = client.connect_with(client_config, address, "localhost")?;
//!     let connection = connecting.await?;
//!     let (mut question, mut answer) = connection.open_bi().await?;
//!     question.write_all(b"echo").await?;
//!     question.finish()?;
//!     assert_eq!(answer.read_to_end(1024).await?, b"echo");
//!     connection.close(0_u32.into(), b"done");
//!     serving.await??;
//!     client.wait_idle().await;
//!     Ok(())
//! })
//! # }
//! ```

mod readiness;
mod socket;
mod timer;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket};

use crate::runtime::{Handle, spawn_background};
use crate::task::Role;

/// Runs quinn on one runtime: a worker of a pool, or a [`Runtime`](crate::Runtime).
///
/// Every endpoint has its tasks in that runtime, wherever it is created and used. They end when the endpoint and its
/// connections are dropped, or when the runtime ends. Whatever still waits for an endpoint then gets an error, or the
/// reason with which quinn reports a lost driver.
///
/// To serve on all workers of a pool, create an endpoint on each, with sockets that share their address (`SO_REUSEPORT`).
/// The kernel chooses the worker by both addresses of a datagram. A client that changes its address may therefore reach a
/// worker that does not know its connection, and has to connect again.
///
/// [The module](self) has an example.
#[derive(Debug, Clone)]
pub struct RingloopRuntime {
    home: Handle,
}

impl RingloopRuntime {
    /// Uses the runtime that runs in this thread.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn current() -> Self {
        Self::new(Handle::current())
    }

    /// Uses the runtime that the handle is of.
    ///
    /// ```
    /// use ringloop::quinn::RingloopRuntime;
    /// use ringloop::{Runtime, RuntimeConfig};
    ///
    /// let runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let _of_quinn = RingloopRuntime::new(runtime.handle());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn new(home: Handle) -> Self {
        Self { home }
    }
}

impl quinn::Runtime for RingloopRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(timer::Timer::new(self.home.clone(), deadline.into()))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.home.is_here() {
            drop(spawn_background(future));
        } else {
            drop(self.home.spawn_as(Role::Background, move || future));
        }
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(socket::Socket::new(&self.home, socket)?))
    }
}
