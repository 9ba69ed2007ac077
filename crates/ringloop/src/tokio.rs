//! Using libraries that need tokio's own runtime, beside a worker; feature `tokio-rt`.
//!
//! reqwest, sqlx, tonic and many other libraries look for a tokio runtime in the current thread: for its sockets, its timers
//! and `tokio::spawn`. [`in_tokio`] makes one current while a future is polled, and while it is dropped. The future itself
//! runs as any other on this crate's runtime; what it waits for is done by the threads of the tokio runtime, which wake it.
//!
//! Give the tokio runtime threads of its own (`rt-multi-thread`), because nobody here runs a `current_thread` runtime. One
//! thread is often enough, since requests themselves run on the workers.
//!
//! ```
//! use ringloop::tokio::in_tokio;
//! use ringloop::{Runtime, RuntimeConfig};
//!
//! # fn main() -> std::io::Result<()> {
//! let other = tokio::runtime::Builder::new_multi_thread()
//!     .worker_threads(1)
//!     .enable_all()
//!     .build()?;
//! let tokio = other.handle().clone(); // may be sent to all workers
//!
//! Runtime::new(&RuntimeConfig::default())?.block_on(in_tokio(&tokio, async {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//!     let stream = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
//!     tokio::time::timeout(std::time::Duration::from_secs(60), listener.accept()).await??;
//!     assert_eq!(tokio::spawn(async { 42 }).await?, 42);
//!     drop(stream);
//!     Ok(())
//! }))
//! # }
//! ```
//!
//! - Objects of tokio's that leave the future, such as a pool of connections, may need the runtime when they are dropped, too.
//!   Drop them inside a future of [`in_tokio`], or inside [`Handle::enter`](tokio::runtime::Handle::enter).
//! - `tokio::task::spawn_local` and `block_in_place` do not work: they need a thread of tokio's own.
//! - A future that must be `Send` and that does much work is better off on tokio's threads: the handle of `Handle::spawn` can
//!   be awaited here, even without [`in_tokio`].
//! - Each wait costs a wake from another thread, about as much as a message through a channel.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;

/// Returns a future that does the same as `future`, with a tokio runtime as the current one. See [the module](self).
///
/// The tokio runtime must live as long as the future waits: its timers panic, and its sockets fail, when it has ended.
pub fn in_tokio<F: Future>(handle: &Handle, future: F) -> InTokio<F> {
    InTokio {
        handle: handle.clone(),
        future: Some(future),
    }
}

pin_project! {
    /// A future with a tokio runtime as the current one; created by [`in_tokio`].
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct InTokio<F> {
        handle: Handle,
        // `None` once it has completed.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for InTokio<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.handle.enter();
            this.future.set(None);
        }
    }
}

impl<F: Future> Future for InTokio<F> {
    type Output = F::Output;

    /// # Panics
    /// Panics if it is polled after it has completed.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _entered = this.handle.enter();
        let future = this.future.as_mut().as_pin_mut();
        let polled = future
            .expect("a future was polled after it had completed")
            .poll(context);
        if polled.is_ready() {
            this.future.set(None);
        }
        polled
    }
}

impl<F> fmt::Debug for InTokio<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("InTokio")
    }
}
