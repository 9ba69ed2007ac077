//! The names that are looked up in Python objects, made once: when the module is imported, where a lack of memory is an
//! ordinary error. PyO3's own `intern!` makes each at its first use, and panics then.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::objects;

macro_rules! names {
    ($($name:literal)*) => { const NAMES: &[&str] = &[$($name),*]; };
}

names! {
    "FED_PROTOCOL"
    "Handle" "SSLProtocolState" "TimerHandle" "_ThreadSafeHandle" "__get__"
    "_app_protocol_buffer_updated" "_app_protocol_get_buffer" "_args" "_asyncio_future_blocking"
    "_buffer" "_call_connection_lost" "_call_eof_received" "_callback" "_cancelled" "_context"
    "_control_app_writing" "_control_ssl_reading" "_do_flush" "_do_handshake" "_do_read"
    "_do_shutdown" "_do_write" "_ensure_fd_no_transport" "_eof" "_fatal_error" "_force_close"
    "_incoming" "_limit" "_loop" "_maybe_pause_protocol" "_maybe_resume_protocol" "_outgoing"
    "_paused" "_run" "_socket" "_ssl_buffer_view" "_ssl_protocol" "_sslobj" "_start_shutdown"
    "_stream_reader_wr" "_transport" "_transports" "_waiter" "_write_backlog" "_write_buffer_size"
    "append" "asyncio.events" "asyncio.sslproto" "buffer_updated" "call_exception_handler"
    "call_handling" "call_soon" "cancel" "cancelled" "close" "connection_made" "context"
    "create_future" "create_task" "data" "data_received" "datagram_received" "debug" "describe"
    "done" "eof_received" "error_received" "exception" "extend" "feed_data" "fileno" "get_buffer"
    "get_write_buffer_size" "getpeername" "getsockname" "handle_repr" "is_closing" "is_reading"
    "join" "log_slow_transport" "logger" "loop" "make_handle" "message" "pause_reading" "peername"
    "pending" "protocol" "read" "recv" "recv_into" "recvfrom" "recvfrom_into" "refuse_datagram"
    "report_callback_error" "report_transport_error" "ringloop._metrics" "ringloop._support" "run"
    "run_timed" "send" "sendto" "set_exception" "set_nodelay" "set_result" "socket" "sockname"
    "timer_handle_compare" "transport" "wake_waiter" "warning" "water_marks" "write"
    "write_type_error"
}

static OBJECTS: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();

/// Makes all of them. The module does so before anything else.
pub(crate) fn make(py: Python<'_>) -> PyResult<()> {
    OBJECTS
        .get_or_try_init(py, || {
            let made = NAMES.iter().map(|name| objects::interned(py, name));
            made.map(|name| name.map(Bound::unbind)).collect()
        })
        .map(drop)
}

/// A name's place in the list; fails to compile where it has none.
pub(crate) const fn index(name: &str) -> usize {
    let mut index = 0;
    while index < NAMES.len() {
        if equal(NAMES[index].as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("enter the name in names.rs");
}

const fn equal(left: &[u8], right: &[u8]) -> bool {
    let mut index = 0;
    while index < left.len() && index < right.len() && left[index] == right[index] {
        index += 1;
    }
    index == left.len() && index == right.len()
}

/// The name at a place that `index` has found.
#[inline]
pub(crate) fn get(py: Python<'_>, index: usize) -> &Bound<'_, PyString> {
    let objects = OBJECTS.get(py).expect("the names are made at import");
    objects[index].bind(py)
}

/// The interned string of a name of the list.
macro_rules! intern {
    ($py:expr, $name:literal) => {
        $crate::names::get($py, const { $crate::names::index($name) })
    };
}

pub(crate) use intern;
