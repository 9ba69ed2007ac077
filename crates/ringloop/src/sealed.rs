//! Keeps the methods of sealed traits to the crate.
//!
//! A bound by a public trait brings the methods of that trait, and of those that it requires, into the reach of anybody's
//! generic code, even if they are in a private module. So each takes a value that only the crate can make.

/// Lets the crate call a method of a sealed trait.
#[derive(Clone, Copy, Debug)]
pub struct Internal(());

pub(crate) const INTERNAL: Internal = Internal(());

/// Generic code of others cannot reach what connections are made of.
///
/// ```compile_fail
/// fn reach<S: ringloop::net::Stream>(stream: &S) {
///     stream.core();
/// }
/// ```
///
/// ```compile_fail
/// fn reach<S: ringloop::net::Stream>(stream: &S) {
///     stream.connection(ringloop::sealed::INTERNAL);
/// }
/// ```
///
/// ```compile_fail
/// fn reach<S: ringloop::net::Stream>(stream: &S) {
///     stream.connection(Default::default());
/// }
/// ```
///
/// ```compile_fail
/// fn reach<S: ringloop::server::Transport>(stream: &S) {
///     stream.socket(Default::default());
/// }
/// ```
///
/// ```compile_fail
/// fn reach<S: ringloop::server::Transport>() -> S::Unsent {
///     Default::default()
/// }
/// ```
///
/// ```compile_fail
/// fn reach<S: ringloop::hyper::Negotiated>(stream: &S) -> bool {
///     stream.is_http2(Default::default())
/// }
/// ```
///
/// ```compile_fail
/// struct Mine;
/// impl ringloop::net::Stream for Mine {}
/// ```
///
/// ```compile_fail
/// struct Mine;
/// impl ringloop::server::Transport for Mine {}
/// ```
///
/// The bounds themselves are for everybody.
///
/// ```
/// use ringloop::net::{OwnedReadHalf, Stream, TcpStream};
/// use ringloop::server::{Server, Transport};
///
/// fn halves<S: Stream>(half: &OwnedReadHalf<S>) -> &S {
///     half.stream()
/// }
///
/// fn small<S: Transport>(server: Server<S>) -> Server<S> {
///     server.workers(1)
/// }
///
/// let _ = (halves::<TcpStream>, small::<TcpStream>);
/// ```
#[cfg(doctest)]
struct OutOfReach;
