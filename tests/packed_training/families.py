"""Tiny random models of many families, by their model type: what is small in each, and what it has besides attention."""

import logging

import torch

COMMON = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 3,
}  # fmt: skip
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
NO_DROPOUT = ("dropout", "attention_dropout", "activation_dropout", "residual_dropout", "attn_pdrop",
    "router_jitter_noise", "input_jitter_noise", "embd_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob")  # fmt: skip
MIXTURE = {
    "moe_intermediate_size": 64, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MAMBA = {
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}  # fmt: skip
LINEAR_ATTENTION = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
WINDOW = {"sliding_window": 8}

PACKED = {
    "llama": {}, "mistral": WINDOW, "qwen2": {}, "qwen3": {}, "gemma": {}, "phi": {"num_key_value_heads": 4}, "phi3": {},
    "gemma3_text": WINDOW | {"query_pre_attn_scalar": 16}, "gpt2": GPT, "gpt_neox": {}, "gptj": GPT | {"rotary_dim": 8},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64}, "olmo": {}, "olmo2": {}, "olmo3": WINDOW, "cohere": {},
    "cohere2": WINDOW, "granite": {"logits_scaling": 2.0, "embedding_multiplier": 3.0}, "starcoder2": {},
    "codegen": GPT | {"rotary_dim": 8}, "smollm3": {}, "glm4": {}, "helium": {}, "exaone4": WINDOW, "ernie4_5": {},
    "seed_oss": {}, "persimmon": {}, "arcee": {}, "apertus": {}, "biogpt": {}, "mixtral": MIXTURE,
    "qwen2_moe": MIXTURE | {"shared_expert_intermediate_size": 64}, "qwen3_moe": MIXTURE, "olmoe": MIXTURE,
    "granitemoe": MIXTURE, "phimoe": MIXTURE,
    "deepseek_v3": MIXTURE | {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                              "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8},
}  # fmt: skip
"""Families whose rows are packed."""

OTHER_ATTENTION = {
    "gemma2": WINDOW | {"query_pre_attn_scalar": 16}, "stablelm": {}, "bloom": {"n_head": 4, "n_layer": 2}, "nemotron": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}, "gpt_oss": MIXTURE | WINDOW,
    "xglm": {"d_model": 64, "ffn_dim": 128, "attention_heads": 4, "num_layers": 2},
}  # fmt: skip
"""Families whose attention can't be told where an example ends, or does more than ours (sinks, soft caps)."""

MORE_THAN_ATTENTION = {
    "lfm2": {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "mamba": {"state_size": 8}, "falcon_mamba": {"state_size": 8}, "rwkv": {"attention_hidden_size": 64},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "recurrent_gemma": {"lru_width": 64, "attention_window_size": 8, "num_hidden_layers": 3, "logits_soft_cap": 5.0},
    "bamba": MAMBA | {"attn_layer_indices": [1]}, "falcon_h1": MAMBA | {"mamba_d_ssm": 128},
    "granitemoehybrid": MIXTURE | MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 64},
    "qwen3_next": MIXTURE | LINEAR_ATTENTION | {"shared_expert_intermediate_size": 64},
    "jamba": MIXTURE | {"mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
                        "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False},
    "zamba2": {"mamba_d_state": 8, "mamba_headdim": 16, "n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 16,
               "layers_block_type": ["mamba", "hybrid"], "attention_hidden_size": 128, "attention_head_dim": 32,
               "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 4},
    "minimax": MIXTURE | {"layer_types": ["linear_attention", "full_attention"], "block_size": 16},
}  # fmt: skip
"""Families with convolutions, state-space layers or linear attention, which run over the join of two examples."""

ALL = PACKED | OTHER_ATTENTION | MORE_THAN_ATTENTION


def build(family):
    """A random model, its weights large enough that every layer matters to the loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = AutoConfig.for_model(family, **COMMON | ALL[family])
    for name in NO_DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
    return model.eval()
