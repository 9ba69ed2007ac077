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
    "" "1.0" "1.1" "2" "2.3" "2.4" "3.0" "443" "80" "ASYNCIO_COROUTINE_MARK" "COROUTINE_MARK" "ClientDisconnected"
    "FED_PROTOCOL" "FileWrapper" "HTTP/1.0" "HTTP/1.1" "HTTP/2" "Handle" "PATH_INFO" "QUERY_STRING" "RAW_URI"
    "REMOTE_ADDR" "REMOTE_PORT" "REQUEST_METHOD" "REQUEST_URI" "SERVER_NAME" "SERVER_PORT" "SERVER_PROTOCOL"
    "SSLProtocolState" "Task" "TimerHandle" "_ThreadSafeHandle" "__get__" "_add_writer" "_app_protocol_buffer_updated"
    "_app_protocol_get_buffer" "_args" "_asyncio_future_blocking" "_attach" "_buffer" "_call_connection_lost"
    "_call_eof_received" "_callback" "_cancelled" "_check" "_close_idle" "_close_later" "_closing" "_conn_lost"
    "_connect_sock" "_connection_lost" "_context" "_continue" "_control_app_writing" "_control_ssl_reading"
    "_create_connection_transport" "_deliver" "_do_flush" "_do_handshake" "_do_read" "_do_shutdown" "_do_write"
    "_drain_helper" "_end" "_end_wait" "_ensure_fd_no_transport" "_ensure_resolved" "_eof" "_exception" "_fatal_error"
    "_fileno" "_flush" "_flush_access_log" "_force_close" "_get_running_loop" "_incoming" "_leave_server" "_limit"
    "_loop" "_make_socket_transport" "_maybe_pause_protocol" "_maybe_resume_protocol" "_maybe_resume_transport"
    "_on_file_sent" "_on_task_done" "_on_timer" "_outgoing" "_paused" "_pipe" "_protocol" "_reader" "_remove_reader"
    "_remove_writer" "_run" "_socket" "_ssl_buffer_view" "_ssl_protocol" "_sslobj" "_start_shutdown" "_stream_reader_wr"
    "_transport" "_transports" "_wait_for_data" "_waiter" "_work" "_write_backlog" "_write_buffer_size" "_write_ready"
    "abort" "accept" "add_done_callback" "addresses" "adopt_streams" "append" "asgi" "asyncio.events" "asyncio.sslproto"
    "asyncio.tasks" "awaiting" "begin" "body" "buffer_updated" "bytes" "call_at" "call_exception_handler"
    "call_handling" "call_later" "call_soon" "call_soon_threadsafe" "cancel" "cancelled" "client" "close" "code"
    "connect" "connection_made" "context" "create_future" "create_task" "current_task" "current_tasks" "data"
    "data_received" "datagram_received" "debug" "describe" "done" "drain" "eager_start" "end_empty_waiter"
    "eof_received" "error_received" "exception" "extend" "extensions" "feed_data" "feed_eof" "file_of_wrapper" "fileno" "get"
    "get_buffer" "get_write_buffer_size" "getpeername" "getsockname" "getsockopt" "handle_repr" "has_arrived"
    "has_chosen_http2" "headers" "http" "http.disconnect" "http.request" "http.response.body" "http.response.early_hint"
    "http.response.pathsend" "http.response.start" "http.response.trailers" "http_version" "https" "is_closing"
    "is_reading" "join" "layout" "links" "localhost" "log_access" "log_request" "log_slow_transport" "logger" "loop"
    "make_handle" "message" "method" "more_body" "more_trailers" "msg" "os" "path" "pause_reading" "peername" "pending"
    "protocol" "query_string" "queued" "raw" "raw_path" "read" "readexactly" "readline" "readuntil" "reason" "recv"
    "recv_into" "recvfrom" "recvfrom_into" "refuse_datagram" "report_callback_error" "report_transport_error" "result"
    "resume_reading" "ringloop._http" "ringloop._metrics" "ringloop._support" "root_path" "run" "run_timed" "scheme"
    "send" "send_file" "send_path" "sendto" "server" "set_exception" "set_nodelay" "set_protocol" "set_result"
    "set_write_buffer_limits" "setblocking" "sock_connect" "socket" "sockname" "spec_version" "start_view_thread"
    "stat_result" "state" "status" "subprotocol" "subprotocols" "text" "throw" "timer_handle_compare" "trailers"
    "transport" "type" "unsent" "value" "version" "wake_waiter" "warning" "water_marks" "websocket" "websocket.accept"
    "websocket.close" "websocket.connect" "websocket.disconnect" "websocket.http.response"
    "websocket.http.response.body" "websocket.http.response.start" "websocket.receive" "websocket.send" "write"
    "write_eof" "write_type_error" "writelines" "ws" "wsgi.input" "wsgi.url_scheme" "wss"
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

/// The names at these places.
#[inline]
pub(crate) fn all<const N: usize>(
    py: Python<'_>,
    indices: [usize; N],
) -> [&Bound<'_, PyString>; N] {
    indices.map(|index| get(py, index))
}

/// The interned string of a name of the list.
macro_rules! intern {
    ($py:expr, $name:literal) => {
        $crate::names::get($py, const { $crate::names::index($name) })
    };
}

pub(crate) use intern;
