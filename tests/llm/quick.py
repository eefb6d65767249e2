"""Options for sessions in tests."""

from wireherd.llm.session import LlamaOptions


def options(path, **values):
    """Equal kernels: one thread, weights as stored."""
    return LlamaOptions(path, **({"n_ctx": 256, "threads": 1, "repack": False, "flash_attn": "on"} | values))
