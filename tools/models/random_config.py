"""Random small members of the model families that Winnow serves, as configurations of Hugging Face's transformers.

Each function takes a random.Random and gives the keyword arguments of AutoConfig.for_model; FAMILIES names them by their model_type.
Values are drawn from what published members of a family differ in: heads, widths, norms, rotations, windows, routing.
"""


def rope(rng, theta=None, kinds=("default", "default", "linear", "llama3", "yarn")):
    parameters = {"rope_type": rng.choice(kinds), "rope_theta": theta or rng.choice([5000.0, 10000.0, 500000.0, 1e6])}
    if parameters["rope_type"] == "linear":
        parameters["factor"] = rng.choice([2.0, 4.0])
    elif parameters["rope_type"] == "llama3":
        parameters |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0]),
                       "original_max_position_embeddings": rng.choice([64, 1024])}
    elif parameters["rope_type"] == "yarn":
        parameters |= {"factor": rng.choice([4.0, 32.0]), "original_max_position_embeddings": rng.choice([64, 1024])}
        if rng.random() < 0.5:
            parameters |= {"beta_fast": rng.choice([16.0, 32.0]), "beta_slow": rng.choice([1.0, 2.0])}
        if rng.random() < 0.3:
            parameters["attention_factor"] = rng.choice([1.0, 1.2])
    return parameters


def common(rng):
    kv_heads = rng.choice([1, 2, 4])
    return {
        "vocab_size": rng.choice([320, 512, 700]), "hidden_size": rng.choice([64, 96, 128]),
        "intermediate_size": rng.choice([96, 160, 224]), "num_hidden_layers": rng.choice([2, 3, 4]),
        "num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * rng.choice([1, 2, 4]),
        "max_position_embeddings": 4096, "rms_norm_eps": rng.choice([1e-5, 1e-6]), "initializer_range": 0.2,
        "tie_word_embeddings": rng.random() < 0.3, "rope_parameters": rope(rng), "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }


def cut_heads(config, rng):
    """For families whose heads divide the hidden size."""
    config["hidden_size"] = config["num_attention_heads"] * rng.choice([16, 32])
    return config


def windows(config, rng, every):
    layers = config["num_hidden_layers"]
    config["sliding_window"] = rng.choice([16, 33, 128])
    config["layer_types"] = ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(layers)]
    return config


def experts(rng, name, most=4):
    count = rng.choice([4, 6, 8])
    return {name: count, "num_experts_per_tok": rng.randint(1, min(most, count))}


