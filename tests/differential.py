"""For comparing loops: record what happens in terms that are the same on every loop, and run one body on two loops."""

import asyncio
import contextlib
import functools
import gc
import io
import logging
import re
import warnings

import support

# Addresses of objects (also cut short by reprlib), ports, descriptors, numbers of tasks.
NUMBERS = re.compile(r"(?<=x)[0-9a-f]{6,}|(?<=127\.0\.0\.1', )\d+|(?<=fd=)\d+|(?<=Task-)\d+|(?<=fd )\d+")
# How a wrong number of arguments is told differs between native methods and Python's.
ARITY = re.compile(r"(missing \d+ required|takes .*) (positional )?arguments?\b.*")
TYPES = {
    "EventLoop": "event loop",
    "_UnixSelectorEventLoop": "event loop",
}


def neutral(text):
    """Return a text without what differs from run to run or by design: addresses, ports, descriptors, names of types."""
    text = NUMBERS.sub("N", text)
    for ours, common in TYPES.items():
        text = re.sub(rf"\b{ours}\b", common, text)
    return text.replace("ringloop._loop.", "asyncio.unix_events.").replace("ringloop._core.", "")


def described(value):
    """Return a value as plain data: exceptions by type and text, containers by their elements, the rest by type or value."""
    if isinstance(value, BaseExceptionGroup):
        return (type(value).__name__, neutral(str(value)), [described(error) for error in value.exceptions])
    if isinstance(value, TypeError) and ARITY.search(str(value)):
        return ("TypeError", "wrong number of arguments")
    if isinstance(value, BaseException):
        return (type(value).__name__, neutral(str(value)))
    if isinstance(value, (float, str)):
        return neutral(str(value))
    if value is None or isinstance(value, (bool, int, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return (type(value).__name__, bytes(value))
    if isinstance(value, (tuple, list)):
        return tuple(described(item) for item in value)
    if isinstance(value, (asyncio.Transport, asyncio.Handle, asyncio.AbstractEventLoop)):
        return value.__class__.__mro__[-2].__name__
    if asyncio.iscoroutine(value):
        return "coroutine"
    return TYPES.get(type(value).__name__, type(value).__name__)


class Journal(logging.Handler):
    """The events, in order: what the body notes, what is logged, and what reaches the exception handler."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.entries = []

    def note(self, *words):
        self.entries.append(tuple(described(word) for word in words))

    def emit(self, record):
        # In debug mode slow callbacks are logged, and which are slow is the machine's doing.
        if record.levelno > logging.DEBUG and not record.getMessage().startswith("Executing"):
            self.note("logged", record.levelname, record.getMessage().partition("\n")[0])

    def handle_exception(self, _loop, context):
        self.note(
            "reported",
            context["message"],
            context.get("exception"),
            tuple(sorted(set(context) - {"message", "exception"})),
        )

    def attempt(self, name, call, *arguments, **options):
        """Call something, note its result or its exception, and return the result."""
        try:
            result = call(*arguments, **options)
        except Exception as error:
            self.note(name, "raised", error)
            return None
        self.note(name, "returned", result)
        return result

    async def attempt_async(self, name, awaitable):
        try:
            result = await awaitable
        except Exception as error:
            self.note(name, "raised", error)
            return None
        except asyncio.CancelledError as error:
            self.note(name, "cancelled", *error.args)
            return None
        self.note(name, "returned", result)
        return result


def journal_of(body, factory, collect=True):
    """Run `body(loop, journal)` on a fresh loop; return the entries of the journal, warnings among them.

    With `collect`, what the body left behind is collected, and shows where it warns or reports.
    """
    journal = Journal()
    logger = logging.getLogger("asyncio")
    loop = factory()
    loop.set_exception_handler(journal.handle_exception)
    logger.addHandler(journal)
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            body(loop, journal)
            support.finish(loop)
            del loop
            if collect:
                gc.collect()
    finally:
        logger.removeHandler(journal)
    warned = [(w.category.__name__, neutral(str(w.message))) for w in caught]
    # A transport in a cycle of garbage warns, and its socket too if it happens to be finalised first.
    warned = [("warning", *words) for words in warned if not words[1].startswith("unclosed <socket.socket")]
    # Whether the loop was closed by then shows in a transport's text.
    warned = [
        tuple(re.sub(r"(unclosed transport <\w+ fd=N)[^>]*>+", r"\1>", word) for word in words) for words in warned
    ]
    return [*journal.entries, *sorted(warned)]


@functools.cache
def reference_of(function, arguments, collect):
    """Return what stock asyncio does, asked once for all arms."""
    return journal_of(functools.partial(function, *arguments), support.loop_factory("asyncio"), collect)


def demand_the_same(function, factory, *arguments, collect=True):
    """Run `function(*arguments, loop, journal)` on stock asyncio and on the loop under test, and demand equal journals.

    On a busy machine the kernel may deliver a packet late, on either loop. So journals that differ are written anew, on both;
    what differs by the loops' doing differs every time.
    """
    expected = reference_of(function, arguments, collect)
    journal = journal_of(functools.partial(function, *arguments), factory, collect)
    for _ in range(4):
        if journal == expected:
            break
        expected = reference_of.__wrapped__(function, arguments, collect)
        journal = journal_of(functools.partial(function, *arguments), factory, collect)
    assert journal == expected
