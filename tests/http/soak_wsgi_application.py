"""The WSGI application that `make soak` has `ringloop serve` serve. Its views do what wsgi_plans.py says."""

import asyncio
import contextvars
import functools
import gc
import io
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time

import soak_application
import wsgi_plans

LEAKED = []
LOCK = threading.Lock()
OPEN = set()
"""Iterables that were not closed."""
FAULTS = []
COUNTS = {"views": 0, "running": 0, "failures": 0}
"""Views that were called; those that have not returned; exceptions that they have raised."""
REQUEST = contextvars.ContextVar("request", default=None)
TYPE = [("Content-Type", "application/octet-stream")]


def count(name, by=1):
    with LOCK:
        COUNTS[name] += by


def fault(text):
    with LOCK:
        FAULTS.append(text)


def app(environ, start_response):
    _, action, *rest = environ["PATH_INFO"].split("/")
    return ACTIONS[action](environ, start_response, *rest)


def answer(start_response, body):
    start_response("200 OK", [*TYPE, ("Content-Length", str(len(body)))])
    return [body]


# -- Views that follow a plan --------------------------------------------------------------------------------------------


class Run:
    """A call of a view."""

    def __init__(self, plan, environ, start_response):
        self.plan = plan
        self.input = environ["wsgi.input"]
        self.model = plan.model()
        self.wrap = environ["wsgi.file_wrapper"]
        self.start_response = start_response
        self.thread = threading.get_ident()
        last = REQUEST.get()
        if last is not None and last.thread != self.thread:
            self.fault("the context is another thread's")
        REQUEST.set(self)

    def fault(self, text):
        fault(f"view {self.plan.number}: {text}")

    def check_place(self):
        if threading.get_ident() != self.thread or REQUEST.get() is not self:
            self.fault("it moved to another thread or context")

    def read(self, index):
        """Read as the plan says, and compare."""
        self.check_place()
        for name, limit in self.plan.reads[index]:
            found, expected = (call(file, name, limit) for file in (self.input, self.model))
            if found != expected:
                self.fault(f"{name}({limit}) before part {index} returned {found!r:.100}, and not {expected!r:.100}")

    def start(self):
        if self.plan.failure == "call":
            self.fail()
        headers = [*TYPE, ("X-Plan", str(self.plan.number))]
        if self.plan.changes_head:
            self.start_response("500 First", [("Content-Length", "3"), ("X-First", "yes")])
            try:
                raise ValueError
            except ValueError:
                information = sys.exc_info()
        else:
            information = None
        if self.plan.length is not None:
            headers.append(("Content-Length", str(self.plan.length)))
        write = self.start_response(self.plan.status, headers, information)
        if self.plan.failure == "start":
            self.fail()
        return write

    def fail(self):
        count("failures")
        raise RuntimeError("on purpose")

    def parts(self):
        """Yield what the plan says."""
        for index, part in enumerate(self.plan.parts):
            if index:
                self.read(index)
            if self.plan.failure == index:
                yield self.recover()
                return
            yield part
        if self.plan.failure == len(self.plan.parts):
            yield self.recover()

    def recover(self):
        """Fail at a part: return another body if there is still time for it."""
        if not self.plan.recovers:
            self.fail()
        try:
            raise RuntimeError("on purpose")
        except RuntimeError:
            try:
                headers = [*TYPE, ("X-Plan", str(self.plan.number))]
                self.start_response("500 Internal Server Error", headers, sys.exc_info())
            except RuntimeError:
                count("failures")
                raise
        return wsgi_plans.SORRY


def call(file, name, limit):
    """Call a method of a file."""
    if name == "next":
        return next(file, None)
    if name == "iterate":
        return list(file)
    return getattr(file, name)(limit)


class Once:
    """Notes that something is open until it is closed."""

    def __init__(self, run):
        self.run = run
        with LOCK:
            OPEN.add(self)

    def close(self):
        with LOCK:
            was_open = self in OPEN
            OPEN.discard(self)
        if not was_open:
            self.run.fault("closed twice")
        self.run.check_place()
        if self.run.plan.failure == "close":
            self.run.fail()


