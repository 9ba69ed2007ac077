//! `os.stat_result`s.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ringloop_driver::{FileStatus, FileTime};

use crate::names::intern;
use crate::objects::{self, New};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// The `AT_*` flags for stat(2) or lstat(2), which both imply the first.
pub(super) fn flags(follow: bool) -> i32 {
    libc::AT_NO_AUTOMOUNT | if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW }
}

/// Makes the object that `os.stat` would return.
pub(super) fn to_python<'py>(py: Python<'py>, status: &FileStatus) -> PyResult<Bound<'py, PyAny>> {
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
    let float = |time: FileTime| -> PyResult<Bound<'py, PyAny>> {
        let seconds = time.seconds as f64 + 1e-9 * f64::from(time.nanoseconds);
        Ok(objects::float(py, seconds)?.into_any())
    };
    let ns = |time: FileTime| -> PyResult<Bound<'py, PyAny>> {
        match time.seconds.checked_mul(NS_PER_SECOND) {
            Some(ns) => signed(ns.saturating_add(i64::from(time.nanoseconds))),
            // After the year 2262, or before 1678.
            None => signed(time.seconds)?
                .mul(signed(NS_PER_SECOND)?)?
                .add(signed(i64::from(time.nanoseconds))?),
        }
    };
    let times = [status.accessed(), status.modified(), status.changed()];
    let device = |(major, minor)| int(libc::makedev(major, minor));
    let fields = [
        int(u64::from(status.mode()))?,
        int(status.inode())?,
        device(status.device())?,
        int(u64::from(status.links()))?,
        int(u64::from(status.uid()))?,
        int(u64::from(status.gid()))?,
        int(status.size())?,
        signed(times[0].seconds)?,
        signed(times[1].seconds)?,
        signed(times[2].seconds)?,
        float(times[0])?,
        float(times[1])?,
        float(times[2])?,
        ns(times[0])?,
        ns(times[1])?,
        ns(times[2])?,
        int(u64::from(status.block_size()))?,
        int(status.blocks())?,
        device(status.special_device())?,
    ];
    let fields = objects::tuple(py, fields)?;
    class.bind(py).call1((fields,))
}
