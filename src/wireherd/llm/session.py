"""One model, loaded over workers and local devices, with one context: load, decode, forget.

libllama does the work: it reads the file, places the layers, builds the graphs and keeps the KV cache; every tensor on
a worker's device lives on that worker. What is added here is what libllama does not do: checks with a sentence before
and after, one exception where C has a status or nothing at all, Ctrl-C, and a `close` that frees everything whatever
went wrong.

Two holes of libllama are closed here. It goes on loading when a worker has died: the progress callback stops it. And
`llama_decode` returns 0 when only the logits did not arrive: the cluster is asked after every synchronise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from wireherd import ggml
from wireherd.errors import Cancelled, GgmlFailed, ModelError, NativeError, UsageError
from wireherd.ggml.llama import Batch, Context, Model
from wireherd.llm import gguf, here, load, trial
from wireherd.llm.device import choose_devices
from wireherd.llm.fetch import Progress, silent
from wireherd.llm.generate import GenerateOptions, Generation
from wireherd.llm.interrupt import GENTLE_S, PATIENT_S, native
from wireherd.llm.options import LlamaOptions
from wireherd.llm.overrides import override_targets
from wireherd.llm.sampler import SamplerSettings, SessionSampler
from wireherd.llm.speculative import make_drafter
from wireherd.llm.template import ChatTemplate

__all__ = ["LlamaOptions", "LlmSession"]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

    from wireherd.client.plugin import Cluster
    from wireherd.ggml.library import Library
    from wireherd.llm.device import OffloadDevice
    from wireherd.llm.drafter import Drafter
    from wireherd.llm.placement import Share

_Made = TypeVar("_Made")


class LlmSession:
    """A loaded model. Make one with `open`; use it as a context manager, or `close` it.

    Not for use from two threads at once, except `abort`.
    """

    def __init__(self, options: LlamaOptions) -> None:
        """Hold the options; `open` loads."""
        self.options = options
        self.lib: Library = ggml.load(options.ggml)
        self.cluster: Cluster | None = None
        self.drafter: Drafter | None = None
        self.plan: list[Share] = []
        self.load_ms = 0.0
        self._model: Model | None = None
        self._context: Context | None = None
        self._template: ChatTemplate | None = None
        self._template_known = False
        self._eog: list[int] | None = None
        self._cached: list[int] = []
        self._broken = False
        self._aborted = False
        self._gentle_s = GENTLE_S

    @classmethod
    def open(cls, options: LlamaOptions, progress: Progress | None = None) -> LlmSession:
        """Connect to the workers and load the model.

        Args:
            options: What to load, and where.
            progress: Told of the loading, in thousandths.

        Raises:
            UsageError: there is no such file, or options make no sense.
            ModelError: the file is no model, is cut short, or does not fit.
            WorkerError: a worker cannot be reached, refuses, or died meanwhile; it is named.
            NativeError: the native library is missing or unknown, or failed.
        """
        options.check()
        paths = gguf.split_paths(options.path)
        for path in paths:
            gguf.check_file(path)
        session = cls(options)
        try:
            session._load(paths, progress or silent)
        except BaseException:
            session.close()
            raise
        return session

    # ---- loading

    def _load(self, paths: Sequence[Path], progress: Progress) -> None:
        started = time.perf_counter()
        options, lib = self.options, self.lib
        lib.start_llama()
        headers = load.read_headers(lib, paths)
        if options.rpc:
            self.cluster = here.open_cluster(lib, options)
        devices = choose_devices(
            lib,
            self.cluster.devices if self.cluster else [],
            names=options.devices,
            only=options.main_gpu if options.split_mode == "none" else None,
        )
        self.plan = load.plan(lib, options, headers, devices)
        overrides = override_targets(lib, devices, options)
        if options.split_mode == "tensor" and devices:
            trial.check_split(lib, options, devices, overrides)
        with native(self.abort, self._cancel):
            self._load_model(devices, overrides, progress)
            self._make_context()
            if self.cluster:
                self.cluster.ping()  # loading returns before the last bytes arrived
        self._check()
        self.drafter = make_drafter(self, type(self).open, progress)
        self.load_ms = 1000.0 * (time.perf_counter() - started)

    def _load_model(
        self, devices: Sequence[OffloadDevice], overrides: Sequence[tuple[str, int]], progress: Progress
    ) -> None:
        what = f"loading {self.options.path.name}"

        def on_progress(share: float) -> bool:
            progress(what, round(share * 1000), 1000)
            return not self._aborted and not (self.cluster and self.cluster.failure)

        wanted = load.model_options(self.options, devices, overrides, on_progress)
        self._model = self._attempt(lambda: Model(self.lib, self.options.path, wanted))

    def _make_context(self) -> None:
        wanted = load.context_options(self.options)
        self._context = self._attempt(lambda: Context(self.model, wanted))
        self._batch = Batch(self.context.n_batch)

    def _attempt(self, make: Callable[[], _Made]) -> _Made:
        """Run a step of loading; a worker's failure explains a native one."""
        try:
            made = make()
        except (ModelError, NativeError) as error:
            if self._aborted:
                raise Cancelled("the loading was stopped") from error
            if self.cluster is not None:
                self.cluster.check()
            raise load.explained(self.options, self.plan, error) from error
        if self._aborted:
            raise Cancelled("the loading was stopped")
        return made

    # ---- what was loaded

    @property
    def model(self) -> Model:
        """The model; raises `GgmlFailed` once closed."""
        if self._model is None:
            raise GgmlFailed("the session is closed")
        return self._model

    @property
    def context(self) -> Context:
        """The context; raises `GgmlFailed` once closed."""
        if self._context is None:
            raise GgmlFailed("the session is closed")
        return self._context

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds."""
        return self.context.n_ctx

    @property
    def n_past(self) -> int:
        """Tokens it holds now."""
        return len(self._cached)

    @property
    def failed(self) -> bool:
        """Whether only `close` is left."""
        return self._broken or self._context is None or bool(self.cluster and self.cluster.failure)

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None for a base model."""
        if not self._template_known:
            self._template, self._template_known = ChatTemplate.of(self.model), True
        return self._template

    def workers(self) -> list[dict[str, Any]]:
        """Endpoint, protocol, bytes and round trips of each worker, a draft model's last; empty if all is local."""
        mine = [dict(entry) for entry in self.cluster.stats()] if self.cluster else []
        return mine + [{**entry, "draft": True} for entry in (self.drafter.workers() if self.drafter else ())]

    # ---- text and tokens

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Turn text into token ids, with the model's start token in front unless told otherwise."""
        return self.model.vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of a token; control tokens have none unless `special`."""
        return self.model.vocab.piece(token, special=special)

    def is_eog(self, token: int) -> bool:
        """Whether the model ends with this token."""
        return self.model.vocab.is_eog(token)

    def eog_tokens(self) -> list[int]:
        """All tokens a model ends with."""
        if self._eog is None:
            vocab = self.model.vocab
            self._eog = [token for token in range(vocab.n_tokens) if vocab.is_eog(token)]
        return self._eog

    # ---- running

    def decode(self, tokens: Sequence[int], outputs: str = "last") -> None:
        """Put tokens behind those the context holds, in batches of `n_batch`.

        Logits are kept for the last token, or with `outputs` "all" for all tokens of the last batch.
        It returns before remote work is done: `synchronize` waits for it.

        Raises:
            UsageError: they do not fit the context.
            WorkerError: a worker failed.
            Cancelled: `abort` was called.
            GgmlFailed: a local device failed.
        """
        context = self.context
        if self.n_past + len(tokens) > context.n_ctx:
            raise UsageError(f"the context of {context.n_ctx} tokens is full: raise -c")
        self._gentle_s = PATIENT_S if len(tokens) == 1 or outputs == "all" else GENTLE_S
        with native(self.abort, self._cancel, self._gentle_s):
            for start in range(0, len(tokens), context.n_batch):
                chunk = tokens[start : start + context.n_batch]
                if len(chunk) == 1:
                    self._batch.one(chunk[0], self.n_past)
                else:
                    self._batch.fill(chunk, self.n_past, outputs=outputs)
                status = context.decode(self._batch)
                if status:
                    self._refuse(status)
                self._cached += chunk
        self._check()

    def _refuse(self, status: int) -> None:
        """Turn a status of `llama_decode` into the exception it stands for."""
        if self.cluster is not None:
            self.cluster.check()
        if status == 2:
            self._undo_abort()
            raise Cancelled("the work was stopped")
        if status == 1:
            raise UsageError(f"the context of {self.n_ctx} tokens has no room left: raise -c")
        self._broken = True
        words = "; ".join(self.lib.log.errors())
        raise GgmlFailed(f"llama.cpp failed to decode (status {status})" + (f": {words}" if words else ""))

    def _undo_abort(self) -> None:
        """Drop what a stopped decode left behind, so that the session can go on."""
        self._resume()
        if not self.context.remove(0, self.n_past, -1):
            self.reset()

    def _resume(self) -> None:
        self._aborted = False
        self.context.clear_abort()

    def synchronize(self) -> None:
        """Wait until the logits of the last decode are here.

        Raises:
            WorkerError: a worker failed; libllama itself would hand out garbage.
        """
        with native(self.abort, self._cancel, self._gentle_s):
            self.context.synchronize()
        self._check()

    def reset(self) -> int:
        """Empty the context; returns 0, the number of tokens it holds."""
        self._resume()  # an abort that came too late for the work before must not stop the next
        if self._cached:
            self.context.clear(data=False)
            self._cached = []
        return 0

    def take_back(self, count: int) -> None:
        """Drop the last tokens of the context, `count` of them from the last batch.

        Raises:
            GgmlFailed: the model cannot do it (`Model.is_recurrent`).
        """
        if count:
            if not self.context.remove(0, self.n_past - count, -1):
                self._broken = True
                raise GgmlFailed("llama.cpp could not take tokens back from the context")
            del self._cached[-count:]

    def rewind(self, prompt: Sequence[int], known: int = 0) -> int:
        """Keep what the context shares with a prompt from its start on; returns how many tokens that are.

        At least one token of the prompt is left to decode, for its logits. The first `known` tokens are known to be
        shared and not compared.
        """
        self._resume()
        common = min(known, len(self._cached), len(prompt) - 1)
        limit = min(len(self._cached), len(prompt) - 1)
        while common < limit and self._cached[common] == prompt[common]:
            common += 1
        if common < len(self._cached):
            # a sliding window has let go of what lies before it: cut back, it would attend to nothing there
            forgetful = not self.options.swa_full and self.model.n_swa > 0
            if common == 0 or forgetful or not self.context.remove(0, common, -1):
                return self.reset()
            del self._cached[common:]
        return common

    def sampler(self, settings: SamplerSettings, prompt: Sequence[int] = (), **how: Any) -> SessionSampler:
        """Make a sampler over this session's logits (`how`: as it takes them); close it before the session."""
        return SessionSampler(self, settings, prompt, **how)

    def generate(
        self,
        prompt: str | Sequence[int],
        options: GenerateOptions | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Continue a prompt: iterate over what is returned for pieces of text; its `result` has the rest.

        A text is tokenised with the model's start token and with control tokens recognised by name, as llama.cpp's
        tools do.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return Generation(self, tokens, options or GenerateOptions(), on_token)

    def abort(self) -> None:
        """Stop what runs, from any thread: `decode` and `open` then raise `Cancelled`.

        Local work stops at its next operation. Work on workers goes on to the end of the running call: `cancel` stops
        it too, but costs the session.
        """
        self._aborted = True
        if self._context is not None:
            self._context.abort()
        if self.drafter is not None:
            self.drafter.abort()

    def cancel(self) -> None:
        """Stop what runs here and on the workers, from any thread; afterwards the session can only be closed."""
        self.abort()
        self._cancel()
        if self.drafter is not None:
            self.drafter.cancel()

    def _cancel(self) -> None:
        if self.cluster is not None:
            self.cluster.cancel()

    def _check(self) -> None:
        """Raise the failure of a worker. A refused allocation that libllama got over is none."""
        if self.cluster is not None and (self.cluster.failure or self.cluster.interrupted):
            self.cluster.check()

    # ---- ending

    def close(self) -> None:
        """Free context, model and connections; may be called again."""
        if self.drafter is not None:
            self.drafter.close()
            self.drafter = None
        if self._context is not None:
            self._context.close()
            self._context = None
        if self._model is not None:
            self._model.close()
            self._model = None
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None
        self._cached = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
