//! The configuration of a driver, from the program and from the environment.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::str::FromStr;

/// The environment variable that forces a backend: `io_uring`, `epoll` or `auto`.
pub const BACKEND_VARIABLE: &str = "RINGLOOP_BACKEND";

/// The maximum size of a submission queue, the kernel's `IORING_MAX_ENTRIES`.
const ENTRIES_MAX: u32 = 32_768;

/// The maximum size of a completion queue, the kernel's `IORING_MAX_CQ_ENTRIES`.
pub(crate) const COMPLETION_ENTRIES_MAX: u32 = 2 * ENTRIES_MAX;

/// The maximum of [`Config::slots`].
pub const SLOTS_MAX: usize = 1 << 24;

/// How a [`Driver`](crate::Driver) is set up.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Which backend to use. [`BackendChoice::Auto`] tries `io_uring` and falls back to epoll.
    pub backend: BackendChoice,
    /// Entries of the submission queue, from 1 to 32,768; the kernel rounds up to a power of two. More requests than
    /// that may be queued between two polls: they wait in the driver's own memory. `io_uring` only.
    pub entries: u32,
    /// Entries of the completion queue, from `entries` to 65,536; `None` means eight times `entries`, because an
    /// overflow of the queue ends multishot requests, and each has to be armed again. `io_uring` only.
    pub completion_entries: Option<u32>,
    /// The number of watches and operations to preallocate memory for, up to [`SLOTS_MAX`]. It is not a limit: beyond
    /// it, full tables grow by being copied.
    pub slots: usize,
    /// Whether a kernel thread takes submissions without a system call (`IORING_SETUP_SQPOLL`). That thread occupies a
    /// CPU while there is work, and it releases a descriptor some time after [`flush`](crate::Driver::flush), not
    /// during it. `io_uring` only.
    pub sq_poll: bool,
    /// The choice of [`BACKEND_VARIABLE`]. If it is still `backend`, the reason that users see names the variable.
    from_environment: Option<BackendChoice>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: BackendChoice::Auto,
            entries: 256,
            completion_entries: None,
            slots: 0,
            sq_poll: false,
            from_environment: None,
        }
    }
}

impl Config {
    /// The default configuration with this backend.
    pub fn with_backend(backend: BackendChoice) -> Config {
        Config {
            backend,
            ..Config::default()
        }
    }

    /// The default configuration, with the backend that [`BACKEND_VARIABLE`] names. Case and surrounding white space do
    /// not matter. Unset or empty means [`BackendChoice::Auto`].
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] on any other value. The error names it and the accepted values.
    pub fn from_env() -> io::Result<Config> {
        Config::from_variable(env::var_os(BACKEND_VARIABLE).as_deref())
    }

    fn from_variable(value: Option<&OsStr>) -> io::Result<Config> {
        let value = value.unwrap_or_default().to_string_lossy();
        let name = value.trim();
        if name.is_empty() {
            return Ok(Config::default());
        }
        let backend = name.to_ascii_lowercase().parse();
        // The error quotes the value as it was given.
        let backend = backend.or_else(|_| name.parse());
        let backend = backend.map_err(|error: UnknownBackend| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{BACKEND_VARIABLE}: {error}"),
            )
        })?;
        Ok(Config {
            backend,
            from_environment: Some(backend),
            ..Config::default()
        })
    }

    /// Checks the sizes, on any backend. Fails with [`io::ErrorKind::InvalidInput`].
    pub(crate) fn check(&self) -> io::Result<()> {
        let completions = self.completion_entries.unwrap_or(ENTRIES_MAX);
        let mistake = if !(1..=ENTRIES_MAX).contains(&self.entries) {
            format!(
                "entries is {}: a submission queue has 1 to {ENTRIES_MAX}",
                self.entries
            )
        } else if !(self.entries..=COMPLETION_ENTRIES_MAX).contains(&completions) {
            format!(
                "completion_entries is {completions}: a completion queue has at least as many entries as the submission \
                 queue, here {}, and at most {COMPLETION_ENTRIES_MAX}",
                self.entries
            )
        } else if self.slots > SLOTS_MAX {
            format!(
                "slots is {}: at most {SLOTS_MAX} can be set aside",
                self.slots
            )
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, mistake))
    }

    /// Who forced the backend, as text: "`RINGLOOP_BACKEND`" or "the configuration".
    pub(crate) fn forced_by(&self) -> &'static str {
        if self.is_forced_by_environment() {
            BACKEND_VARIABLE
        } else {
            "the configuration"
        }
    }

    /// Whether the backend is the one that [`BACKEND_VARIABLE`] names.
    pub(crate) fn is_forced_by_environment(&self) -> bool {
        self.from_environment == Some(self.backend)
    }
}

