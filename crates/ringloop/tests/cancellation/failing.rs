//! Futures that consist of operations, on a kernel that fails: each of their operations with each error in its manual
//! page, at once and late, while the future is dropped at each of its polls. Errors are returned as they are, buffers
//! come back, and nothing is left.

use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use bytes::Bytes;
use ringloop::Runtime;
use ringloop::driver::{Fault, Op};
use ringloop::fs::{self, File, OpenOptions};
use ringloop::net::{TcpListener, TcpStream, UnixListener};
use ringloop::time::timeout;

use crate::common::LONG;
use crate::cut::{Cut, When, alone, check_nothing_is_left, descriptors, with_faults};
use crate::memory::{MARKED, buffer};

/// The errors of an operation, from the manual page of its system call.
fn errors_of(op: &Op) -> &'static [i32] {
    use libc::{
        EACCES, EBADF, EBUSY, ECONNRESET, EDQUOT, EEXIST, EFBIG, EINTR, EINVAL, EIO, EISDIR, ELOOP,
        EMFILE, EMLINK, EMSGSIZE, ENAMETOOLONG, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOSPC, ENOTDIR,
        ENOTEMPTY, ENXIO, EOVERFLOW, EPERM, EPIPE, EROFS, ETIMEDOUT, ETXTBSY, EXDEV,
    };
    match op {
        Op::OpenAt { .. } => &[
            EACCES,
            EDQUOT,
            EEXIST,
            EINTR,
            EINVAL,
            EISDIR,
            ELOOP,
            EMFILE,
            ENAMETOOLONG,
            ENFILE,
            ENOENT,
            ENOMEM,
            ENOSPC,
            ENOTDIR,
            ENXIO,
            EOVERFLOW,
            EPERM,
            EROFS,
            ETXTBSY,
        ],
        Op::Statx { .. } => &[EACCES, EBADF, ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR],
        Op::Read { .. } => &[EBADF, EINTR, EINVAL, EIO, EISDIR, ENOMEM, EOVERFLOW],
        Op::Write { .. } => &[
            EBADF, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOMEM, ENOSPC, EPERM, EPIPE,
        ],
        Op::Fsync { .. } => &[EBADF, EDQUOT, EINTR, EINVAL, EIO, ENOSPC, EROFS],
        Op::Close { .. } => &[EBADF, EDQUOT, EINTR, EIO, ENOSPC],
        Op::MkDirAt { .. } => &[
            EACCES,
            EDQUOT,
            EEXIST,
            ELOOP,
            EMLINK,
            ENAMETOOLONG,
            ENOENT,
            ENOMEM,
            ENOSPC,
            ENOTDIR,
            EPERM,
            EROFS,
        ],
        Op::UnlinkAt { .. } => &[
            EACCES,
            EBUSY,
            EIO,
            EISDIR,
            ELOOP,
            ENAMETOOLONG,
            ENOENT,
            ENOMEM,
            ENOTDIR,
            ENOTEMPTY,
            EPERM,
            EROFS,
        ],
        Op::RenameAt { .. } => &[
            EACCES,
            EBUSY,
            EDQUOT,
            EINVAL,
            EISDIR,
            ELOOP,
            EMLINK,
            ENAMETOOLONG,
            ENOENT,
            ENOMEM,
            ENOSPC,
            ENOTDIR,
            ENOTEMPTY,
            EPERM,
            EROFS,
            EXDEV,
        ],
        Op::SendZeroCopy { .. } => &[
            ECONNRESET, EINTR, EMSGSIZE, ENOBUFS, ENOMEM, EPIPE, ETIMEDOUT,
        ],
        other => panic!("no future has {other:?}"),
    }
}

/// The plan: one operation fails, the others succeed.
#[derive(Default)]
struct Plan {
    /// How many operations there have been.
    operations: AtomicUsize,
    /// The error of the one that failed; 0 if it has not been submitted yet.
    errno: AtomicI32,
    /// Whether the future may continue nevertheless: the operation is repeated, or its result is not essential.
    is_minor: AtomicBool,
}

