#!/usr/bin/env python3
"""Makes the golden cases of `tests/golden.rs`: tiny random models, some tokens, and the logits that transformers computes.

Ran with torch 2.15.0, transformers 5.23.0 and safetensors 0.8.0 (PyPI), on a CPU, in float32, with eager attention.

    python calibrate/engine/golden/make.py
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
SHAPE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
             vocab_size=36, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, initializer_range=0.3)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
CASES = {
    "llama": transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "llama-tied": transformers.LlamaConfig(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=True, attention_bias=True,
                                           mlp_bias=True),
    "qwen2": transformers.Qwen2Config(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=True, use_sliding_window=True,
                                      sliding_window=7, max_window_layers=1),
    "qwen3": transformers.Qwen3Config(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=False, head_dim=12),
    "mistral": transformers.MistralConfig(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=False, sliding_window=9, head_dim=8),
}
TOKENIZER = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
             "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(36)}, "unk_token": "t0"}}


def main():
    for seed, (name, config) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms and biases too, so that none can be left out; stored as bf16 to keep the files small.
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                parameter.copy_(parameter.bfloat16().float())
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        with torch.no_grad():
            logits = model.eval()(tokens).logits[0]
        folder = HERE / name
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER) + "\n")
        save_file({"tokens": tokens[0].to(torch.int32), "logits": logits.contiguous()}, folder / "golden.safetensors")


if __name__ == "__main__":
    main()