/// Which backend is wanted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
#[non_exhaustive]
pub enum BackendChoice {
    /// `io_uring` where the kernel and the container grant it, epoll elsewhere.
    #[default]
    Auto,
    /// `io_uring` or an error.
    IoUring,
    /// epoll.
    Epoll,
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            BackendChoice::Auto => "auto",
            BackendChoice::IoUring => "io_uring",
            BackendChoice::Epoll => "epoll",
        })
    }
}

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<BackendChoice, UnknownBackend> {
        match name {
            "auto" => Ok(BackendChoice::Auto),
            "io_uring" => Ok(BackendChoice::IoUring),
            "epoll" => Ok(BackendChoice::Epoll),
            _ => Err(UnknownBackend {
                name: name.to_owned(),
            }),
        }
    }
}

/// The error for an unknown name of a backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnknownBackend {
    name: String,
}

impl fmt::Display for UnknownBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "unknown backend {:?}: use io_uring, epoll or auto",
            self.name
        )
    }
}

impl std::error::Error for UnknownBackend {}

impl From<UnknownBackend> for io::Error {
    fn from(error: UnknownBackend) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Which backend a driver runs on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// `io_uring`.
    IoUring,
    /// epoll, with emulated operations.
    Epoll,
    /// A script, for tests.
    #[cfg(feature = "test-util")]
    Scripted,
}

impl BackendKind {
    /// The backend's name as users see it: `io_uring` or `epoll`; `scripted` in tests.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::IoUring => "io_uring",
            BackendKind::Epoll => "epoll",
            #[cfg(feature = "test-util")]
            BackendKind::Scripted => "scripted",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why the kernel refuses a backend: the error inside the [`std::io::Error`] of [`crate::Driver::new`].
#[derive(Clone, Debug)]
pub struct Refused {
    errno: Option<i32>,
    text: String,
}

impl Refused {
    pub(crate) fn new(errno: Option<i32>, text: String) -> Self {
        Self { errno, text }
    }

    /// The refusal inside an error, if it is one.
    pub fn of(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The errno of the system call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for choice in [
            BackendChoice::Auto,
            BackendChoice::IoUring,
            BackendChoice::Epoll,
        ] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn environment_forces_a_backend() {
        let config = Config::from_variable(Some(OsStr::new("epoll"))).unwrap();
        assert_eq!(config.backend, BackendChoice::Epoll);
        assert_eq!(config.forced_by(), "RINGLOOP_BACKEND");
        let mut config = config;
        config.backend = BackendChoice::IoUring;
        assert_eq!(config.forced_by(), "the configuration");
        assert_eq!(
            Config::from_variable(None).unwrap().backend,
            BackendChoice::Auto
        );
        for (value, backend) in [
            ("", BackendChoice::Auto),
            (" \n", BackendChoice::Auto),
            ("AUTO", BackendChoice::Auto),
            (" io_uring", BackendChoice::IoUring),
            ("IO_Uring\n", BackendChoice::IoUring),
            ("Epoll ", BackendChoice::Epoll),
        ] {
            let config = Config::from_variable(Some(OsStr::new(value))).unwrap();
            assert_eq!(config.backend, backend, "{value:?}");
        }
    }

    #[test]
    fn unknown_value_names_itself_and_the_accepted_ones() {
        let error = Config::from_variable(Some(OsStr::new(" KQueue"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let text = error.to_string();
        for word in [
            "RINGLOOP_BACKEND",
            "\"KQueue\"",
            "io_uring",
            "epoll",
            "auto",
        ] {
            assert!(text.contains(word), "{text:?} lacks {word}");
        }
    }
}
