//! `wsgi.input`: the body of a request, as a file. Reading waits for the client, in the view's thread.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use pyo3::{PyTraverseError, PyVisit};

use super::view::{View, Wait, disconnected};
use crate::cell::GilCell;
use crate::http::exchange::Body;
use crate::objects;

/// The bytes that were taken of the body, and not read yet.
#[derive(Default)]
struct State {
    data: Vec<u8>,
    at: usize,
    is_at_end: bool,
}

impl State {
    fn rest(&self) -> &[u8] {
        &self.data[self.at..]
    }

    /// Adds what was received; false if there is no memory for it. What was read is dropped when it is more than what is
    /// left, so that a byte is moved once at most.
    fn add(&mut self, part: &[u8]) -> bool {
        if self.at >= self.data.len() - self.at {
            self.data.drain(..self.at);
            self.at = 0;
        }
        let has_room = self.data.try_reserve(part.len()).is_ok();
        if has_room {
            self.data.extend_from_slice(part);
        }
        has_room
    }

    fn advance(&mut self, count: usize) {
        self.at += count;
        if self.at == self.data.len() {
            self.data.clear();
            self.data.shrink_to(64 * 1024);
            self.at = 0;
        }
    }
}

#[pyclass(module = "ringloop._core", name = "WsgiInput", frozen)]
pub(super) struct Input {
    view: Py<View>,
    state: GilCell<State>,
}

impl Input {
    pub(super) fn make<'py>(view: &Bound<'py, View>) -> PyResult<Bound<'py, Self>> {
        let input = Self {
            view: view.clone().unbind(),
            state: GilCell::new(State::default()),
        };
        Bound::new(view.py(), input)
    }

    /// The next part of the body, and whether there may be another. Waits for it: for `wanted` bytes, if it is known how
    /// many will come.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        wanted: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, bool)> {
        View::alone(self.view.bind(py), || self.receive_alone(py, wanted))
    }

    fn receive_alone<'py>(
        &self,
        py: Python<'py>,
        wanted: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, bool)> {
        let view = self.view.bind(py);
        loop {
            if view.as_super().get().must_gather(py, wanted) && !view.get().state.get(py).is_gone {
                View::wait(view, Wait::Body)?;
                continue;
            }
            match view.as_super().get().take_arrived(py)? {
                Body::Part(part, more) => {
                    View::on_taken(view, part.as_bytes().len(), more)?;
                    return Ok((part, more));
                }
                Body::Disconnected => return Err(disconnected(py)),
                Body::Wait if view.get().state.get(py).is_gone => return Err(disconnected(py)),
                // Another thread of the application has read the end.
                Body::Wait if self.state.get(py).is_at_end => {
                    return Ok((objects::bytes(py, b"")?, false));
                }
                Body::Wait => View::wait(view, Wait::Body)?,
            }
        }
    }

    /// Takes more of the body, `wanted` bytes if possible; false at its end.
    fn fill(&self, py: Python<'_>, wanted: usize) -> PyResult<bool> {
        if self.state.get(py).is_at_end {
            return Ok(false);
        }
        let (part, more) = self.receive(py, wanted)?;
        self.keep(&part, more)?;
        Ok(true)
    }

    /// Keeps a part of the body to be read.
    fn keep(&self, part: &Bound<'_, PyBytes>, more: bool) -> PyResult<()> {
        let has_room = {
            let mut state = self.state.get_mut(part.py());
            state.is_at_end = !more;
            state.add(part.as_bytes())
        };
        if has_room {
            Ok(())
        } else {
            Err(objects::error::<PyMemoryError>(part.py(), ""))
        }
    }

    /// Takes up to `count` of the bytes that are there.
    fn take<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (data, at) = {
            let mut state = self.state.get_mut(py);
            (std::mem::take(&mut state.data), state.at)
        };
        let count = count.min(data.len() - at);
        let taken = objects::bytes(py, &data[at..at + count]);
        let mut state = self.state.get_mut(py);
        state.data = data;
        if taken.is_ok() {
            state.advance(count);
        }
        drop(state);
        taken
    }

    fn read_alone<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (is_empty, is_at_end) = {
            let state = self.state.get(py);
            (state.rest().is_empty(), state.is_at_end)
        };
        if is_empty && !is_at_end && size > 0 {
            let (part, more) = self.receive(py, size)?;
            let count = part.as_bytes().len();
            if count == size || (!more && count < size) {
                self.state.get_mut(py).is_at_end = !more;
                return Ok(part);
            }
            self.keep(&part, more)?;
        }
        loop {
            let left = size.saturating_sub(self.state.get(py).rest().len());
            if left == 0 || !self.fill(py, left)? {
                return self.take(py, size);
            }
        }
    }

    fn read_line<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        View::alone(self.view.bind(py), || self.read_line_alone(py, size))
    }

    fn read_line_alone<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut searched = 0;
        loop {
            let count = {
                let state = self.state.get(py);
                let rest = state.rest();
                // Another thread of the application may have read some of it.
                searched = searched.min(rest.len());
                let found = rest[searched..].iter().position(|&byte| byte == b'\n');
                searched += found.map_or(rest.len() - searched, |at| at + 1);
                (found.is_some() || searched >= size).then_some(searched.min(size))
            };
            if let Some(count) = count {
                return self.take(py, count);
            }
            if !self.fill(py, 1)? {
                return self.take(py, size);
            }
        }
    }
}

/// A size, as the methods of files take it: None and negative numbers mean everything.
fn limit(size: Option<isize>) -> usize {
    size.and_then(|size| usize::try_from(size).ok())
        .unwrap_or(usize::MAX)
}

#[pymethods]
impl Input {
    /// Reads up to `size` bytes: fewer only at the end.
    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        View::alone(self.view.bind(py), || self.read_alone(py, limit(size)))
    }

    /// Reads a line, or its first `size` bytes.
    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_line(py, limit(size))
    }

    /// Reads lines, until they have `hint` bytes together.
    #[pyo3(signature = (hint=None, /))]
    fn readlines<'py>(&self, py: Python<'py>, hint: Option<isize>) -> PyResult<Bound<'py, PyList>> {
        let hint = match limit(hint) {
            0 => usize::MAX,
            hint => hint,
        };
        let lines = objects::list(py, std::iter::empty::<Bound<'py, PyAny>>())?;
        let mut total = 0;
        while total < hint {
            let line = self.read_line(py, usize::MAX)?;
            if line.as_bytes().is_empty() {
                break;
            }
            total += line.as_bytes().len();
            lines.append(line)?;
        }
        Ok(lines)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let line = self.read_line(py, usize::MAX)?;
        Ok((!line.as_bytes().is_empty()).then_some(line))
    }

    /// The size in memory, with the bytes that were not read yet.
    fn __sizeof__(&self, py: Python<'_>) -> usize {
        size_of::<Self>() + self.state.get(py).data.capacity()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)
    }
}
