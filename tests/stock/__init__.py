"""Stock ggml RPC peers from registry packages: put together without a compiler, kept in the user's cache."""
