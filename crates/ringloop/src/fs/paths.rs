//! Changing directories and the names in them.

use std::fs::Permissions;
use std::io;
use std::path::{Path, PathBuf};

use ringloop_driver::Op;

use super::{metadata, perform, to_c};
use crate::blocking;

/// Runs a call on a path in the pool of threads.
async fn in_pool<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    blocking::run(move || call(&path)).await?
}

/// The same for a call on two paths.
async fn in_pool_with<T: Send + 'static>(
    from: &Path,
    to: &Path,
    call: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let to = to.to_owned();
    in_pool(from, move |from| call(from, &to)).await
}

/// Creates a directory. Its parent must exist.
///
/// If the future is dropped, the directory may still be created. This holds for all functions that change names.
///
/// # Errors
/// Returns the errors of mkdir(2), such as `AlreadyExists`.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-1-{}", std::process::id()));
/// fs::create_dir(&path).await?;
/// assert!(fs::metadata(&path).await?.is_dir());
/// fs::remove_dir(&path).await?;
/// assert!(!fs::try_exists(&path).await?);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    make(path.as_ref()).await
}

async fn make(path: &Path) -> io::Result<()> {
    let op = Op::MkDirAt {
        directory: None,
        path: to_c(path)?,
        mode: 0o777,
    };
    perform(op).await.0.map(drop)
}

/// Creates a directory, and those above it that are missing. It is not an error if it exists.
///
/// # Errors
/// Returns the errors of mkdir(2). Some of the directories may have been created.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-2-{}", std::process::id()));
/// fs::create_dir_all(path.join("one/two")).await?;
/// fs::create_dir_all(path.join("one/two")).await?;
/// assert!(fs::metadata(path.join("one/two")).await?.is_dir());
/// fs::remove_dir_all(&path).await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let mut missing = Vec::new();
    for directory in path.as_ref().ancestors() {
        if directory.as_os_str().is_empty() {
            break;
        }
        match make(directory).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(directory),
            result => {
                unless_it_exists(directory, result).await?;
                break;
            }
        }
    }
    for directory in missing.into_iter().rev() {
        unless_it_exists(directory, make(directory).await).await?;
    }
    Ok(())
}

/// Ignores an error if the directory is there, perhaps made by somebody else.
async fn unless_it_exists(directory: &Path, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if !metadata(directory).await.is_ok_and(|found| found.is_dir()) => Err(error),
        _ => Ok(()),
    }
}

async fn unlink(path: &Path, flags: i32) -> io::Result<()> {
    let op = Op::UnlinkAt {
        directory: None,
        path: to_c(path)?,
        flags,
    };
    perform(op).await.0.map(drop)
}

/// Removes an empty directory.
///
/// # Errors
/// Returns the errors of rmdir(2), such as `DirectoryNotEmpty`.
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    unlink(path.as_ref(), libc::AT_REMOVEDIR).await
}

/// Removes a directory with everything in it, in the pool of threads. Does not follow symbolic links. If the future is
/// dropped, that goes on.
///
/// # Errors
/// Returns the errors of [`std::fs::remove_dir_all`]. Some of what is in it may have been removed.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    in_pool(path.as_ref(), |path| std::fs::remove_dir_all(path)).await
}

/// Removes a name of a file. The file is gone when its last name is, and nobody has it open. Does not follow a symbolic
/// link.
///
/// # Errors
/// Returns the errors of unlink(2), such as `NotFound` and `IsADirectory`.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-3-{}", std::process::id()));
/// fs::write(&path, "text").await?;
/// fs::remove_file(&path).await?;
/// assert_eq!(fs::read(&path).await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    unlink(path.as_ref(), 0).await
}

