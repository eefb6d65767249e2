"""What a worker is told to do: one frozen record, checked before anything starts.

The supervisor hands it to its processes as JSON, so every field is a plain value.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from wireherd import config
from wireherd.errors import UsageError
from wireherd.protocol.kept import HERD_GRAPH_BYTES, MAX_GRAPHS
from wireherd.protocol.version import NEWEST, SUPPORTED, Version
from wireherd.transport import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

MAX_THREADS: Final = 1024
MIB: Final = 1 << 20
DEFAULT_GRAPH_CACHE: Final = 4096


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker.

    Attributes:
        host: addresses or names to listen on, comma-separated; `unix:PATH` is a socket that only this user can open,
            `device:PATH` a byte-stream device.
        port: TCP port; 0 lets the system choose.
        devices: names of the ggml devices to serve, in this order; None serves every device the library offers.
        threads: CPU threads of one session; None uses the number of cores.
        memory_limit: bytes that the buffers of all sessions together may take; None leaves it to the devices.
        protocol: the stock protocol version that HELLO is answered with.
        ggml: library file or folder; None uses WIREHERD_GGML or the installed wheel.
        insecure: allow an address that other machines can reach, without any authentication.
        verbose: log every step.
        peers: address ranges in which this worker opens links to others; None follows from the addresses it listens
            at.
        advertise: addresses to tell other workers instead of the ones it listens at, for a worker behind a relay.
        plain: hide our extension, so that our own client treats this worker as a stock server (for tests and benches).
        until_eof: stop when standard input ends, so that the worker does not outlive the program that started it.
        prewarmed: session processes kept ready for the next client.
        max_sessions: session processes at the same time; further clients wait.
        max_connections: connections that have no session yet; beyond it the one idle longest is dropped.
        graph_cache_limit: most graphs kept for a client on each device, whatever it asks for; 0 keeps none.
        graph_cache_bytes: bytes of records of those graphs; rebuilt they take up to twice as much.
        handshake_timeout_s: seconds within which a frame that has begun, or the first HELLO, must be complete.
    """

    host: str = config.DEFAULT_HOST
    port: int = config.DEFAULT_PORT
    devices: tuple[str, ...] | None = None
    threads: int | None = None
    memory_limit: int | None = None
    protocol: Version = NEWEST
    ggml: str | None = None
    insecure: bool = False
    verbose: bool = False
    peers: tuple[str, ...] | None = None
    advertise: tuple[str, ...] = ()
    plain: bool = False
    until_eof: bool = False
    prewarmed: int = 1
    max_sessions: int = 64
    max_connections: int = 1024
    graph_cache_limit: int = DEFAULT_GRAPH_CACHE
    graph_cache_bytes: int = HERD_GRAPH_BYTES
    handshake_timeout_s: float = 5.0

    def check(self) -> None:
        """Refuse senseless or unsafe settings.

        Raises:
            UsageError: a value out of range, an unsupported protocol version, or an address that other machines can
                reach without `insecure`.
        """
        if not 0 <= self.port <= 65535:
            raise UsageError(f"the port must be between 0 and 65535, not {self.port}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(f"the number of threads must be between 1 and {MAX_THREADS}, not {self.threads}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise UsageError("the memory limit must be above zero")
        if self.prewarmed < 1 or self.max_sessions < 1 or self.max_connections < 1 or self.handshake_timeout_s <= 0:
            raise UsageError("the limits of a worker must be above zero")
        if not 0 <= self.graph_cache_limit <= MAX_GRAPHS:
            raise UsageError(f"--graph-cache-limit must be between 0 and {MAX_GRAPHS}, not {self.graph_cache_limit}")
        if self.devices is not None and not self.devices:
            raise UsageError("name at least one device, or leave the option out to serve all of them")
        if self.protocol not in SUPPORTED:
            known = ", ".join(str(version) for version in sorted(SUPPORTED))
            raise UsageError(f"protocol {self.protocol} is not one this worker speaks: choose one of {known}")
        address_ranges(self.peers or ())
        for address in self.advertise:
            Address.parse(address)
        for host in self.hosts:
            if host.startswith(("unix:", "device:")):
                Address.parse(host)
            elif not self.insecure and not is_loopback(host):
                raise UsageError(
                    f"{host} can be reached from other machines and this worker has no authentication: add --insecure "
                    "if everyone on that network may use it, or listen on 127.0.0.1"
                )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen on, one by one."""
        return tuple(part.strip() for part in self.host.split(","))

    @property
    def socket_hosts(self) -> tuple[str, ...]:
        """Those of them that sockets listen at."""
        return tuple(host for host in self.hosts if not host.startswith("device:"))

    @property
    def device_hosts(self) -> tuple[str, ...]:
        """Those of them that are byte-stream devices."""
        return tuple(host for host in self.hosts if host.startswith("device:"))

    def to_arguments(self) -> list[str]:
        """The command-line arguments of `wireherd worker` that give these settings."""
        arguments = ["--host", self.host, "--port", str(self.port), "--protocol", self.protocol.short]
        if self.devices is not None:
            arguments += ["--device", ",".join(self.devices)]
        if self.threads is not None:
            arguments += ["--threads", str(self.threads)]
        if self.memory_limit is not None:
            arguments += ["--mem", str(-(-self.memory_limit // MIB))]
        if self.graph_cache_limit != DEFAULT_GRAPH_CACHE:
            arguments += ["--graph-cache-limit", str(self.graph_cache_limit)]
        if self.ggml is not None:
            arguments += ["--ggml", self.ggml]
        if self.peers is not None:
            arguments += ["--peers", ",".join(self.peers)]
        if self.advertise:
            arguments += ["--advertise", ",".join(self.advertise)]
        for name in ("insecure", "verbose", "plain"):
            if getattr(self, name):
                arguments.append(f"--{name}")
        return arguments

    def to_json(self) -> str:
        """Encode for `from_json` in another process of the same release."""
        return json.dumps(dataclasses.asdict(self) | {"protocol": list(self.protocol)})

    @classmethod
    def from_json(cls, text: str) -> WorkerSettings:
        """Decode what `to_json` wrote."""
        values = json.loads(text)
        values["protocol"] = Version(*values["protocol"])
        if values["devices"] is not None:
            values["devices"] = tuple(values["devices"])
        if values["peers"] is not None:
            values["peers"] = tuple(values["peers"])
        values["advertise"] = tuple(values["advertise"])
        return cls(**values)


def address_ranges(texts: Sequence[str]) -> tuple[Network, ...]:
    """Ranges as `--peers` spells them.

    Raises:
        UsageError: one is none.
    """
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            raise UsageError(f"--peers takes address ranges such as 192.168.1.0/24, not {text!r}") from error
    return tuple(found)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: a loopback address, or the name localhost."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
