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
    /// How many bytes were read of it so far.
    read: u64,
    /// The last part was taken.
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

    /// Reads up to `count` of the bytes that are there. Runs no Python code, not even without memory.
    fn take<'py>(&mut self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let count = count.min(self.rest().len());
        let taken = objects::bytes(py, &self.rest()[..count])?;
        self.at += count;
        self.read += count as u64;
        if self.at == self.data.len() {
            self.data.clear();
            self.data.shrink_to(64 * 1024);
            self.at = 0;
        }
        Ok(taken)
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

    /// Takes the next part of the body to what is to be read, unless the end was taken. Waits for it: for `wanted` bytes, if it
    /// is known how many will come. A part that is all that a read of `size` bytes gets is returned instead.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        wanted: usize,
        size: Option<usize>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let view = self.view.bind(py);
        let exchange = view.as_super().get();
        loop {
            if exchange.must_gather(py, wanted) && !view.get().state.get(py).is_gone {
                View::wait(view, Wait::Body)?;
                continue;
            }
            // In one borrow: what another thread of the application takes comes behind it.
            let taken = {
                let mut state = self.state.get_mut(py);
                match exchange.take_piece(py) {
                    // That thread has taken the end.
                    Body::Wait if state.is_at_end => return Ok(None),
                    Body::Part(piece, more) => {
                        let length = piece.as_bytes(py).len();
                        state.is_at_end = !more;
                        let is_all = state.rest().is_empty()
                            && size.is_some_and(|size| length == size || (!more && length < size));
                        let has_room = is_all || state.add(piece.as_bytes(py));
                        Body::Part((piece, length, is_all, has_room), more)
                    }
                    Body::Disconnected => Body::Disconnected,
                    Body::Wait => Body::Wait,
                }
            };
            match taken {
                Body::Part((piece, length, is_all, has_room), more) => {
                    View::on_taken(view, length, more)?;
                    if !has_room {
                        return Err(objects::error::<PyMemoryError>(py, ""));
                    }
                    if is_all {
                        return exchange.finish_piece(py, piece).map(Some);
                    }
                    exchange.note_piece(py, &piece);
                    return Ok(None);
                }
                Body::Disconnected => return Err(disconnected(py)),
                Body::Wait if view.get().state.get(py).is_gone => return Err(disconnected(py)),
                Body::Wait => View::wait(view, Wait::Body)?,
            }
        }
    }

    fn read_bytes<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        loop {
            let left = {
                let mut state = self.state.get_mut(py);
                let left = size.saturating_sub(state.rest().len());
                if left == 0 || state.is_at_end {
                    return state.take(py, size);
                }
                left
            };
            if let Some(part) = self.receive(py, left, Some(size))? {
                return Ok(part);
            }
        }
    }

    fn read_line<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        // No line ends before this byte, counted as `State::read`: another thread of the application may read some meanwhile.
        let mut searched: u64 = 0;
        loop {
            {
                let mut state = self.state.get_mut(py);
                let rest = state.rest();
                let from = searched.saturating_sub(state.read) as usize;
                let found = rest[from..].iter().position(|&byte| byte == b'\n');
                let end = found.map_or(rest.len(), |at| from + at + 1);
                if found.is_some() || end >= size || state.is_at_end {
                    return state.take(py, end.min(size));
                }
                searched = state.read + end as u64;
            }
            self.receive(py, 1, None)?;
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
        self.read_bytes(py, limit(size))
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
