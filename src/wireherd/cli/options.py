"""Flags that several verbs share, with llama.cpp's names, and what they become."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError
from wireherd.llm import hub, models
from wireherd.llm.options import CACHE_TYPES, FLASH_ATTENTION, SET_TENSOR, SPLIT_MODES, LlamaOptions
from wireherd.llm.placement import parse_tensor_split
from wireherd.session.options import GRAPH_CACHE_POLICIES

if TYPE_CHECKING:
    from wireherd.llm.fetch import Progress


_CONTEXT: Final = 4096


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags every verb has."""
    parser.add_argument("-v", "--verbose", action="store_true", help="log what happens, and show the trace of an error")


def add_library(parser: argparse.ArgumentParser) -> None:
    """Add the choice of the native library."""
    parser.add_argument(
        "--ggml", type=Path, metavar="PATH", help="native library: a file or a folder (default: WIREHERD_GGML, or the "
        "installed wheel's)",
    )  # fmt: skip


def add_cluster(parser: argparse.ArgumentParser, *, measuring: bool = False) -> None:
    """Add the flags that name workers; what only measurements want is shown with `measuring` alone."""
    group = parser.add_argument_group("workers")
    group.add_argument(
        "--rpc", default=None, metavar="HOST:PORT,...",
        help="workers, ours or stock RPC servers; local is one that is started here for this run",
    )  # fmt: skip
    group.add_argument(
        "--stock-timeout", type=_seconds, default=300.0, metavar="S",
        help="seconds to wait for an answer of a stock RPC server, which cannot say that it lives (default 300)",
    )  # fmt: skip
    group.add_argument(
        "--set-tensor", choices=SET_TENSOR, default="async",
        help="sync: wait for an answer to each write to a worker, as before protocol 2.0 (default async)"
        if measuring else argparse.SUPPRESS,
    )  # fmt: skip


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the flags that name a model."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group(required=required)
    which.add_argument(
        "-m", "--model", type=filled, metavar="FILE", help=f"GGUF file, or a known model: {models.names()}"
    )
    which.add_argument("-hf", "--hf-repo", type=filled, metavar="USER/REPO[:QUANT]", help="model on Hugging Face")
    group.add_argument("--offline", action="store_true", help="fetch nothing, use what is in the cache")


def add_compute(parser: argparse.ArgumentParser, *, context: bool = True) -> None:
    """Add the flags that say where and how the model runs; without `context`, the verb sizes it by itself."""
    group = parser.add_argument_group("placement and compute")
    group.add_argument(
        "-ngl",
        "--n-gpu-layers",
        "--gpu-layers",
        type=int,
        default=99,
        metavar="N",
        help="layers that leave the CPU for devices, from the last one on (default 99: all)",
    )
    group.add_argument(
        "-sm",
        "--split-mode",
        choices=SPLIT_MODES,
        default="layer",
        help="spread layers over all devices, split every layer over all of them, or use one (default layer)",
    )
    group.add_argument(
        "-ts",
        "--tensor-split",
        type=filled,
        metavar="N0,N1,...",
        help="share of each device, parted by , or / (default: by free memory)",
    )
    group.add_argument(
        "-dev",
        "--device",
        metavar="NAME,...",
        help="devices to use, in this order (see wireherd devices; none = CPU only)",
    )
    group.add_argument("-mg", "--main-gpu", type=int, default=0, metavar="I", help="the device of -sm none")
    group.add_argument(
        "-ot",
        "--override-tensor",
        action="append",
        type=filled,
        default=[],
        metavar="REGEX=BUFTYPE,...",
        help="put tensors whose names match on a device of your choice (CPU, RPC0 or RPC0[host:port])",
    )
    group.add_argument("-cmoe", "--cpu-moe", action="store_true", help="keep the weights of experts (MoE) on the CPU")
    group.add_argument(
        "-ncmoe", "--n-cpu-moe", type=int, default=0, metavar="N", help="keep those of the first N layers on the CPU"
    )
    group.add_argument("-t", "--threads", type=positive, metavar="N", help="CPU threads here (default: by the machine)")
    group.add_argument(
        "-tb", "--threads-batch", type=positive, metavar="N", help="CPU threads for prompts (default: -t)"
    )
    parser.set_defaults(ctx_size=_CONTEXT)
    if context:
        group.add_argument(
            "-c",
            "--ctx-size",
            type=int,
            default=_CONTEXT,
            metavar="N",
            help="context in tokens (default %(default)s, 0 = the model's own)",
        )
    group.add_argument(
        "-b", "--batch-size", type=positive, default=2048, metavar="N", help="logical batch (default 2048)"
    )
    group.add_argument(
        "-ub", "--ubatch-size", type=positive, default=512, metavar="N", help="physical batch (default 512)"
    )
    group.add_argument(
        "-fa", "--flash-attn", type=_flash_attention, choices=tuple(FLASH_ATTENTION), default="auto",
        help="default auto; llama-bench's 1, 0 and -1 are understood",
    )  # fmt: skip
    group.add_argument(
        "-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16", help="type of cached keys (default f16)"
    )
    group.add_argument(
        "-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16", help="type of cached values (default f16)"
    )
    group.add_argument(
        "--no-repack",
        action="store_true",
        help="keep weights on the local CPU in their stored layout: then a local run rounds as workers do",
    )
    group.add_argument("--no-mmap", action="store_true", help="read the model instead of mapping it")  # fmt: skip
    _add_graph_cache(parser)


