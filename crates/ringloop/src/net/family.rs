//! The common parts of sockets of all families, as macros: rustdoc shows each type with its own methods, while code and
//! documentation are written once.

/// Descriptor, conversions and formatting of a type of sockets.
///
/// `make` converts a non-blocking [`socket2::Socket`], and the field's `into_socket` converts back. `Debug` shows the
/// given addresses, and ends with the method `finish`.
macro_rules! socket_traits {
    ($socket:ident { $field:ident }, $std:ty: $make:expr, [$($address:ident),*], $finish:ident) => {
        impl std::os::fd::AsFd for $socket {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.$field.as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsFd::as_fd(self).as_raw_fd()
            }
        }

        impl TryFrom<$std> for $socket {
            type Error = std::io::Error;

            /// Converts a socket of the standard library, and makes it non-blocking.
            ///
            /// # Panics
            /// Panics outside of a runtime, unless it is a listener.
            fn try_from(socket: $std) -> std::io::Result<Self> {
                socket.set_nonblocking(true)?;
                $make(socket2::Socket::from(socket))
            }
        }

        impl $socket {
            /// Converts to a socket of the standard library, which stays non-blocking. Nothing that has arrived is lost, and
            /// nothing that was written.
            ///
            /// # Errors
            /// Returns `ResourceBusy` if the kernel cannot be told at the moment, for lack of memory. The socket is then
            /// closed.
            pub fn into_std(self) -> std::io::Result<$std> {
                self.$field.into_socket().map(<$std>::from)
            }
        }

        impl TryFrom<$socket> for $std {
            type Error = std::io::Error;

            fn try_from(socket: $socket) -> std::io::Result<Self> {
                socket.into_std()
            }
        }

        /// Not infallible, because the kernel must be told; see `into_std`.
        impl TryFrom<$socket> for std::os::fd::OwnedFd {
            type Error = std::io::Error;

            fn try_from(socket: $socket) -> std::io::Result<Self> {
                socket.into_std().map(Self::from)
            }
        }

        impl std::fmt::Debug for $socket {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter
                    .debug_struct(stringify!($socket))
                    $(.field(stringify!($address), &self.$address()))*
                    .$finish()
            }
        }
    };
}

