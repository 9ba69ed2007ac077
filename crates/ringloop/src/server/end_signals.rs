//! The signals that ask a process to end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// The signal's number, see signal(7).
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(signal_name(self.0).unwrap_or("an unknown signal"))
    }
}

/// Listens to the signals that ask a process to end: SIGINT (Ctrl-C) and SIGTERM. It listens from its creation, so
/// create it before the program reports that it is ready. A second signal ends the process at once, and so does the
/// first one after this was dropped.
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
/// let server = Server::bind("127.0.0.1:7000").start(|| Echo)?;
/// println!("ready");
/// let signal = signals.wait();
/// println!("{signal}: ending");
/// server.shutdown(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EndSignals {
    signals: Signals,
    /// Whether the next signal ends the process.
    asked: Arc<AtomicBool>,
    has_come: bool,
}

impl EndSignals {
    /// Starts to listen. It stays in effect until the process ends.
    ///
    /// # Errors
    /// Returns the errors of sigaction(2).
    pub fn listen() -> io::Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM])?;
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal finds `asked` unset.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self {
            signals,
            asked,
            has_come: false,
        })
    }

    /// Blocks until the first of these signals, which may have arrived already.
    pub fn wait(mut self) -> Signal {
        let signal = self.signals.forever().next().unwrap_or(SIGTERM);
        self.has_come = true;
        Signal(signal)
    }
}

impl Drop for EndSignals {
    /// If nobody has waited, for example because the server could not start, the next signal ends the process.
    fn drop(&mut self) {
        // If a signal has arrived, its handler may be about to check the flag.
        if !self.has_come {
            self.asked.store(true, Ordering::Relaxed);
        }
    }
}