impl Plan {
    fn runtime(self: &Arc<Self>, failing: usize, error: usize, polls: u32) -> Runtime {
        let plan = Arc::clone(self);
        with_faults(move |op| {
            let mut fault = Fault::default();
            fault.polls = polls;
            if let Some(op) = op
                && plan.operations.fetch_add(1, Ordering::Relaxed) == failing
                && let Some(errno) = errors_of(op).get(error)
            {
                fault.errno = *errno;
                let is_minor = *errno == libc::EINTR || matches!(op, Op::Statx { .. });
                plan.is_minor.store(is_minor, Ordering::Relaxed);
                plan.errno.store(*errno, Ordering::Relaxed);
            }
            fault
        })
    }
}

/// Runs a future with each of its operations failing with each error. It returns its result.
#[expect(
    clippy::needless_pass_by_value,
    reason = "a closure that is written where it is passed"
)]
fn failing(scenario: impl AsyncFn(&Cut) -> Option<io::Result<()>>) {
    let _alone = alone();
    for late in [0, 2] {
        for operation in 0.. {
            let mut operations = 0;
            for error in 0.. {
                let mut errno = 0;
                for polls in 0.. {
                    let cut = Cut::new(polls, When::Polled);
                    let plan = Arc::new(Plan::default());
                    let mut runtime = plan.runtime(operation, error, late);
                    let before = descriptors();
                    let point = format!(
                        "operation {operation}, error {error}, {late} polls late, dropped after {polls}"
                    );
                    let result = runtime
                        .block_on(async { timeout(LONG, scenario(&cut)).await.expect(&point) });
                    check_nothing_is_left(&mut runtime, &before, &point);
                    errno = plan.errno.load(Ordering::Relaxed);
                    operations = operations.max(plan.operations.load(Ordering::Relaxed));
                    let Some(result) = result else {
                        continue;
                    };
                    match result {
                        Ok(()) if errno == 0 || plan.is_minor.load(Ordering::Relaxed) => {}
                        Err(error) if error.raw_os_error() == Some(errno) => {}
                        other => panic!("{other:?} instead of errno {errno}: {point}"),
                    }
                    break;
                }
                if errno == 0 {
                    break;
                }
            }
            if operation >= operations {
                break;
            }
        }
    }
}

/// A file for one test, which is removed with it.
struct Named(PathBuf);

