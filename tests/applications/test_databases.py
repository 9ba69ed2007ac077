"""asyncpg and redis-py, each against a real server of its own: over TCP, over TLS and over a Unix socket."""

import asyncio
import contextlib
import decimal
import io
import uuid

import pytest

import support

BULK = bytes(range(256)) * 12_000


# PostgreSQL

asyncpg = pytest.importorskip("asyncpg", reason="make test-applications installs it")


@pytest.fixture(params=["tcp", "tls", "unix"])
def dsn(request, postgres, certificate):
    """Return the arguments of `asyncpg.connect` for one way to the server."""
    options = {"user": "ringloop", "database": "postgres", "port": postgres.port, "timeout": support.PATIENCE_S}
    if request.param == "unix":
        return {**options, "host": str(postgres.folder)}
    if request.param == "tls":
        return {**options, "host": "localhost", "ssl": certificate.client_context()}
    return {**options, "host": support.HOST, "ssl": False}


@contextlib.asynccontextmanager
async def connected(dsn):
    connection = await asyncpg.connect(**dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=support.PATIENCE_S)


def test_values_go_there_and_back(loop, dsn):
    values = {
        "int": -(2**31), "bigint": 2**62, "float8": 1.5, "numeric": decimal.Decimal("12345.678901234567890"),
        "text": "grüße\n" * 1000, "bytea": BULK, "bool": True, "uuid": uuid.uuid5(uuid.NAMESPACE_DNS, "ringloop"),
        "int[]": list(range(1000)),
    }  # fmt: skip

    async def main():
        async with connected(dsn) as connection:
            assert connection.is_closed() is False
            for kind, value in values.items():
                assert await connection.fetchval(f"SELECT $1::{kind}", value) == value
            over_tls = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            assert over_tls == bool(dsn.get("ssl"))

    loop.run_until_complete(main())


def test_transactions_cursors_and_copies(loop, dsn):
    async def main():
        async with connected(dsn) as connection:
            await connection.execute("CREATE TEMPORARY TABLE numbers (number int PRIMARY KEY, text text)")
            rows = [(number, str(number) * 20) for number in range(5000)]
            await connection.copy_records_to_table("numbers", records=rows)
            with pytest.raises(asyncpg.UniqueViolationError, match="numbers_pkey"):
                async with connection.transaction():
                    await connection.execute("DELETE FROM numbers WHERE number >= 100")
                    await connection.execute("INSERT INTO numbers VALUES (1, '')")
            assert await connection.fetchval("SELECT count(*) FROM numbers") == 5000
            async with connection.transaction():
                query = "SELECT number, text FROM numbers ORDER BY number"
                assert [tuple(row) async for row in connection.cursor(query, prefetch=300)] == rows
            output = io.BytesIO()
            await connection.copy_from_table("numbers", output=output)
            assert output.getvalue() == "".join(f"{number}\t{text}\n" for number, text in rows).encode()
            await connection.executemany(
                "UPDATE numbers SET text = $2 WHERE number = $1", [(n, "new") for n in range(300)]
            )
            assert await connection.fetchval("SELECT count(*) FROM numbers WHERE text = 'new'") == 300

    loop.run_until_complete(main())


def test_a_pool_for_many(loop, dsn):
    async def main():
        async with asyncpg.create_pool(**dsn, min_size=2, max_size=8) as pool:

            async def ask(number):
                async with pool.acquire() as connection, connection.transaction():
                    return await connection.fetchval("SELECT $1::int * 2", number)

            assert await asyncio.gather(*map(ask, range(200))) == [2 * number for number in range(200)]
            assert 2 <= pool.get_size() <= 8

    loop.run_until_complete(main())


def test_notifications(loop, dsn):
    async def main():
        heard = asyncio.Queue()
        async with connected(dsn) as listener, connected(dsn) as speaker:
            channel = f"ringloop_{id(heard)}"
            await listener.add_listener(channel, lambda _connection, _pid, _channel, text: heard.put_nowait(text))
            for number in range(20):
                await speaker.execute("SELECT pg_notify($1, $2)", channel, str(number))
            assert [await asyncio.wait_for(heard.get(), support.PATIENCE_S) for _ in range(20)] == list(
                map(str, range(20))
            )
            await listener.reset()

    loop.run_until_complete(main())