def _add_graph_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("graphs kept by workers")
    group.add_argument(
        "--graph-cache", type=int, default=1024, metavar="N",
        help="graphs that each device of a worker keeps, so that they are not sent again (default 1024, 0 = none)",
    )  # fmt: skip
    group.add_argument(
        "--graph-cache-policy", choices=GRAPH_CACHE_POLICIES, default="lru",
        help="what a full cache forgets: the graph used longest ago, or all (default lru)",
    )  # fmt: skip


def filled(text: str) -> str:
    """Type of a flag whose value must not be empty: an empty one would be the same as no flag."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


def positive(text: str) -> int:
    """Type of a flag whose value counts something there must be at least one of."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: it must be whole and above zero")
    return int(text)


def _flash_attention(text: str) -> str:
    return {"1": "on", "0": "off", "-1": "auto"}.get(text, text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"invalid time {text!r}: it must be a number of seconds above zero")
    return value


def endpoints(args: argparse.Namespace) -> tuple[str, ...]:
    """Addresses given by `--rpc`, in order; none without the flag.

    Raises:
        UsageError: an address is empty, such as between two commas: running locally instead would hide it.
    """
    if args.rpc is None:
        return ()
    return listed("--rpc", args.rpc, "address")


def listed(flag: str, text: str, what: str) -> tuple[str, ...]:
    """Words of a comma list.

    Raises:
        UsageError: one of them is empty.
    """
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise UsageError(f"{flag} {text!r} has an empty {what} in its list")
    return words


def model_path(args: argparse.Namespace, progress: Progress) -> Path:
    """Path of the model that was asked for; one that is not here yet is fetched.

    Raises:
        UsageError: there is no such model.
        ModelError: it cannot be fetched.
    """
    if args.hf_repo:
        return hub.pull(args.hf_repo, progress=progress, offline=args.offline)
    return find_model(args.model, progress, offline=args.offline)


def find_model(name: str, progress: Progress, *, offline: bool) -> Path:
    """Path of a model file, or of a known model by its name; one that is not here yet is fetched.

    Raises:
        UsageError: there is no such model.
        ModelError: it cannot be fetched.
    """
    path = Path(name).expanduser()
    if not path.exists() and models.find(name):
        return models.pull(name, progress=progress, offline=offline)
    if not path.exists() and path.name == name and path.suffix != ".gguf":
        raise UsageError(f"there is no model file {path}, nor a known model of that name: {models.names()}")
    return path


def llama_options(args: argparse.Namespace, model: Path) -> LlamaOptions:
    """Everything a session needs to know, out of the flags.

    Raises:
        UsageError: flags that contradict each other or make no sense.
    """
    return LlamaOptions(
        model=model,
        rpc=endpoints(args),
        devices=None if args.device is None else listed("-dev", args.device, "name"),
        n_gpu_layers=args.n_gpu_layers,
        split_mode=args.split_mode,
        main_gpu=args.main_gpu,
        tensor_split=parse_tensor_split(args.tensor_split) if args.tensor_split else None,
        tensor_overrides=tuple(rule for word in args.override_tensor for rule in word.split(",") if rule),
        cpu_moe=args.cpu_moe,
        n_cpu_moe=args.n_cpu_moe,
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_ubatch=args.ubatch_size,
        threads=args.threads,
        threads_batch=args.threads_batch,
        flash_attn=args.flash_attn,
        type_k=args.cache_type_k,
        type_v=args.cache_type_v,
        repack=not args.no_repack,
        mmap=not args.no_mmap,
        ggml=args.ggml,
        stock_timeout_s=args.stock_timeout,
        set_tensor=args.set_tensor,
        graph_cache=args.graph_cache,
        graph_cache_policy=args.graph_cache_policy,
    )