def llama(rng):
    config = common(rng) | {"attention_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3}
    return config | {"head_dim": rng.choice([16, 32, 64])} if rng.random() < 0.5 else cut_heads(config, rng)


def qwen2(rng):
    return cut_heads(common(rng), rng)


def qwen3(rng):
    return common(rng) | {"head_dim": rng.choice([16, 32, 64]), "attention_bias": rng.random() < 0.3}


def mistral(rng):
    return common(rng) | {"head_dim": rng.choice([16, 32, 64]), "sliding_window": rng.choice([None, 16, 100])}


def mixtral(rng):
    return common(rng) | experts(rng, "num_local_experts", 3) | {
        "head_dim": rng.choice([16, 32]), "sliding_window": rng.choice([None, None, 50])}


def qwen3_moe(rng):
    config = common(rng) | experts(rng, "num_experts") | {
        "head_dim": rng.choice([16, 32]), "moe_intermediate_size": rng.choice([32, 48]),
        "norm_topk_prob": rng.random() < 0.5, "decoder_sparse_step": rng.choice([1, 1, 2])}
    if rng.random() < 0.3:
        config["mlp_only_layers"] = [0]
    return config


def qwen2_moe(rng):
    return cut_heads(common(rng), rng) | experts(rng, "num_experts") | {
        "moe_intermediate_size": rng.choice([32, 48]), "shared_expert_intermediate_size": rng.choice([48, 96]),
        "norm_topk_prob": rng.random() < 0.5, "decoder_sparse_step": rng.choice([1, 1, 2])}


def qwen3_next(rng):
    config = common(rng) | experts(rng, "num_experts") | {
        "head_dim": rng.choice([16, 32, 64]), "moe_intermediate_size": rng.choice([32, 48]),
        "shared_expert_intermediate_size": rng.choice([48, 96]), "norm_topk_prob": rng.random() < 0.7,
        "attention_bias": rng.random() < 0.2, "decoder_sparse_step": rng.choice([1, 1, 2])}
    config["num_hidden_layers"] = layers = rng.choice([3, 4, 5])
    kinds = [rng.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(layers)]
    kinds[rng.randrange(layers)] = "full_attention"
    if "linear_attention" not in kinds:
        kinds[kinds.index("full_attention")] = "linear_attention"
    key_heads = rng.choice([1, 2, 3])
    config |= {"layer_types": kinds, "linear_conv_kernel_dim": rng.choice([2, 4, 4]), "linear_key_head_dim": rng.choice([8, 16, 32]),
               "linear_value_head_dim": rng.choice([16, 24, 64]), "linear_num_key_heads": key_heads,
               "linear_num_value_heads": key_heads * rng.choice([1, 2, 4])}
    config["rope_parameters"] = rope(rng, kinds=("default",)) | {"partial_rotary_factor": rng.choice([0.25, 0.5])}
    return config


def qwen3_5_text(rng):
    config = qwen3_next(rng)
    for field in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
                  "decoder_sparse_step"):
        del config[field]
    pairs = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]) // 2
    config["rope_parameters"] |= {"mrope_section": [pairs - pairs // 3 * 2, pairs // 3, pairs // 3], "mrope_interleaved": True}
    return config


def qwen3_5_moe_text(rng):
    config = qwen3_next(rng)
    del config["norm_topk_prob"], config["decoder_sparse_step"], config["intermediate_size"]
    return config


def phi3(rng):
    config = cut_heads(common(rng), rng)
    config["rope_parameters"] = rope(rng, kinds=("default",)) | {"partial_rotary_factor": rng.choice([1.0, 0.5, 0.75])}
    config["sliding_window"] = rng.choice([None, 64])
    return config


def olmo2(rng):
    return cut_heads(common(rng), rng) | {"attention_bias": rng.random() < 0.2}


def olmo3(rng):
    config = windows(cut_heads(common(rng), rng), rng, every=rng.choice([2, 4]))
    scaled = rope(rng)
    config["rope_parameters"] = {"full_attention": scaled,
                                 "sliding_attention": {"rope_type": "default", "rope_theta": scaled["rope_theta"]}}
    return config


def gemma2(rng):
    config = windows(common(rng), rng, every=2) | {
        "head_dim": rng.choice([16, 32, 64]), "query_pre_attn_scalar": rng.choice([16, 24, 32]),
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
        "attn_logit_softcapping": rng.choice([None, 2.0, 10.0, 50.0]), "final_logit_softcapping": rng.choice([None, 5.0, 30.0])}
    config["rope_parameters"] = rope(rng, 1e4, ("default",))
    return config


def gemma3_text(rng):
    config = windows(common(rng), rng, every=rng.choice([2, 3])) | {
        "head_dim": rng.choice([16, 32]), "query_pre_attn_scalar": rng.choice([16, 24, 32]),
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    config["rope_parameters"] = {"full_attention": rope(rng, 1e6, ("default", "linear")),
                                 "sliding_attention": rope(rng, 1e4, ("default",))}
    return config


def gemma3(rng):
    """Of which the language model alone is compared."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16,
              "patch_size": 8}
    return {"text_config": gemma3_text(rng), "vision_config": vision, "mm_tokens_per_image": 1, "bos_token_id": None,
            "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True, "initializer_range": 0.2}


def gpt_oss(rng):
    config = windows(common(rng), rng, every=2) | experts(rng, "num_local_experts") | {
        "head_dim": rng.choice([16, 32, 64]), "attention_bias": True}
    config["rope_parameters"] = rope(rng, 150000.0, ("yarn",)) | {"truncate": rng.random() < 0.3}
    return config


def glm4_moe(rng):
    config = common(rng) | experts(rng, "n_routed_experts") | {
        "head_dim": rng.choice([16, 32]), "moe_intermediate_size": rng.choice([32, 48]), "n_shared_experts": 1,
        "first_k_dense_replace": rng.choice([0, 1]), "use_qk_norm": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5, "norm_topk_prob": rng.random() < 0.7,
        "routed_scaling_factor": rng.choice([1.0, 2.5])}
    config["rope_parameters"] = rope(rng, kinds=("default",)) | {"partial_rotary_factor": 0.5}
    return config | groups(rng, config)


def groups(rng, config):
    count = rng.choice([1, 2])
    taken = rng.randint(1, count)
    fits = config["n_routed_experts"] // count * taken >= config["num_experts_per_tok"]
    return {"n_group": count, "topk_group": taken} if fits else {"n_group": 1, "topk_group": 1}


def latent(rng):
    config = common(rng)
    heads = rng.choice([2, 4, 8])
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": rng.choice([32, 48]),
               "kv_lora_rank": rng.choice([32, 64]), "qk_nope_head_dim": rng.choice([16, 32]),
               "qk_rope_head_dim": rng.choice([16, 32]), "v_head_dim": rng.choice([16, 32]),
               "moe_intermediate_size": rng.choice([32, 48]), "n_shared_experts": rng.choice([1, 2]),
               "first_k_dense_replace": rng.choice([0, 1]), "routed_scaling_factor": rng.choice([1.0, 2.5]),
               "tie_word_embeddings": False, "attention_bias": False}
    config["rope_parameters"] = rope(rng, 10000.0, ("default",))
    config |= experts(rng, "n_routed_experts")
    return config | groups(rng, config)


def yarn_of_latents(config, rng):
    if rng.random() < 0.5:
        config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": rng.choice([4.0, 40.0]),
                                     "original_max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0,
                                     "mscale": rng.choice([0.707, 1.0]), "mscale_all_dim": rng.choice([0.707, 1.0])}
    return config


def deepseek_v2(rng):
    config = yarn_of_latents(latent(rng), rng) | {"topk_method": rng.choice(["greedy", "group_limited_greedy"])}
    if rng.random() < 0.4:
        config["q_lora_rank"] = None
    return config


def deepseek_v3(rng):
    config = yarn_of_latents(latent(rng), rng) | {"norm_topk_prob": rng.random() < 0.7,
                                                  "rope_interleave": rng.random() < 0.7}
    if rng.random() < 0.3:
        config["q_lora_rank"] = None
    return config


def deepseek_v32(rng):
    # With few heads many scores are 0, as none of them has a positive product, and which of these are taken is not defined.
    config = latent(rng) | {"norm_topk_prob": True, "index_topk": rng.choice([16, 64]), "index_n_heads": rng.choice([16, 32])}
    key = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    return config | {"index_head_dim": rng.choice([size for size in (32, 48, 64) if size <= key])}


def glm_moe_dsa(rng):
    return deepseek_v32(rng)


FAMILIES = {family.__name__: family for family in (
    llama, qwen2, qwen3, mistral, mixtral, qwen3_moe, qwen2_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, phi3, olmo2, olmo3, gemma2,
    gemma3_text, gemma3, gpt_oss, glm4_moe, deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa)}