impl Named {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("ringloop-failing-{}-{name}", std::process::id()));
        std::fs::write(&path, vec![b'-'; MARKED]).unwrap();
        Self(path)
    }

    fn open(&self) -> File {
        let options = std::fs::File::options().read(true).write(true).clone();
        File::from(options.open(&self.0).unwrap())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn filled() -> Vec<u8> {
    let mut bytes = buffer();
    bytes.resize(MARKED, b'n');
    bytes
}

/// The result of an operation on a buffer, which must have come back.
fn with_buffer<T>(result: (io::Result<T>, Vec<u8>)) -> io::Result<()> {
    assert!(result.1.capacity() >= MARKED, "the buffer is lost");
    result.0.map(drop)
}

#[test]
fn functions_of_names() {
    let named = Named::new("names");
    let other = named.0.with_extension("other");
    let directory = named.0.with_extension("directory");
    failing(async |cut| {
        drop(std::fs::remove_dir(&directory));
        cut.run(fs::create_dir(&directory)).await
    });
    failing(async |cut| {
        drop(std::fs::create_dir(&directory));
        cut.run(fs::remove_dir(&directory)).await
    });
    failing(async |cut| {
        drop((std::fs::remove_file(&other), std::fs::write(&named.0, "")));
        cut.run(fs::rename(&named.0, &other)).await
    });
    failing(async |cut| {
        std::fs::write(&other, "").unwrap();
        cut.run(fs::remove_file(&other)).await
    });
    drop((std::fs::remove_file(other), std::fs::remove_dir(directory)));
}

#[test]
fn functions_of_paths() {
    let named = Named::new("paths");
    let link = named.0.with_extension("link");
    drop(std::fs::remove_file(&link));
    symlink(&named.0, &link).unwrap();
    failing(async |cut| cut.run(async { fs::read(&link).await.map(drop) }).await);
    failing(async |cut| {
        cut.run(async { fs::read_to_string(&link).await.map(drop) })
            .await
    });
    failing(async |cut| cut.run(async { fs::metadata(&link).await.map(drop) }).await);
    failing(async |cut| {
        cut.run(async { fs::symlink_metadata(&link).await.map(drop) })
            .await
    });
    failing(async |cut| cut.run(fs::write(&link, filled())).await);
    failing(async |cut| cut.run(async { File::open(&link).await.map(drop) }).await);
    failing(async |cut| cut.run(async { File::create(&link).await.map(drop) }).await);
    let options = OpenOptions::new().read(true).append(true);
    failing(async |cut| cut.run(async { options.open(&link).await.map(drop) }).await);
    std::fs::remove_file(link).unwrap();
}

#[test]
fn reading() {
    let named = Named::new("reading");
    failing(async |cut| {
        let file = named.open();
        cut.run(async { with_buffer(file.read_at(buffer(), 7).await) })
            .await
    });
    failing(async |cut| {
        let file = named.open();
        cut.run(async { with_buffer(file.read_to_end_at(buffer(), 7).await) })
            .await
    });
    failing(async |cut| {
        let mut file = named.open();
        cut.run(async { with_buffer(file.read(buffer()).await) })
            .await
    });
    failing(async |cut| {
        let mut file = named.open();
        cut.run(async { with_buffer(file.read_to_end(buffer()).await) })
            .await
    });
    failing(async |cut| {
        let (reader, writer) = io::pipe().unwrap();
        io::Write::write_all(&mut &writer, b"bytes").unwrap();
        drop(writer);
        let mut file = File::from(std::os::fd::OwnedFd::from(reader));
        cut.run(async { with_buffer(file.read_to_end(buffer()).await) })
            .await
    });
}

#[test]
fn writing() {
    let named = Named::new("writing");
    failing(async |cut| {
        let file = named.open();
        cut.run(async { with_buffer(file.write_at(filled(), 7).await) })
            .await
    });
    failing(async |cut| {
        let file = named.open();
        cut.run(async { with_buffer(file.write_all_at(filled(), 7).await) })
            .await
    });
    failing(async |cut| {
        let mut file = named.open();
        cut.run(async { with_buffer(file.write(filled()).await) })
            .await
    });
    failing(async |cut| {
        let mut file = named.open();
        cut.run(async { with_buffer(file.write_all(filled()).await) })
            .await
    });
    let options = std::fs::File::options().append(true).clone();
    failing(async |cut| {
        let mut file = File::from(options.open(&named.0).unwrap());
        cut.run(async { with_buffer(file.write_all(filled()).await) })
            .await
    });
}

#[test]
fn syncing_asking_and_closing() {
    let named = Named::new("closing");
    failing(async |cut| {
        let file = named.open();
        cut.run(async { file.sync_all().await }).await
    });
    failing(async |cut| {
        let file = named.open();
        cut.run(async { file.sync_data().await }).await
    });
    failing(async |cut| {
        let file = named.open();
        cut.run(async { file.metadata().await.map(drop) }).await
    });
    failing(async |cut| cut.run(named.open().close()).await);
}

#[test]
fn accepting() {
    failing(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        cut.run(async { listener.accept().await.map(drop) }).await
    });
    let path = std::env::temp_dir().join(format!("ringloop-failing-{}", std::process::id()));
    failing(async |cut| {
        let listener = UnixListener::bind(&path).unwrap();
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        cut.run(async { listener.accept().await.map(drop) }).await
    });
}

#[test]
fn sending_without_a_copy() {
    failing(async |cut| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::try_from(near).unwrap();
        let bytes = Bytes::from(vec![7; 40_000]);
        cut.run(async { near.write_all_zero_copy(bytes).await.0 })
            .await
    });
}
