//! Channels between tasks of any workers, and other threads.
//!
//! They are those of the crate `async-channel`, with one difference: a task that sends or receives without ever having to
//! wait lets the other tasks of its worker run from time to time.
//!
//! ```
//! use ringloop::{channel, spawn};
//!
//! # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
//! let (requests, inbox) = channel::bounded(16);
//! let task = spawn(async move {
//!     let mut sum = 0;
//!     while let Ok(number) = inbox.recv().await {
//!         sum += number;
//!     }
//!     sum
//! });
//! for number in 1..=4 {
//!     requests.send(number).await.unwrap();
//! }
//! drop(requests);
//! assert_eq!(task.await.unwrap(), 10);
//! # Ok::<(), std::io::Error>(())
//! # })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_core::stream::{FusedStream, Stream};
use pin_project_lite::pin_project;

use crate::budget;

pub use async_channel::{RecvError, SendError, TryRecvError, TrySendError};

/// Creates a channel that holds up to `capacity` messages. Sending to a full one waits.
///
/// # Panics
/// Panics if the capacity is 0.
///
/// ```
/// use ringloop::channel;
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.try_send("first").unwrap();
/// assert!(sender.try_send("second").unwrap_err().is_full());
/// assert_eq!(receiver.try_recv(), Ok("first"));
/// ```
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    both(async_channel::bounded(capacity))
}

/// Creates a channel that holds any number of messages. If they are sent faster than they are received, it grows until
/// memory runs out.
///
/// ```
/// use ringloop::channel;
///
/// let (sender, receiver) = channel::unbounded();
/// for number in 0..1000 {
///     sender.try_send(number).unwrap();
/// }
/// assert_eq!(receiver.len(), 1000);
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    both(async_channel::unbounded())
}

fn both<T>(
    (sender, receiver): (async_channel::Sender<T>, async_channel::Receiver<T>),
) -> (Sender<T>, Receiver<T>) {
    (Sender { inner: sender }, Receiver { inner: receiver })
}

/// Runs a future of a channel, which counts as an operation of its task.
async fn counted<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| budget::poll_counted(context, |context| future.as_mut().poll(context))).await
}

/// The methods that both ends have.
macro_rules! either_end {
    ($end:ident, $weak:ident) => {
        impl<T> $end<T> {
            /// Closes the channel. Nothing can be sent any more; what was sent can still be received. Returns false if it
            /// was closed already. It is also closed when all senders, or all receivers, are dropped.
            pub fn close(&self) -> bool {
                self.inner.close()
            }

            /// Whether the channel is closed.
            pub fn is_closed(&self) -> bool {
                self.inner.is_closed()
            }

            /// Whether the channel holds no message.
            pub fn is_empty(&self) -> bool {
                self.inner.is_empty()
            }

            /// Whether the channel holds as many messages as it may.
            pub fn is_full(&self) -> bool {
                self.inner.is_full()
            }

            /// The number of messages in the channel.
            pub fn len(&self) -> usize {
                self.inner.len()
            }

            /// The largest number of messages that the channel holds; `None` if it is not limited.
            pub fn capacity(&self) -> Option<usize> {
                self.inner.capacity()
            }

            /// The number of receivers.
            pub fn receiver_count(&self) -> usize {
                self.inner.receiver_count()
            }

            /// The number of senders.
            pub fn sender_count(&self) -> usize {
                self.inner.sender_count()
            }

            /// Whether both belong to the same channel.
            pub fn same_channel(&self, other: &Self) -> bool {
                self.inner.same_channel(&other.inner)
            }

            /// Creates a reference that does not keep the channel open.
            pub fn downgrade(&self) -> $weak<T> {
                $weak {
                    inner: self.inner.downgrade(),
                }
            }
        }

        impl<T> Clone for $end<T> {
            fn clone(&self) -> Self {
                Self {
                    inner: self.inner.clone(),
                }
            }
        }

        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(formatter)
            }
        }

        impl<T> $weak<T> {
            /// Returns an end of the channel, unless all ends of this kind are gone, or it is closed.
            pub fn upgrade(&self) -> Option<$end<T>> {
                self.inner.upgrade().map(|inner| $end { inner })
            }
        }

        impl<T> Clone for $weak<T> {
            fn clone(&self) -> Self {
                Self {
                    inner: self.inner.clone(),
                }
            }
        }

        impl<T> fmt::Debug for $weak<T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(formatter)
            }
        }
    };
}

/// The sending end of a channel. Clone it to send from several tasks or threads.
pub struct Sender<T> {
    inner: async_channel::Sender<T>,
}

either_end!(Sender, WeakSender);

impl<T> Sender<T> {
    /// Sends a message. Waits while the channel is full. Dropping the future drops the message, unless it was sent.
    ///
    /// # Errors
    /// Returns the message if the channel is closed.
    pub async fn send(&self, message: T) -> Result<(), SendError<T>> {
        counted(self.inner.send(message)).await
    }

    /// Sends a message, if there is room at once.
    ///
    /// # Errors
    /// Returns the message if the channel is full or closed.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.inner.try_send(message)
    }

    /// Sends a message from a thread that may block. Blocks it while the channel is full.
    ///
    /// # Errors
    /// Returns the message if the channel is closed.
    pub fn send_blocking(&self, message: T) -> Result<(), SendError<T>> {
        self.inner.send_blocking(message)
    }

    /// Sends a message. If the channel is full, this replaces the last message that was sent, and returns that one.
    ///
    /// # Errors
    /// Returns the message if the channel is closed.
    pub fn force_send(&self, message: T) -> Result<Option<T>, SendError<T>> {
        self.inner.force_send(message)
    }

    /// Waits until the channel is closed.
    ///
    /// ```
    /// use ringloop::channel;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (sender, receiver) = channel::bounded::<()>(1);
    /// drop(receiver);
    /// sender.closed().await; // nobody will receive anything
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn closed(&self) {
        counted(self.inner.closed()).await;
    }
}

/// A sender that does not keep its channel open; created by [`Sender::downgrade`].
pub struct WeakSender<T> {
    inner: async_channel::WeakSender<T>,
}

pin_project! {
    /// The receiving end of a channel. Each message reaches one receiver. It is also a `Stream` of the crate
    /// `futures-core`, which ends when the channel is closed and empty.
    pub struct Receiver<T> {
        #[pin]
        inner: async_channel::Receiver<T>,
    }
}

either_end!(Receiver, WeakReceiver);

impl<T> Receiver<T> {
    /// Receives a message. Waits while the channel is empty. Dropping the future loses no message.
    ///
    /// # Errors
    /// Returns an error if the channel is closed and empty.
    pub async fn recv(&self) -> Result<T, RecvError> {
        counted(self.inner.recv()).await
    }

    /// Receives a message, if there is one at once.
    ///
    /// # Errors
    /// Returns an error if the channel is empty.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.inner.try_recv()
    }

    /// Receives a message in a thread that may block. Blocks it while the channel is empty.
    ///
    /// # Errors
    /// Returns an error if the channel is closed and empty.
    pub fn recv_blocking(&self) -> Result<T, RecvError> {
        self.inner.recv_blocking()
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let inner = self.project().inner;
        budget::poll_counted(context, |context| inner.poll_next(context))
    }
}

impl<T> FusedStream for Receiver<T> {
    fn is_terminated(&self) -> bool {
        self.inner.is_terminated()
    }
}

/// A receiver that does not keep its channel open; created by [`Receiver::downgrade`].
pub struct WeakReceiver<T> {
    inner: async_channel::WeakReceiver<T>,
}
