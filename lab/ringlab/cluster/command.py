"""The options of a cluster on the command line, `ringlab worker`, and how a run gets its machines."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from ringlab import Refused, manifest, results
from ringlab.cluster import LOCAL, PORT, ROLES, Encryption, namespaces, worker

if TYPE_CHECKING:
    from ringlab.cluster.coordinator import Cluster

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Elsewhere:
    """Where a run measures, if not on this machine alone."""

    cluster: str = ""
    """The address of a scheduler, or `local`."""
    addresses: tuple[str, ...] = ()
    """As HOST:PORT, of servers that run already."""
    generators: int = 0
    encryption: Encryption = field(default_factory=Encryption)

    @classmethod
    def of(cls, command: Sequence[str]) -> Self:
        """Return what a command asks for, as words() has written it."""
        pairs = list(itertools.pairwise(command))
        values = dict(pairs)
        return cls(
            cluster=values.get("--cluster", ""),
            addresses=tuple(value for option, value in pairs if option == "--address"),
            generators=int(values.get("--generators", 0)),
            encryption=Encryption(*(values.get(option, "") for option in ("--tls-ca-file", "--tls-cert", "--tls-key"))),
        )

    def words(self) -> list[str]:
        """Return the options that ask for this again."""
        words = [word for address in self.addresses for word in ("--address", address)]
        words += ["--cluster", self.cluster] if self.cluster else []
        words += ["--generators", str(self.generators)] if self.generators else []
        for option, value in (
            ("--tls-ca-file", self.encryption.ca_file),
            ("--tls-cert", self.encryption.certificate),
            ("--tls-key", self.encryption.key),
        ):
            words += [option, value] if value else []
        return words

    @contextlib.contextmanager
    def joined(self, placement: results.Placement, targets_folder: Path | None) -> "Iterator[Cluster]":
        """Connect to the machines of the cluster, or make them on this one; raise Refused."""
        worker.dask_library()
        from ringlab.cluster.coordinator import Cluster

        with contextlib.ExitStack() as stack:
            scheduler = self.cluster
            if scheduler == LOCAL:
                scheduler = stack.enter_context(namespaces.Namespaces(placement, targets_folder)).scheduler
            serves = not self.addresses
            yield stack.enter_context(Cluster(scheduler, self.encryption, serves=serves, generators=self.generators))


def arms_of_addresses(addresses: tuple[str, ...]) -> list[manifest.Arm]:
    """Return the arms that stand for servers that run already; raise Refused."""
    arms = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise Refused(f"{address!r} is no address of a server: write it as HOST:PORT, for example 10.0.0.5:8080")
        if addresses.count(address) > 1:
            raise Refused(f"{address} is named twice; a second copy of the baseline is measured anyway (--again)")
        arms.append(
            manifest.Arm(
                name=address,
                target=address,
                language="unknown",
                title=f"the server that runs at {address}",
                folder=Path(),
                build_folder=Path(),
                commands={},
                workloads=tuple(
                    name for name in manifest.SERVED if manifest.KIND_OF_WORKLOAD[name] in manifest.SERVERS
                ),
                address=address,
            )
        )
    return arms


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for TLS between the parts of a cluster, which are called as Dask's."""
    path = click.Path(exists=True, dir_okay=False)
    options: list[Decorator] = [
        click.option("--tls-ca-file", type=path, help="TLS of a cluster: the certificates to trust."),
        click.option("--tls-cert", type=path, help="TLS of a cluster: this machine's certificate."),
        click.option("--tls-key", type=path, help="TLS of a cluster: its key."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def encryption_of(tls_ca_file: str | None, tls_cert: str | None, tls_key: str | None) -> Encryption:
    """Return what the options ask for; raise Refused."""
    given = (tls_ca_file, tls_cert, tls_key)
    if any(given) and not all(given):
        raise Refused("TLS needs all three of --tls-ca-file, --tls-cert and --tls-key")
    return Encryption(*(each or "" for each in given))


def elsewhere_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `run` about other machines."""
    options: list[Decorator] = [
        click.option(
            "--cluster",
            default="",
            metavar="ADDRESS",
            help=f"Measure on several machines: the address of Dask's scheduler, as tcp://HOST:{PORT}; or local: on this one, in"
            " network namespaces (needs root).",
        ),
        click.option(
            "--generators",
            type=click.IntRange(0, 1000),
            default=0,
            help="With --cluster: how many machines generate load; 0: all with the role load.",
        ),
        click.option(
            "--address",
            "addresses",
            multiple=True,
            metavar="HOST:PORT",
            help="Measure a server that runs already, instead of targets. Repeatable.",
        ),
        tls_options,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def elsewhere_of(cluster: str, generators: int, addresses: tuple[str, ...], tls: Encryption) -> Elsewhere:
    """Return what the options ask for; raise Refused."""
    if cluster and cluster != LOCAL:
        cluster = worker.check_address(cluster)
    if not cluster and (generators or tls != Encryption()):
        raise Refused("--generators and the options for TLS are for a cluster: add --cluster")
    if cluster == LOCAL and (addresses or tls != Encryption()):
        raise Refused("--cluster local makes its own network and servers: leave out --address and the options for TLS")
    return Elsewhere(cluster, addresses, generators, tls)


def read_cpus(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Return the numbers of CPUs in a list like 1,3 or 4-7."""
    found: list[int] = []
    try:
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of CPUs: write it as 2,3 or 4-7") from None
    return found


@click.command("worker", short_help="Make this machine part of a cluster.")
@click.option(
    "--role", type=click.Choice(ROLES), required=True, help="server: servers run here; load: load generators."
)
@click.option(
    "--scheduler", required=True, metavar="ADDRESS", help=f"Address of Dask's scheduler, as tcp://HOST:{PORT}."
)
@click.option("--name", default="", help="Name of this machine in reports (default: its host name and the role).")
@click.option(
    "--host",
    default="",
    help="Address at which other machines reach this one (default: the one from which it reaches the scheduler).",
)
@click.option(
    "--cpus",
    default="",
    callback=read_cpus,
    metavar="LIST",
    help="CPUs of the server or the generator, as 2,3 or 4-7 (default: any).",
)
@click.option(
    "--targets-folder",
    type=click.Path(exists=True, file_okay=False),
    help="Role server: where the targets are.",
)
@tls_options
def worker_command(
    role: str, scheduler: str, name: str, host: str, cpus: list[int], targets_folder: str | None, **tls: str | None
) -> None:
    """Make this machine a part of a cluster, until Ctrl-C: `ringlab run --cluster` then measures with it.

    \b
    Example, on three machines, with `dask scheduler` on a fourth one or on one of them:
      ringlab worker --role server --scheduler tcp://10.0.0.1:8786
      ringlab worker --role load --scheduler tcp://10.0.0.1:8786

    Whoever reaches the scheduler can run programs here: keep it in a private network, or use TLS.
    """
    options = worker.Options(role, scheduler, name, host, cpus, targets_folder or "", encryption_of(**tls))
    sys.exit(worker.run(options))