class Iterable:
    def __init__(self, run, parts):
        self.once = Once(run)
        self.parts = parts

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.parts)

    def close(self):
        self.once.close()


class ClosingList(list):
    def __init__(self, run, parts):
        super().__init__(parts)
        self.once = Once(run)

    def close(self):
        self.once.close()


def generator(run, *, is_late):
    """Return what the plan says in a generator, which Python closes."""
    once = Once(run)
    try:
        if is_late:
            run.read(0)
            run.start()
        yield from run.parts()
    finally:
        once.close()


def view(environ, start_response, kind, number):
    """Do what the plan of this number says."""
    count("views")
    count("running")
    try:
        return planned(environ, start_response, kind, number)
    finally:
        count("running", -1)


def planned(environ, start_response, kind, number):
    plan = wsgi_plans.make(int(number), kind)
    run = Run(plan, environ, start_response)
    if environ["REQUEST_METHOD"] != plan.method:
        run.fault(f"the method is {environ['REQUEST_METHOD']}")
    if plan.way == "late generator":
        return generator(run, is_late=True)
    run.read(0)
    write = run.start()
    match plan.way:
        case "list":
            return list(run.parts())
        case "tuple":
            return tuple(run.parts())
        case "list with close":
            return ClosingList(run, run.parts())
        case "iterable":
            return Iterable(run, run.parts())
        case "generator":
            return generator(run, is_late=False)
        case "write":
            parts = run.parts()
            for _ in range(plan.written):
                if (part := next(parts, None)) is not None:
                    write(part)
            return Iterable(run, parts)
        case "file":
            size, at = plan.file
            file = tempfile.TemporaryFile()  # noqa: SIM115
            file.write(wsgi_plans.pattern(size))
            file.seek(at)
        case "wrapped":
            file = io.BytesIO(b"".join(plan.parts))
    wrapper = run.wrap(file, 1000 + plan.number % 20_000)
    once, close = Once(run), wrapper.close

    def close_both():
        close()
        once.close()

    wrapper.close = close_both
    return wrapper


# -- Other views ---------------------------------------------------------------------------------------------------------


def endless(environ, start_response):
    """Send until the client is gone."""
    start_response("200 OK", TYPE)
    run = Run(wsgi_plans.QUIET, environ, start_response)
    return Iterable(run, iter(functools.partial(wsgi_plans.pattern, 10_000), None))


def echo(environ, start_response):
    return answer(start_response, environ["wsgi.input"].read())


class Gathering:
    """Keeps views until there are as many as threads, so that all threads are made at the beginning."""

    def __init__(self):
        self.barrier = None

    def __call__(self, environ, start_response, threads):
        with LOCK:
            if self.barrier is None:
                self.barrier = threading.Barrier(int(threads))
        self.barrier.wait()
        return answer(start_response, b"gathered")


def tasks():
    """Return how many tasks of asyncio are not done. A view doesn't know the loop."""
    return sum(issubclass(type(it), asyncio.Task) and not it.done() for it in gc.get_objects())


def resources(environ, start_response):
    found = soak_application.held()
    with LOCK:
        found |= {"tasks": tasks(), "iterables": len(OPEN), "faults": FAULTS[:10], **COUNTS}
    return answer(start_response, json.dumps(found).encode())


def leak(environ, start_response, what):
    """Do what `make soak` has to notice."""
    match what:
        case "blocks":
            LEAKED.append([object() for _ in range(3000)])
        case "descriptors":
            LEAKED.append(os.open(os.devnull, os.O_RDONLY))
        case "sockets":
            LEAKED.append(socket.socket())
        case "threads":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        case "iterables":
            Once(None)
        case "twice":
            once = Once(Run(wsgi_plans.QUIET, environ, start_response))
            once.close()
            once.close()
        case "log":
            logging.getLogger("uvicorn.error").error("not expected")
        case "exit":
            os._exit(1)
    return answer(start_response, b"wrong" if what == "response" else b"right")


ACTIONS = {action.__name__: action for action in (view, endless, echo, resources, leak)} | {"gather": Gathering()}
