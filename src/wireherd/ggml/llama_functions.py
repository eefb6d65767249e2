"""The functions of llama.h that this package calls, as rows like those of `functions.py`.

Only for the builds of `builds.KNOWN_LLAMA`: signatures move too (`llama_sampler_init_penalties` took `n_vocab` as its
first argument shortly before b11548).
"""

from __future__ import annotations

import ctypes

from wireherd.ggml.functions import BOOL, INT, TEXT, U64, Row
from wireherd.ggml.llama_structs import (
    Batch,
    ChainParams,
    ContextParams,
    ModelParams,
    PerfContext,
)
from wireherd.ggml.structs import POINTER_T as P
from wireherd.ggml.structs import SIZE_T

I32 = ctypes.c_int32
U32 = ctypes.c_uint32
F32 = ctypes.c_float

LLAMA: tuple[Row, ...] = (
    Row("llama_version", TEXT, (), needed=False),
    Row("llama_backend_init", None),
    Row("llama_log_set", None, (P, P)),
    Row("llama_max_devices", SIZE_T),
    # parameters
    Row("llama_model_default_params", ModelParams),
    Row("llama_context_default_params", ContextParams),
    Row("llama_sampler_chain_default_params", ChainParams),
    # model
    Row("llama_model_load_from_file", P, (TEXT, ModelParams)),
    Row("llama_model_free", None, (P,)),
    Row("llama_model_get_vocab", P, (P,)),
    Row("llama_model_n_ctx_train", I32, (P,)),
    Row("llama_model_n_embd", I32, (P,)),
    Row("llama_model_n_layer", I32, (P,)),
    Row("llama_model_n_head", I32, (P,)),
    Row("llama_model_n_head_kv", I32, (P,)),
    Row("llama_model_n_swa", I32, (P,)),
    Row("llama_model_size", U64, (P,)),
    Row("llama_model_n_params", U64, (P,)),
    Row("llama_model_desc", I32, (P, P, SIZE_T)),
    Row("llama_model_meta_val_str", I32, (P, TEXT, P, SIZE_T)),
    Row("llama_model_meta_count", I32, (P,)),
    Row("llama_model_meta_key_by_index", I32, (P, I32, P, SIZE_T)),
    Row("llama_model_meta_val_str_by_index", I32, (P, I32, P, SIZE_T)),
    Row("llama_model_chat_template", TEXT, (P, TEXT)),
    Row("llama_model_has_encoder", BOOL, (P,)),
    Row("llama_model_is_recurrent", BOOL, (P,)),
    Row("llama_model_is_hybrid", BOOL, (P,)),
    # context
    Row("llama_init_from_model", P, (P, ContextParams)),
    Row("llama_free", None, (P,)),
    Row("llama_n_ctx", U32, (P,)),
    Row("llama_n_batch", U32, (P,)),
    Row("llama_n_ubatch", U32, (P,)),
    Row("llama_set_n_threads", None, (P, I32, I32)),
    Row("llama_decode", I32, (P, Batch)),
    Row("llama_synchronize", None, (P,)),
    Row("llama_get_logits_ith", P, (P, I32)),
    Row("llama_get_sampled_token_ith", I32, (P, I32)),
    Row("llama_perf_context", PerfContext, (P,)),
    Row("llama_perf_context_reset", None, (P,)),
    Row("llama_get_memory", P, (P,)),
    Row("llama_memory_clear", None, (P, BOOL)),
    Row("llama_memory_seq_rm", BOOL, (P, I32, I32, I32)),
    Row("llama_memory_seq_cp", None, (P, I32, I32, I32, I32)),
    Row("llama_memory_seq_pos_max", I32, (P, I32)),
    # vocabulary
    Row("llama_vocab_n_tokens", I32, (P,)),
    Row("llama_vocab_type", INT, (P,)),
    Row("llama_vocab_get_text", TEXT, (P, I32)),
    Row("llama_vocab_is_eog", BOOL, (P, I32)),
    Row("llama_vocab_is_control", BOOL, (P, I32)),
    Row("llama_vocab_bos", I32, (P,)),
    Row("llama_vocab_eos", I32, (P,)),
    Row("llama_vocab_eot", I32, (P,)),
    Row("llama_vocab_nl", I32, (P,)),
    Row("llama_vocab_get_add_bos", BOOL, (P,)),
    Row("llama_vocab_get_add_eos", BOOL, (P,)),
    Row("llama_tokenize", I32, (P, TEXT, I32, P, I32, BOOL, BOOL)),
    Row("llama_token_to_piece", I32, (P, I32, P, I32, I32, BOOL)),
    # samplers
    Row("llama_sampler_chain_init", P, (ChainParams,)),
    Row("llama_sampler_chain_add", None, (P, P)),
    Row("llama_sampler_init_greedy", P),
    Row("llama_sampler_init_dist", P, (U32,)),
    Row("llama_sampler_init_top_k", P, (I32,)),
    Row("llama_sampler_init_top_p", P, (F32, SIZE_T)),
    Row("llama_sampler_init_min_p", P, (F32, SIZE_T)),
    Row("llama_sampler_init_temp", P, (F32,)),
    Row("llama_sampler_init_penalties", P, (I32, I32, F32, F32, F32)),
    Row("llama_sampler_sample", I32, (P, P, I32)),
    Row("llama_sampler_apply", None, (P, P)),
    Row("llama_sampler_accept", None, (P, I32)),
    Row("llama_sampler_reset", None, (P,)),
    Row("llama_sampler_free", None, (P,)),
)