def test_queries_that_are_given_up(loop, dsn):
    """asyncpg cancels a query over a second connection, and the first is good for more."""

    async def main():
        async with connected(dsn) as connection:
            with pytest.raises(asyncio.TimeoutError):
                await connection.fetchval("SELECT pg_sleep(60)", timeout=0.05)
            assert await connection.fetchval("SELECT 1") == 1
            task = loop.create_task(connection.fetchval("SELECT pg_sleep(60)"))
            await support.looks(10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await connection.fetchval("SELECT 2") == 2

    loop.run_until_complete(main())


def test_connections_that_end(loop, dsn):
    """One connection is ended by the server in the middle of a query; the other does not notice."""

    async def main():
        async with connected(dsn) as bystander:
            victim = await asyncpg.connect(**dsn)
            query = loop.create_task(victim.execute("SELECT pg_sleep(60)"))
            pid = victim.get_server_pid()
            while not await bystander.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid
            ):
                await asyncio.sleep(0.001)
            assert await bystander.fetchval("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises((asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)):
                await query
            await support.until(victim.is_closed, "the end of the connection")
            with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
                await victim.execute("SELECT 1")
            assert await bystander.fetchval("SELECT 3") == 3

    loop.run_until_complete(main())


def test_a_server_that_is_not_there(loop, refused_port):
    async def main():
        with pytest.raises(ConnectionRefusedError):
            await asyncpg.connect(host=support.HOST, port=refused_port, user="ringloop", database="ringloop", ssl=False)

    loop.run_until_complete(main())


# Redis

redis = pytest.importorskip("redis.asyncio", reason="make test-applications installs it")


@pytest.fixture(params=["tcp", "tls", "unix"])
def client(request, redis_server, certificate):
    """Return a function that makes a client for one way to the server."""

    def make(**options):
        if request.param == "unix":
            return redis.Redis(unix_socket_path=str(redis_server.folder / "redis.sock"), **options)
        if request.param == "tls":
            options.update(ssl=True, ssl_ca_certs=str(certificate.certificate))
            return redis.Redis(host="localhost", port=redis_server.tls_port, **options)
        return redis.Redis(host=support.HOST, port=redis_server.port, **options)

    return make


def test_commands_and_pipelines(loop, client):
    async def main():
        async with client() as connection:
            await connection.flushdb()
            assert await connection.set("key", BULK)
            assert await connection.get("key") == BULK
            async with connection.pipeline(transaction=True) as pipeline:
                for number in range(500):
                    pipeline.rpush("list", number)
                assert await pipeline.execute() == list(range(1, 501))
            assert await connection.lrange("list", 0, -1) == [str(number).encode() for number in range(500)]
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                await connection.get("list")
            assert await connection.get("missing") is None

    loop.run_until_complete(main())


def test_a_pool_of_connections_for_many(loop, client):
    async def main():
        async with client(max_connections=50) as connection:
            await connection.delete("counter")
            counts = await asyncio.gather(*(connection.incr("counter") for _ in range(50)))
            assert sorted(counts) == list(range(1, 51))

    loop.run_until_complete(main())


def test_messages_to_subscribers(loop, client):
    async def main():
        async with client() as connection, connection.pubsub() as subscriber:
            await subscriber.subscribe("channel")
            its_socket = subscriber.connection._writer.get_extra_info("socket")
            heard = []

            async def listen():
                async for message in subscriber.listen():
                    heard.append(message["data"])
                    if len(heard) == 21:
                        return

            listener = loop.create_task(listen())
            await support.until(lambda: heard == [1], "the subscription")
            for number in range(20):
                assert await connection.publish("channel", str(number)) == 1
            await asyncio.wait_for(listener, support.PATIENCE_S)
            assert heard[1:] == [str(number).encode() for number in range(20)]
        # redis-py closes the connection of a subscriber without waiting for its end.
        await support.until(lambda: its_socket.fileno() == -1, "the end of the subscriber's connection")

    loop.run_until_complete(main())


def test_blocking_commands_that_are_given_up(loop, client):
    async def main():
        async with client() as connection:
            await connection.delete("queue")
            for _ in range(20):
                # Connected before: redis-py may lose a cancellation while it connects, on every loop.
                assert await connection.ping()
                task = loop.create_task(connection.blpop("queue", timeout=60))
                await support.turns(10)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await connection.ping()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await connection.blpop("queue", timeout=60)
            waiting = loop.create_task(connection.blpop("queue", timeout=60))
            await asyncio.sleep(0)
            # What was given up may have left its wait at the server for a moment: enough for all of them.
            while not waiting.done():
                await connection.rpush("queue", "value")
                await asyncio.sleep(0.001)
            assert list(await waiting) == [b"queue", b"value"]

    loop.run_until_complete(main())


def test_connections_that_the_server_ends(loop, client):
    async def main():
        async with client(single_connection_client=True) as bystander, client() as connection:
            number = await connection.client_id()
            assert await bystander.client_kill_filter(_id=number) == 1
            # The pool finds the connection ended, and makes another.
            assert await connection.ping()
            assert await connection.client_id() != number
            assert await bystander.ping()

    loop.run_until_complete(main())


def test_a_redis_that_is_not_there(loop, refused_port):
    async def main():
        async with redis.Redis(host=support.HOST, port=refused_port, retry=None) as connection:
            with pytest.raises(redis.ConnectionError, match="Connect call failed"):
                await connection.ping()

    loop.run_until_complete(main())
