"""The part of llama.h that a model session needs, under one name.

`Model` and `Vocab` are in `llama_model.py`, `Batch` and `Context` in `llama_context.py`, samplers in `sampler.py`.
Nothing of it is safe to use from two threads at once, except `Context.abort`.
"""

from wireherd.ggml.llama_context import Batch, Context, ContextOptions, Perf
from wireherd.ggml.llama_model import Model, ModelOptions, Vocab

__all__ = ["Batch", "Context", "ContextOptions", "Model", "ModelOptions", "Perf", "Vocab"]
