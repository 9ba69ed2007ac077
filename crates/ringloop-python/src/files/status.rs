//! `os.stat_result`s.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::names::intern;
use crate::objects::{self, New};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// The `AT_*` flags for stat(2) or lstat(2), which both imply the first.
pub(super) fn flags(follow: bool) -> i32 {
    libc::AT_NO_AUTOMOUNT | if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW }
}

/// What `os.stat` makes of it.
pub(super) fn to_python<'py>(py: Python<'py>, status: &libc::statx) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        py.import(intern!(py, "os"))?
            .getattr(intern!(py, "stat_result"))
            .map(Bound::unbind)
    })?;
    let int = |value: u64| -> PyResult<Bound<'py, PyAny>> {
        Ok(New(value).into_pyobject(py)?.into_any())
    };
    let signed = |value: i64| -> PyResult<Bound<'py, PyAny>> {
        Ok(New(value).into_pyobject(py)?.into_any())
    };
    let float = |time: &libc::statx_timestamp| -> PyResult<Bound<'py, PyAny>> {
        let seconds = time.tv_sec as f64 + 1e-9 * f64::from(time.tv_nsec);
        Ok(objects::float(py, seconds)?.into_any())
    };
    let ns = |time: &libc::statx_timestamp| -> PyResult<Bound<'py, PyAny>> {
        match time.tv_sec.checked_mul(NS_PER_SECOND) {
            Some(ns) => signed(ns.saturating_add(i64::from(time.tv_nsec))),
            // After the year 2262, or before 1678.
            None => signed(time.tv_sec)?
                .mul(signed(NS_PER_SECOND)?)?
                .add(signed(i64::from(time.tv_nsec))?),
        }
    };
    let times = [&status.stx_atime, &status.stx_mtime, &status.stx_ctime];
    let device = |major, minor| int(libc::makedev(major, minor));
    let fields = [
        int(u64::from(status.stx_mode))?,
        int(status.stx_ino)?,
        device(status.stx_dev_major, status.stx_dev_minor)?,
        int(u64::from(status.stx_nlink))?,
        int(u64::from(status.stx_uid))?,
        int(u64::from(status.stx_gid))?,
        int(status.stx_size)?,
        signed(times[0].tv_sec)?,
        signed(times[1].tv_sec)?,
        signed(times[2].tv_sec)?,
        float(times[0])?,
        float(times[1])?,
        float(times[2])?,
        ns(times[0])?,
        ns(times[1])?,
        ns(times[2])?,
        int(u64::from(status.stx_blksize))?,
        int(status.stx_blocks)?,
        device(status.stx_rdev_major, status.stx_rdev_minor)?,
    ];
    let fields = objects::tuple(py, fields)?;
    class.bind(py).call1((fields,))
}