/// Implements what connections of all types have. The documentation of each method continues with what the caller adds, such
/// as an example.
macro_rules! stream_methods {
    (
        $stream:ident;
        $(#[$read:meta])* read;
        $(#[$read_vectored:meta])* read_vectored;
        $(#[$read_with:meta])* read_with;
        $(#[$write:meta])* write;
        $(#[$write_all:meta])* write_all;
        $(#[$try_write:meta])* try_write;
        $(#[$readable:meta])* readable;
        $(#[$peek:meta])* peek;
        $(#[$shutdown:meta])* shutdown;
        $(#[$into_split:meta])* into_split;
    ) => {
        impl $stream {
            /// Reads what has arrived, once, and appends it to the buffer, as far as that has room; the buffer never grows.
            /// A count of 0 means that the stream has ended, or that the buffer had no room.
            $(#[$read])*
            pub async fn read<B: ReadBuffer>(&mut self, buffer: B) -> (io::Result<usize>, B) {
                self.core().read(buffer).await
            }

            /// Reads what has arrived, once, into several buffers, one after the other (readv(2)). A count of 0 means that
            /// the stream has ended, or that the buffers have no room. To write several buffers at once, give
            /// [`write`](Self::write) a chain of them.
            $(#[$read_vectored])*
            pub async fn read_vectored(
                &mut self,
                buffers: &mut [IoSliceMut<'_>],
            ) -> io::Result<usize> {
                self.core().read_vectored(buffers).await
            }

            /// Reads in place: waits for data, reads it into the buffer that the connections of this thread share, and
            /// passes it to `use_bytes` without a copy. An empty slice is the end of the stream.
            ///
            /// Bytes that `use_bytes` does not use are lost. It cannot wait, but it can answer at once: it is also given
            /// the stream, for [`try_write`](Self::try_write).
            $(#[$read_with])*
            pub async fn read_with<T>(
                &mut self,
                use_bytes: impl FnOnce(&[u8], &$stream) -> T,
            ) -> io::Result<T> {
                let stream = &*self;
                stream
                    .core()
                    .read_with(|bytes| use_bytes(bytes, stream))
                    .await
            }

            /// Writes as much of a buffer as there is room for, and advances the buffer by that.
            $(#[$write])*
            pub async fn write<B: Buf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
                self.core().write(buffer).await
            }

            /// Writes all of a buffer. After an error, the buffer that comes back holds what was not written.
            $(#[$write_all])*
            pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
                self.core().write_all(buffer).await
            }

            /// Writes as much as there is room for now, without waiting.
            ///
            /// # Errors
            /// Returns `WouldBlock` if there is no room.
            $(#[$try_write])*
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.core().try_write(bytes)
            }

            /// Reads what has arrived, without waiting, and appends it to the buffer, as far as that has room. A count of 0
            /// means that the stream has ended, or that the buffer had no room.
            ///
            /// # Errors
            /// Returns `WouldBlock` if nothing has arrived.
            pub fn try_read(&self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
                self.core().try_read(buffer)
            }

            /// Waits until there is something to read, or the stream has ended, or an error is pending. Nothing is read:
            /// call [`try_read`](Self::try_read) next. That may still fail with `WouldBlock`; then wait again.
            ///
            /// Any number of tasks may wait at once. An idle connection that waits like this needs no buffer.
            $(#[$readable])*
            pub async fn readable(&self) -> io::Result<()> {
                self.core().ready(Direction::Read).await
            }

            /// Waits until there is room to write, or an error is pending. Call [`try_write`](Self::try_write) next. That
            /// may still fail with `WouldBlock`; then wait again. Any number of tasks may wait at once.
            pub async fn writable(&self) -> io::Result<()> {
                self.core().ready(Direction::Write).await
            }

            /// Waits for data as [`read`](Self::read) does, and appends it to the buffer, but leaves it there to be read
            /// (`MSG_PEEK`). It returns what is there, even if that is less than before: it does not wait for more.
            $(#[$peek])*
            pub async fn peek<B: ReadBuffer>(&self, buffer: B) -> (io::Result<usize>, B) {
                self.core().peek(buffer).await
}

            /// Waits until the connection is closed: the peer has reset it, it has failed, or both directions have ended. Use
            /// it beside work that needs no I/O, to stop when nobody will see the result. The future does not borrow the
            /// stream, and completes when that is dropped, too.
            ///
            /// A peer that only finishes sending may still read; see [`read_closed`](Self::read_closed). Bytes that have
            /// arrived before can still be read.
            ///
            /// ```
            /// use ringloop::net::UnixStream;
            ///
            /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
            /// let (near, far) = UnixStream::pair()?;
            /// drop(far);
            /// near.closed().await?;
            /// # Ok::<(), std::io::Error>(())
            /// # })?;
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn closed(&self) -> Closed {
                self.core().until(End::Both)
            }

            /// Waits until the peer has finished sending, or the connection is [`closed`](Self::closed), without reading
            /// anything: what has arrived before can still be read. Most clients that go away close both directions, but
            /// the kernel only tells that they have finished sending.
            ///
            /// ```
            /// use ringloop::net::UnixStream;
            /// use std::net::Shutdown;
            ///
            /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
            /// let (near, mut far) = UnixStream::pair()?;
            /// far.write_all(&b"question"[..]).await.0?;
            /// far.shutdown(Shutdown::Write)?;
            /// near.read_closed().await?; // and the question has not been read yet
            /// # Ok::<(), std::io::Error>(())
            /// # })?;
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn read_closed(&self) -> Closed {
                self.core().until(End::Reading)
            }

            /// Shuts down one or both directions. What was written before still arrives.
            $(#[$shutdown])*
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.core().shutdown(how)
            }

            /// Splits the connection into two halves, so that one task can read while another one writes.
            $(#[$into_split])*
            pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
                split(self)
            }
        }

    };
}

/// Implements a type of connections, whose only field is `core`. The documentation continues as for [`stream_methods`].
macro_rules! stream {
    ($stream:ident, $std:ty, $address:ty: $from_kernel:path; $($methods:tt)*) => {
        $crate::net::family::stream_methods! { $stream; $($methods)* }

        impl $stream {
            /// The address of this end.
            pub fn local_addr(&self) -> io::Result<$address> {
                $from_kernel(&self.core.socket().local_addr()?)
            }

            /// The address of the other end.
            pub fn peer_addr(&self) -> io::Result<$address> {
                $from_kernel(&self.core.socket().peer_addr()?)
            }
        }

        impl Stream for $stream {
            fn connection(&self, _: $crate::sealed::Internal) -> &Core {
                &self.core
            }
        }

        $crate::net::family::socket_traits!($stream { core }, $std: $stream::from_socket, [local_addr, peer_addr], finish);
    };
}

/// Implements a type of datagram sockets, whose only field is `datagrams`. The documentation continues as for
/// [`stream`].
macro_rules! datagram_socket {
    (
        $socket:ident, $std:ty, $address:ty: $from_kernel:path;
        $(#[$send:meta])* send;
        $(#[$recv:meta])* recv;
        $(#[$try_recv_from:meta])* try_recv_from;
        $(#[$readable:meta])* readable;
        $(#[$peek_from:meta])* peek_from;
    ) => {
        impl $socket {
            fn from_socket(socket: Socket) -> io::Result<Self> {
                Ok(Self {
                    datagrams: Datagrams::new(socket)?,
                })
            }

            fn socket(&self) -> &Socket {
                self.datagrams.socket()
            }

            /// Sends all of a buffer as one datagram to the address that the socket is connected to.
            ///
            /// # Errors
            /// Returns the errors of send(2).
            $(#[$send])*
            pub async fn send<B: Buf>(&self, buffer: B) -> (io::Result<usize>, B) {
                self.datagrams.send(buffer, None).await
            }

            /// Receives a datagram, and appends it to the buffer, as far as that has room; a buffer in pieces gets it in its
            /// next piece. What does not fit is lost; without room that is the whole datagram.
            ///
            /// # Errors
            /// Returns the errors of recv(2).
            $(#[$recv])*
            pub async fn recv<B: ReadBuffer>(&self, buffer: B) -> (io::Result<usize>, B) {
                self.datagrams.recv(buffer).await
            }

            /// Receives a datagram as [`recv`](Self::recv) does, and the address of its sender.
            pub async fn recv_from<B: ReadBuffer>(
                &self,
                buffer: B,
            ) -> (io::Result<(usize, $address)>, B) {
                let (result, buffer) = self.datagrams.recv_from(buffer).await;
                let result =
                    result.and_then(|(count, address)| Ok((count, $from_kernel(&address)?)));
                (result, buffer)
            }

            /// Sends a datagram to the address that the socket is connected to, without waiting.
            ///
            /// # Errors
            /// Returns `WouldBlock` if there is no room.
            pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
                self.datagrams
                    .try_call(Direction::Write, |socket| datagram::send(socket, bytes, None))
            }

            /// Receives a datagram that has already arrived.
            ///
            /// # Errors
            /// Returns `WouldBlock` if there is none.
            pub fn try_recv(&self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
                self.datagrams
                    .try_call(Direction::Read, |socket| datagram::receive(socket, buffer))
            }

            /// Receives a datagram that has already arrived, and the address of its sender.
            ///
            /// # Errors
            /// Returns `WouldBlock` if there is none.
            $(#[$try_recv_from])*
            pub fn try_recv_from(
                &self,
                buffer: &mut impl ReadBuffer,
            ) -> io::Result<(usize, $address)> {
                let (count, address) = self
                    .datagrams
                    .try_call(Direction::Read, |socket| datagram::receive_from(socket, buffer))?;
                Ok((count, $from_kernel(&address)?))
            }

            /// Waits until a datagram has arrived, or an error is pending. Call [`try_recv`](Self::try_recv) or
            /// [`try_recv_from`](Self::try_recv_from) next. That may still fail with `WouldBlock`; then wait again.
            $(#[$readable])*
            pub async fn readable(&self) -> io::Result<()> {
                self.datagrams.ready(Direction::Read).await
            }

            /// Waits until there is room to send, or an error is pending. Call [`try_send`](Self::try_send) next. That may
            /// still fail with `WouldBlock`; then wait again.
            pub async fn writable(&self) -> io::Result<()> {
                self.datagrams.ready(Direction::Write).await
            }

            /// Receives a datagram as [`recv`](Self::recv) does, but leaves it there: the next call receives it again
            /// (`MSG_PEEK`).
            pub async fn peek<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<usize>, B) {
                let peeked = self
                    .datagrams
                    .peek(|socket| datagram::peek(socket, &mut buffer).map(|(count, _)| count));
                (peeked.await, buffer)
            }

            /// Receives a datagram as [`recv_from`](Self::recv_from) does, but leaves it there: the next call receives it
            /// again (`MSG_PEEK`).
            $(#[$peek_from])*
            pub async fn peek_from<B: ReadBuffer>(
                &self,
                mut buffer: B,
            ) -> (io::Result<(usize, $address)>, B) {
                let peeked = self
                    .datagrams
                    .peek(|socket| datagram::peek(socket, &mut buffer))
                    .await;
                let result =
                    peeked.and_then(|(count, address)| Ok((count, $from_kernel(&address)?)));
                (result, buffer)
            }

            /// The address that the socket is bound to.
            pub fn local_addr(&self) -> io::Result<$address> {
                $from_kernel(&self.socket().local_addr()?)
            }

            /// The address that the socket is connected to.
            pub fn peer_addr(&self) -> io::Result<$address> {
                $from_kernel(&self.socket().peer_addr()?)
            }
        }

        $crate::net::family::socket_traits!($socket { datagrams }, $std: $socket::from_socket, [local_addr], finish_non_exhaustive);
    };
}

pub(super) use {datagram_socket, socket_traits, stream, stream_methods};
