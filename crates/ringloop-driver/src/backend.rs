//! The choice of a backend, and the calls to the chosen one.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::config::{BACKEND_VARIABLE, BackendChoice, BackendKind, Config, Refused};
use crate::contract::{Counters, Peek};
use crate::epoll::Epoll;
use crate::event::{Event, Interest, Mode};
use crate::op::{Op, SubmitError};
use crate::registry::Registry;
#[cfg(feature = "test-util")]
use crate::scripted::Scripted;
use crate::token::Token;
use crate::uring::Uring;
use crate::waker::Waker;

/// The backends. All of them are always compiled; which one is used is decided at run time.
pub(crate) enum Backend {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    #[cfg(feature = "test-util")]
    Scripted(Box<Scripted>),
}

/// Makes the backend that is asked for. The text says why it is this one.
pub(crate) fn choose(config: &Config, waker: &Waker) -> io::Result<(Backend, String)> {
    let epoll = |reason| {
        let epoll = Epoll::new(waker.clone(), config.slots)?;
        Ok((Backend::Epoll(Box::new(epoll)), reason))
    };
    match config.backend {
        BackendChoice::Epoll => epoll(format!("epoll: forced by {}", config.forced_by())),
        BackendChoice::IoUring => match Uring::new(config, waker.clone()) {
            Ok(uring) => {
                let reason = uring.description().to_owned();
                Ok((Backend::Uring(Box::new(uring)), reason))
            }
            Err(error) => {
                let errno =
                    Refused::of(&error).map_or_else(|| error.raw_os_error(), Refused::errno);
                let text = format!(
                    "io_uring is forced by {}, but {error}{}",
                    config.forced_by(),
                    remedy(errno, config)
                );
                Err(io::Error::new(error.kind(), Refused::new(errno, text)))
            }
        },
        BackendChoice::Auto => match Uring::new(config, waker.clone()) {
            Ok(uring) => {
                let reason = uring.description().to_owned();
                Ok((Backend::Uring(Box::new(uring)), reason))
            }
            Err(error) => epoll(format!("epoll: {error}")),
        },
    }
}

/// The remedy where a forced `io_uring` is refused, as the end of a sentence.
fn remedy(errno: Option<i32>, config: &Config) -> String {
    let change = match errno {
        // The reason says what to do, and epoll needs descriptors, too.
        Some(libc::EMFILE | libc::ENFILE) => return String::new(),
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => "allow it, or ",
        Some(libc::ENOMEM) => "raise the limit, or ",
        Some(libc::EINVAL) | None => "use a newer kernel, or ",
        Some(_) => "",
    };
    if config.is_forced_by_environment() {
        format!(": {change}set {BACKEND_VARIABLE} to epoll or auto")
    } else {
        format!(": {change}choose epoll or auto there")
    }
}

/// Calls a method of the backend in use.
macro_rules! each {
    ($backend:expr, $name:ident => $call:expr) => {
        match $backend {
            Backend::Uring($name) => $call,
            Backend::Epoll($name) => $call,
            #[cfg(feature = "test-util")]
            Backend::Scripted($name) => $call,
        }
    };
}

impl Backend {
    pub(crate) fn kind(&self) -> BackendKind {
        match self {
            Backend::Uring(_) => BackendKind::IoUring,
            Backend::Epoll(_) => BackendKind::Epoll,
            #[cfg(feature = "test-util")]
            Backend::Scripted(_) => BackendKind::Scripted,
        }
    }

    #[inline]
    pub(crate) fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        each!(self, backend => backend.watch(fd, interest, mode))
    }

    #[inline]
    pub(crate) fn rewatch(
        &mut self,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        each!(self, backend => backend.rewatch(token, interest, mode))
    }

    #[inline]
    pub(crate) fn unwatch(&mut self, token: Token) {
        each!(self, backend => backend.unwatch(token));
    }

    pub(crate) fn registry(&mut self) -> io::Result<Registry> {
        each!(self, backend => backend.registry())
    }

    #[inline]
    pub(crate) fn submit(&mut self, op: Op) -> Result<Token, SubmitError> {
        each!(self, backend => backend.submit(op))
    }

    #[inline]
    pub(crate) fn take(&mut self, token: Token) -> Option<Op> {
        each!(self, backend => backend.take(token))
    }

    pub(crate) fn take_fd(&mut self, event: &Event) -> Option<OwnedFd> {
        each!(self, backend => backend.take_fd(event))
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        each!(self, backend => backend.cancel(token));
    }

    pub(crate) fn cancel_fd(&mut self, fd: RawFd) {
        each!(self, backend => backend.cancel_fd(fd));
    }

    pub(crate) fn discard(&mut self, token: Token) {
        each!(self, backend => backend.discard(token));
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        each!(self, backend => backend.flush())
    }

    pub(crate) fn flush_if_own(&mut self) -> io::Result<()> {
        each!(self, backend => backend.flush_if_own())
    }

    #[inline]
    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        each!(self, backend => backend.poll(timeout, events))
    }

    #[inline]
    pub(crate) fn peek(&self) -> Peek {
        each!(self, backend => backend.peek())
    }

    pub(crate) fn counters(&self) -> Counters {
        each!(self, backend => backend.counters())
    }

    pub(crate) fn abandon(&mut self) {
        each!(self, backend => backend.abandon());
    }
}
