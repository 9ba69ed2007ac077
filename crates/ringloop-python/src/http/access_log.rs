//! The access log, where its lines may be formatted here and written together (`AccessLog` in
//! `python/ringloop/http/logging.py` decides that).

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::names::intern;

/// Lines are written together up to this many bytes. A pipe takes as many in one piece (pipe(7), `PIPE_BUF`), so that
/// lines of several processes don't get mixed.
const WRITE_MAX: usize = 4096;

/// More than a layout adds to what is logged.
const LAYOUT_MAX: usize = 256;

/// The parts of a line around client, method, path and version, for a status, with or without colours.
struct Layout {
    status: u16,
    has_colors: bool,
    parts: [String; 5],
}

/// Lines that are not written yet, and how to format them.
#[derive(Default)]
pub(super) struct Lines {
    text: String,
    /// Whether the lines have colours. None: nobody has said yet that they may be formatted here.
    pub(super) has_colors: Option<bool>,
    /// The loop will write them.
    pub(super) is_scheduled: bool,
    layouts: Vec<Layout>,
}

impl Lines {
    /// Whether a request needs to wait until the lines before it are written.
    pub(super) fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        !self.text.is_empty() && self.text.len() + entry.length_max() > WRITE_MAX
    }

    fn layout(&self, status: u16, has_colors: bool) -> Option<&Layout> {
        let fits = |it: &&Layout| it.status == status && it.has_colors == has_colors;
        self.layouts.iter().find(fits)
    }

    pub(super) fn has_layout(&self, status: u16, has_colors: bool) -> bool {
        self.layout(status, has_colors).is_some()
    }

    pub(super) fn add_layout(&mut self, status: u16, has_colors: bool, parts: [String; 5]) {
        self.layouts.push(Layout {
            status,
            has_colors,
            parts,
        });
    }

    /// Adds a line. False if it can't be formatted now.
    pub(super) fn push(&mut self, entry: &Entry<'_>, status: u16) -> bool {
        let mut text = std::mem::take(&mut self.text);
        let layout = self.has_colors.and_then(|it| self.layout(status, it));
        let is_known = layout.is_some();
        if let Some(layout) = layout {
            entry.format(&layout.parts, &mut text);
        }
        self.text = text;
        is_known
    }

    /// The lines that were added, to be written now; None if there can't be any.
    pub(super) fn take(&mut self) -> Option<String> {
        self.has_colors.take()?;
        Some(std::mem::take(&mut self.text))
    }

    /// Gives the memory of written lines back.
    pub(super) fn recycle(&mut self, mut text: String) {
        if self.text.capacity() == 0 && text.capacity() <= WRITE_MAX {
            text.clear();
            self.text = text;
        }
    }
}

/// The values of a request that are logged.
pub(super) struct Entry<'py> {
    client: Option<(Bound<'py, PyString>, u16)>,
    method: Bound<'py, PyString>,
    path: Bound<'py, PyString>,
    query: Bound<'py, PyBytes>,
    version: Bound<'py, PyString>,
}

impl<'py> Entry<'py> {
    /// Returns the values of a scope; None if the application has changed it to something out of the ordinary, or if
    /// the line would not be ASCII: a stream that can't encode it would lose the lines that are written with it.
    pub(super) fn of(scope: &Bound<'py, PyDict>) -> Option<Self> {
        let py = scope.py();
        let item = |name| scope.get_item(name).ok().flatten();
        let text = |value: Bound<'py, PyAny>| {
            let text = value.cast_into_exact::<PyString>().ok()?;
            // From here on this can't fail: a string keeps its UTF-8.
            text.to_str().is_ok().then_some(text)
        };
        let ascii = |value| text(value).filter(|text| text.to_str().is_ok_and(str::is_ascii));
        let query = item(intern!(py, "query_string"))?;
        let query = query.cast_into_exact::<PyBytes>().ok()?;
        if !query.as_bytes().is_ascii() {
            return None;
        }
        let client = item(intern!(py, "client"))?;
        let client = if client.is_none() {
            None
        } else {
            let client = client.cast_exact::<PyTuple>().ok()?;
            let port = client.get_item(1).ok()?.extract().ok()?;
            Some((ascii(client.get_item(0).ok()?)?, port))
        };
        Some(Self {
            client,
            method: ascii(item(intern!(py, "method"))?)?,
            path: text(item(intern!(py, "path"))?)?,
            query,
            version: ascii(item(intern!(py, "http_version"))?)?,
        })
    }

    /// At least the length of the line.
    fn length_max(&self) -> usize {
        let length = |text: &Bound<'_, PyString>| text.to_str().map_or(0, str::len);
        let client = self.client.as_ref().map_or(0, |(host, _)| length(host));
        let path = 3 * length(&self.path) + self.query.as_bytes().len();
        client + length(&self.method) + path + length(&self.version) + LAYOUT_MAX
    }

    fn format(&self, parts: &[String; 5], out: &mut String) {
        let [first, after_client, after_method, after_path, last] = parts;
        let add = |text: &Bound<'_, PyString>, out: &mut String| {
            out.push_str(text.to_str().unwrap_or_default());
        };
        out.push_str(first);
        if let Some((host, port)) = &self.client {
            add(host, out);
            // Writing to a string doesn't fail.
            let _ = write!(out, ":{port}");
        }
        out.push_str(after_client);
        add(&self.method, out);
        out.push_str(after_method);
        quote(self.path.to_str().unwrap_or_default().as_bytes(), out);
        if !self.query.as_bytes().is_empty() {
            out.push('?');
            // It is ASCII.
            out.push_str(std::str::from_utf8(self.query.as_bytes()).unwrap_or_default());
        }
        out.push_str(after_path);
        add(&self.version, out);
        out.push_str(last);
    }
}

/// Percent-encodes a path as `urllib.parse.quote` does.
fn quote(path: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}
