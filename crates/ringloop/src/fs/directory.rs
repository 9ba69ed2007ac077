//! Reading directories.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Metadata, symlink_metadata};
use crate::blocking;
use crate::budget;

/// How many entries are read at a time.
const ENTRIES: usize = 64;

/// Reads a directory, in the pool of threads, some entries at a time. They come in no particular order, without `.` and
/// `..`. Entries that are created or removed meanwhile may or may not be among them.
///
/// # Errors
/// Returns the errors of opendir(3).
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-read-dir-{}", std::process::id()));
/// fs::create_dir_all(path.join("below")).await?;
/// fs::write(path.join("file"), "text").await?;
/// let mut names = Vec::new();
/// let mut entries = fs::read_dir(&path).await?;
/// while let Some(entry) = entries.next_entry().await? {
///     names.push((entry.file_name().to_owned(), entry.file_type()?.is_dir()));
/// }
/// names.sort();
/// assert_eq!(names, [("below".into(), true), ("file".into(), false)]);
/// # fs::remove_dir_all(&path).await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let reading = blocking::run(move || {
        let mut reading = Reading {
            entries: Some(std::fs::read_dir(path)?),
            ready: VecDeque::new(),
        };
        reading.fill();
        io::Result::Ok(reading)
    })
    .await??;
    Ok(ReadDir {
        reading: Arc::new(Mutex::new(reading)),
    })
}

/// The entries of a directory; created by [`read_dir`].
pub struct ReadDir {
    /// A thread that reads has it, too. If the future is dropped meanwhile, no entry is lost.
    reading: Arc<Mutex<Reading>>,
}

struct Reading {
    /// `None` at the end.
    entries: Option<std::fs::ReadDir>,
    ready: VecDeque<io::Result<DirEntry>>,
}

impl Reading {
    /// Reads some entries, if none is left. May block.
    fn fill(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        while self.ready.len() < ENTRIES
            && let Some(entries) = &mut self.entries
        {
            match entries.next() {
                Some(entry) => self
                    .ready
                    .push_back(entry.map(|entry| DirEntry::new(&entry))),
                None => self.entries = None,
            }
        }
    }
}

impl ReadDir {
    /// Returns the next entry, or `None` at the end. Waits only if it has to be read from the directory.
    ///
    /// If the future is dropped, no entry is lost.
    ///
    /// # Errors
    /// Returns the errors of readdir(3).
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        budget::consume().await;
        // A thread has the lock only if an earlier future was dropped.
        let (mut next, is_at_end) = match self.reading.try_lock() {
            Ok(mut reading) => (reading.ready.pop_front(), reading.entries.is_none()),
            Err(_) => (None, false),
        };
        if next.is_none() && !is_at_end {
            let reading = Arc::clone(&self.reading);
            let lock = |reading: &Mutex<Reading>, call: fn(&mut Reading) -> _| {
                call(&mut reading.lock().unwrap_or_else(PoisonError::into_inner))
            };
            // The thread only reads; the entry is taken here.
            blocking::run(move || {
                lock(&reading, |reading| {
                    reading.fill();
                    None
                });
            })
            .await?;
            next = lock(&self.reading, |reading| reading.ready.pop_front());
        }
        next.transpose()
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    path: PathBuf,
    name: OsString,
    /// The type, or the errno with which asking has failed.
    file_type: Result<FileType, i32>,
}

impl DirEntry {
    fn new(entry: &std::fs::DirEntry) -> Self {
        Self {
            path: entry.path(),
            name: entry.file_name(),
            file_type: entry
                .file_type()
                .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// The path that the directory was opened by, and the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name in the directory.
    pub fn file_name(&self) -> &std::ffi::OsStr {
        &self.name
    }

    /// The type of the file when the directory was read. For a symbolic link, that of the link.
    ///
    /// # Errors
    /// Returns the errors of lstat(2), which is called only where the file system does not tell the type with the name.
    pub fn file_type(&self) -> io::Result<FileType> {
        self.file_type.map_err(io::Error::from_raw_os_error)
    }

    /// Asks for the metadata of the file. Does not follow a symbolic link.
    ///
    /// # Errors
    /// Returns the errors of lstat(2), such as `NotFound` if it has been removed.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        symlink_metadata(&self.path).await
    }
}