/// Renames a file or a directory. Replaces a file that has the new name, or an empty directory if it renames one.
///
/// To replace the contents of a file at once, write another one, call [`File::sync_all`](super::File::sync_all), and
/// rename it.
///
/// # Errors
/// Returns the errors of rename(2), such as `CrossesDevices` for another file system.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-4-{}", std::process::id()));
/// let new = path.with_extension("new");
/// fs::write(&path, "old").await?;
/// fs::write(&new, "new").await?;
/// fs::rename(&new, &path).await?;
/// assert_eq!(fs::read(&path).await?, b"new");
/// # fs::remove_file(&path).await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let op = Op::RenameAt {
        from_directory: None,
        from: to_c(from.as_ref())?,
        to_directory: None,
        to: to_c(to.as_ref())?,
        flags: 0,
    };
    perform(op).await.0.map(drop)
}

/// Gives a file another name, in the pool of threads. `link` is the new one.
///
/// # Errors
/// Returns the errors of link(2), such as `AlreadyExists`.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-5-{}", std::process::id()));
/// # let (hard, soft) = (path.with_extension("hard"), path.with_extension("soft"));
/// fs::write(&path, "text").await?;
/// fs::hard_link(&path, &hard).await?;
/// assert_eq!(fs::metadata(&path).await?.nlink(), 2);
/// fs::symlink(&path, &soft).await?;
/// assert_eq!(fs::read_link(&soft).await?, path);
/// # for path in [path, hard, soft] { fs::remove_file(path).await?; }
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    in_pool_with(original.as_ref(), link.as_ref(), |from, to| {
        std::fs::hard_link(from, to)
    })
    .await
}

/// Creates a symbolic link, in the pool of threads. `link` is the new name. The file that it refers to need not exist.
///
/// # Errors
/// Returns the errors of symlink(2), such as `AlreadyExists`.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    in_pool_with(original.as_ref(), link.as_ref(), |from, to| {
        std::os::unix::fs::symlink(from, to)
    })
    .await
}

/// Returns the path that a symbolic link contains. Asks in the pool of threads.
///
/// # Errors
/// Returns the errors of readlink(2), such as `InvalidInput` if it is no symbolic link.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    in_pool(path.as_ref(), |path| std::fs::read_link(path)).await
}

/// Returns the absolute path without symbolic links and `..`. Asks in the pool of threads.
///
/// # Errors
/// Returns the errors of realpath(3), such as `NotFound`.
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    in_pool(path.as_ref(), |path| std::fs::canonicalize(path)).await
}

/// Whether a path leads to something. A symbolic link to nothing does not.
///
/// # Errors
/// Returns the errors of stat(2), except for `NotFound`: then the answer is not known.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Changes the permissions of a file or a directory, in the pool of threads. Follows symbolic links.
///
/// # Errors
/// Returns the errors of chmod(2).
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-6-{}", std::process::id()));
/// fs::write(&path, "text").await?;
/// let mut permissions = fs::metadata(&path).await?.permissions();
/// permissions.set_readonly(true);
/// fs::set_permissions(&path, permissions).await?;
/// assert_eq!(fs::metadata(&path).await?.mode() & 0o222, 0);
/// # fs::remove_file(&path).await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    in_pool(path.as_ref(), move |path| {
        std::fs::set_permissions(path, permissions)
    })
    .await
}

/// Copies a file with its permissions, in the pool of threads, and in the kernel or by sharing storage where the file
/// system can do that (copy_file_range(2)). Replaces the contents of `to`. Returns how many bytes that were. If the future
/// is dropped, that goes on.
///
/// # Errors
/// Returns the errors of [`std::fs::copy`]. `to` may have some of the bytes.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-dir-7-{}", std::process::id()));
/// let copy = path.with_extension("copy");
/// fs::write(&path, "text").await?;
/// assert_eq!(fs::copy(&path, &copy).await?, 4);
/// assert_eq!(fs::read(&copy).await?, b"text");
/// # for path in [path, copy] { fs::remove_file(path).await?; }
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    in_pool_with(from.as_ref(), to.as_ref(), |from, to| {
        std::fs::copy(from, to)
    })
    .await
}
