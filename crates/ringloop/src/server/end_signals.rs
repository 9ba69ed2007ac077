//! The signals that ask a process to end.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::sys;

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndSignal(i32);

impl EndSignal {
    /// The signal's number, see signal(7).
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(signal_name(self.0).unwrap_or("an unknown signal"))
    }
}

/// The state that all listeners of the process share.
struct Listeners {
    count: usize,
    /// Whether the next signal ends the process: because it was asked before, or because nobody listens.
    is_asked: Arc<AtomicBool>,
}

/// `None` until somebody listens for the first time.
static LISTENERS: Mutex<Option<Listeners>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Listeners>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Installs the handlers, which stay until the process ends.
    fn new() -> io::Result<Self> {
        let is_asked = Arc::new(AtomicBool::new(true));
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&is_asked))?;
            flag::register(signal, Arc::clone(&is_asked))?;
        }
        Ok(Self { count: 0, is_asked })
    }
}

/// Listens to the signals that ask a process to end: SIGINT (Ctrl-C) and SIGTERM. It listens from its creation, so
/// create it before the program reports that it is ready. A second signal ends the process at once. So does any signal
/// when all listeners were dropped: the default action is not restored, but the exit code is the one that a shell gives
/// for it, 128 and the signal's number.
///
/// A process may listen several times, one after the other or at once; each listener is told.
///
/// ```no_run
/// use ringloop::server::{Connection, EndSignals, Handler, Server};
/// use std::{io, time::Duration};
///
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
/// # fn main() -> io::Result<()> {
/// let signals = EndSignals::listen()?;
/// let server = Server::new("127.0.0.1:7000").start(|| Echo)?;
/// println!("ready");
/// let signal = signals.wait();
/// println!("{signal}: ending");
/// server.shutdown(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "when this is dropped, the next signal ends the process"]
pub struct EndSignals {
    signals: Signals,
}

impl EndSignals {
    /// Starts to listen.
    ///
    /// # Errors
    /// Returns the errors of sigaction(2).
    pub fn listen() -> io::Result<Self> {
        let mut listeners = lock();
        for signal in [SIGINT, SIGTERM] {
            sys::undo_restore_default(signal)?;
        }
        let listeners = match &mut *listeners {
            Some(listeners) => listeners,
            none => none.insert(Listeners::new()?),
        };
        // After the other handlers. So when a signal is reported here, it has found the flag as it was, and not as a drop
        // of this leaves it.
        let signals = Signals::new([SIGINT, SIGTERM])?;
        listeners.count += 1;
        listeners.is_asked.store(false, Ordering::SeqCst);
        Ok(Self { signals })
    }

    /// Ends the wait from another thread.
    pub(super) fn closer(&self) -> signal_hook::iterator::Handle {
        self.signals.handle()
    }

    /// Blocks until the first of these signals, which may have arrived already.
    pub fn wait(mut self) -> EndSignal {
        EndSignal(self.signals.forever().next().unwrap_or(SIGTERM))
    }
}

impl Drop for EndSignals {
    fn drop(&mut self) {
        if let Some(listeners) = &mut *lock() {
            listeners.count -= 1;
            if listeners.count == 0 {
                listeners.is_asked.store(true, Ordering::SeqCst);
            }
        }
    }
}
