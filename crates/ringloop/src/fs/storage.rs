//! The storage and the permissions of open files.

use std::io;
use std::os::fd::AsFd;

use super::File;
use crate::{blocking, sys};

impl File {
    /// Reserves storage for a part of the file, in the pool of threads, so that writing there does not fail for lack of
    /// space. Extends the file with zeroes if the part ends beyond its end.
    ///
    /// `offset` and `length` are in bytes. If the future is dropped, that goes on.
    ///
    /// # Errors
    /// Returns the errors of fallocate(2): `StorageFull`, `InvalidInput` for a length of 0, `Unsupported` if the file system
    /// cannot do it.
    ///
    /// ```
    /// use ringloop::fs::File;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-allocate-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// file.allocate(10, 90).await?;
    /// assert_eq!(file.metadata().await?.len(), 100);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        };
        let fd = self.fd.clone();
        blocking::run(move || {
            loop {
                match sys::allocate(fd.as_fd(), 0, offset, length) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result,
                }
            }
        })
        .await?
    }

    /// Changes the permissions of the file, in the pool of threads.
    ///
    /// # Errors
    /// Returns the errors of fchmod(2).
    ///
    /// ```
    /// use ringloop::fs::File;
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-chmod-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// file.set_permissions(PermissionsExt::from_mode(0o600)).await?;
    /// assert_eq!(file.metadata().await?.mode() & 0o777, 0o600);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn set_permissions(&self, permissions: std::fs::Permissions) -> io::Result<()> {
        let fd = self.fd.clone();
        blocking::run(move || {
            let file = std::fs::File::from(fd.as_fd().try_clone_to_owned()?);
            file.set_permissions(permissions)
        })
        .await?
    }
}
