#!/usr/bin/env python3
"""Run quinn's own tests on ringloop: those of the crate in Cargo.lock, from the sources that cargo has downloaded.

The tests name tokio where they spawn, sleep and start a runtime. A copy in the folder TARGET/quinn-tests names a module there
instead, which does this with ringloop; nothing else is changed, and the tests that quinn leaves out of a usual run are run,
too. Each backend is named in RINGLOOP_BACKEND. Arguments are passed to the tests: `tools/quinn_tests.py echo_v6`.

Exits with 0 if all tests pass, with 1 if one fails, with 2 if quinn's sources are not what this expects.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("io_uring", "epoll")
# The crates that the tests use, with the versions that quinn's own manifest names.
HELPERS = ("crc", "rand", "rcgen", "tracing-futures", "tracing-subscriber")

# In the tests of the library, and in those beside it: what is replaced, by what.
COMMON = [
    (r"\b(?:quinn::)?Endpoint::(client|server)\(", r"on_ringloop::\1("),
    (r"\btokio::(?:task::)?spawn\(", "on_ringloop::spawn("),
]
LIBRARY = [
    (r"use crate::runtime::TokioRuntime;", "use on_ringloop::TokioRuntime;"),
    (r"use crate::\{Duration, Instant\};", "use std::time::{Duration, Instant};"),
    (r"use super::\{", "use quinn::{"),
    (r"use proto::", "use quinn_proto::"),
    (r"use tokio::time::", "use ringloop::time::"),
    (
        r"use tokio::\{\s*join,\s*runtime::\{Builder, Runtime\},\s*\};",
        "use on_ringloop::{Builder, Runtime};\nuse tokio::join;",
    ),
    (r"\bcrate::", "quinn::"),
    (
        r"#\[tokio::test\]\nasync fn (\w+)\(\) \{",
        r"#[test]\nfn \1() {\n    on_ringloop::block_on(body_of_\1());\n}\n\nasync fn body_of_\1() {",
    ),
]
BESIDE = [(r"use tokio::runtime::Builder;", "use on_ringloop::Builder;")]

MODULE = """\
use quinn::{AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime as _, ServerConfig};
use ringloop::quinn::RingloopRuntime;
use ringloop::{Handle, JoinHandle, RuntimeConfig};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

thread_local!(static ENTERED: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) });

fn ours() -> RingloopRuntime {
    let entered = ENTERED.with_borrow(|entered| entered.last().cloned());
    RingloopRuntime::new(entered.unwrap_or_else(Handle::current))
}

/// In place of tokio's: the runtime that was entered, or the current one.
#[derive(Debug)]
pub struct TokioRuntime;

impl quinn::Runtime for TokioRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        ours().new_timer(deadline)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        ours().spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        ours().wrap_udp_socket(socket)
    }
}

fn endpoint(config: Option<ServerConfig>, socket: UdpSocket) -> io::Result<Endpoint> {
    Endpoint::new(EndpointConfig::default(), config, socket, Arc::new(ours()))
}

pub fn server(config: ServerConfig, address: SocketAddr) -> io::Result<Endpoint> {
    endpoint(Some(config), UdpSocket::bind(address)?)
}

/// As quinn does it, for both families.
pub fn client(address: SocketAddr) -> io::Result<Endpoint> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    endpoint(None, socket.into())
}

pub struct Runtime(RefCell<ringloop::Runtime>, Handle);

pub struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }
}

impl Runtime {
    pub fn enter(&self) -> Guard {
        ENTERED.with_borrow_mut(|entered| entered.push(self.1.clone()));
        Guard
    }

    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.0.borrow().spawn(future)
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.borrow_mut().block_on(future)
    }
}

/// All of tokio's settings come to the same here.
pub struct Builder;

impl Builder {
    pub fn new_current_thread() -> Self {
        Self
    }

    pub fn new_multi_thread() -> Self {
        Self
    }

    pub fn enable_all(self) -> Self {
        self
    }

    pub fn build(self) -> io::Result<Runtime> {
        let runtime = ringloop::Runtime::new(&RuntimeConfig::from_env()?)?;
        let handle = runtime.handle();
        Ok(Runtime(RefCell::new(runtime), handle))
    }
}

pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    ringloop::spawn(future)
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    Builder.build().unwrap().block_on(future)
}
"""


class Unexpected(Exception):
    """quinn's sources differ from what the replacements are for."""


def packages() -> dict[str, dict[str, Any]]:
    """Return what cargo knows of each crate that ringloop is built of, by its name."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return {package["name"]: package for package in json.loads(listed.stdout)["packages"]}


def translated(source: Path, replacements: list[tuple[str, str]]) -> str:
    """Return the tests in a file, on ringloop."""
    text = source.read_text().replace('#![cfg(any(feature = "rustls-aws-lc-rs", feature = "rustls-ring"))]\n', "")
    for pattern, replacement in replacements:
        text, count = re.subn(pattern, replacement, text)
        # One of the two files does not have each of the common ones.
        if not count and (pattern, replacement) not in COMMON:
            raise Unexpected(f"{source}: nothing is like {pattern}")
    if left := re.search(r"tokio::(runtime|time|net|task|test)\b.*", text):
        raise Unexpected(f"{source}: there is still {left[0]}")
    return f"#![allow(unexpected_cfgs, dead_code, unused, unsafe_op_in_unsafe_fn)]\n\nmod on_ringloop;\n\n{text}"


def write(folder: Path) -> None:
    """Write the package of tests."""
    known = packages()
    quinn = Path(known["quinn"]["manifest_path"]).parent
    manifest = tomllib.loads((quinn / "Cargo.toml").read_text())
    helpers = {name: manifest["dev-dependencies"][name] for name in HELPERS}
    dependencies: dict[str, Any] = {
        "bytes": {"version": "1"},
        "quinn": {
            "version": f"={known['quinn']['version']}",
            "default-features": False,
            "features": ["rustls-ring", "bloom"],
        },
        "quinn-proto": {"version": f"={known['quinn-proto']['version']}", "default-features": False},
        "ringloop": {"path": str(ROOT / "crates/ringloop"), "features": ["quinn"]},
        "rustls": {"version": known["rustls"]["version"], "default-features": False, "features": ["std", "ring"]},
        "socket2": {"version": known["socket2"]["version"]},
        "tokio": {"version": known["tokio"]["version"], "default-features": False, "features": ["macros", "sync"]},
        "tracing": {"version": known["tracing"]["version"]},
        **helpers,
    }
    lines = ["[package]", 'name = "quinn-tests"', 'version = "0.0.0"', f'edition = "{manifest["package"]["edition"]}"']
    lines += [
        "",
        "[workspace]",
        "",
        "[lib]",
        'path = "empty.rs"',
        "",
        "[features]",
        'default = ["rustls-ring"]',
        "rustls-ring = []",
    ]
    for name, settings in dependencies.items():
        lines += ["", f"[dependencies.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    tests = folder / "tests"
    (tests / "on_ringloop").mkdir(parents=True, exist_ok=True)
    (folder / "Cargo.toml").write_text("\n".join(lines) + "\n")
    (folder / "empty.rs").write_text("")
    shutil.copy(ROOT / "Cargo.lock", folder)
    (tests / "on_ringloop/mod.rs").write_text(MODULE)
    (tests / "library.rs").write_text(translated(quinn / "src/tests.rs", LIBRARY + COMMON))
    (tests / "many_connections.rs").write_text(translated(quinn / "tests/many_connections.rs", BESIDE + COMMON))


def main() -> int:
    """Write the tests, and run them on each backend."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    folder = target / "quinn-tests"
    try:
        write(folder)
    except (Unexpected, KeyError) as problem:
        print(f"quinn's tests cannot be taken over: {problem}", file=sys.stderr)
        return 2
    failed = []
    for backend in BACKENDS:
        print(f"== quinn's tests on {backend}", flush=True)
        environment = {
            **os.environ,
            "RINGLOOP_BACKEND": backend,
            "CARGO_TARGET_DIR": str(target / "quinn-tests/target"),
        }
        command = ["cargo", "test", "--no-fail-fast", "--tests", "--", "--include-ignored", *sys.argv[1:]]
        if subprocess.run(command, cwd=folder, env=environment).returncode:
            failed.append(backend)
    if failed:
        print(f"failed on {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
