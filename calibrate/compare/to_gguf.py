#!/usr/bin/env python3
"""Converts a Llama model folder (config.json, *.safetensors, tokenizer.json) to GGUF for llama.cpp.

Written against gguf 0.19.0 and numpy 2 (PyPI). llama.cpp's own converter knows only the tokenizers of
published models; this one takes any byte-level BPE, as `servetwin model init` writes it.

    python calibrate/compare/to_gguf.py MODEL_DIR model.gguf --dtype f32
"""

import argparse
import glob
import json
import math
import os

import gguf
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    layer, rest = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def interleave(w, heads):
    """llama.cpp rotates neighbouring pairs, Hugging Face the two halves of a head: reorders the rows of q and k."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(rope, theta, dim):
    """Frequency divisors of Llama 3's rotary scaling (as `transformers` defines them)."""
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for i in range(0, dim, 2):
        wave = 2 * math.pi * theta ** (i / dim)
        if wave < high:
            factors.append(1.0)
        elif wave > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def tensors(path):
    """Names and singles of a safetensors file: the length of a header, the header in JSON, the values."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    start = os.path.getsize(path) - max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__")
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        stored = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[t["dtype"]]
        w = np.fromfile(path, dtype=stored, count=(end - begin) // np.dtype(stored).itemsize, offset=start + begin)
        # bf16 is the upper half of a single.
        w = (w.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else w.astype(np.float32)
        yield name, w.reshape(t["shape"])


def convert(folder, target, dtype):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if config.get("model_type") != "llama":
        raise SystemExit(f"{folder}: model_type is {config.get('model_type')!r}; only `llama` is converted")
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    out = gguf.GGUFWriter(target, "llama")
    out.add_name(os.path.basename(os.path.normpath(folder)))
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv)
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_rope_dimension_count(dim)
    out.add_rope_freq_base(theta)
    out.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    out.add_vocab_size(config["vocab_size"])
    file_type = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "bf16": gguf.LlamaFileType.MOSTLY_BF16}
    out.add_file_type(file_type[dtype])
    tokenizer(out, folder, config)
    if rope.get("rope_type", rope.get("type")) == "llama3":
        out.add_tensor("rope_freqs.weight", llama3_factors(rope, theta, dim))
    kinds = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        for name, w in tensors(path):
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                w = interleave(w, heads if "q_proj" in name else kv)
            if w.ndim == 1 or dtype == "f32":
                out.add_tensor(gguf_name(name), np.ascontiguousarray(w))
            else:
                out.add_tensor(gguf_name(name), gguf.quants.quantize(np.ascontiguousarray(w), kinds[dtype]), raw_dtype=kinds[dtype])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def byte_of(c):
    """The byte that a character stands for in a byte-level vocabulary (GPT-2's table)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return ord(c) if ord(c) in own else rest[ord(c) - 256]


def shown(token):
    """A token's text, or in place of bytes that are no text by themselves their number: a server holds back what it cannot
    show yet, so that a random model's tokens would come late and in bunches, as those of a trained one do not."""
    try:
        bytes(map(byte_of, token)).decode("utf-8")
        return token
    except (UnicodeDecodeError, IndexError):
        return "~" + "".join(f"{ord(c):03x}" for c in token)


def tokenizer(out, folder, config):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    merged = t["model"].get("merges", [])
    # Merges name tokens by their text, so that only a vocabulary without any can be changed.
    tokens = {i: s if merged else shown(s) for s, i in t["model"]["vocab"].items()}
    kinds = {i: gguf.TokenType.NORMAL for i in tokens}
    for a in t.get("added_tokens", []):
        tokens[a["id"]] = a["content"]
        kinds[a["id"]] = gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    ids = range(config["vocab_size"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([tokens.get(i, f"[unused{i}]") for i in ids])
    out.add_token_types([kinds.get(i, gguf.TokenType.UNUSED) for i in ids])
    # llama.cpp asks for merges; a tokenizer without any gets one that never applies.
    merges = [m if isinstance(m, str) else " ".join(m) for m in merged]
    out.add_token_merges(merges or ["[unused] [unused]"])
    first = lambda x: x[0] if isinstance(x, list) else x
    for key, add in (("bos_token_id", out.add_bos_token_id), ("eos_token_id", out.add_eos_token_id)):
        if first(config.get(key)) is not None:
            add(first(config[key]))
    out.add_add_bos_token(False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", help="model folder in Hugging Face form")
    p.add_argument("target", help="GGUF file to write")
    p.add_argument("--dtype", choices=("f32", "f16", "bf16"), default="f32", help="of the matrices (default f32)")
    a = p.parse_args()
    convert(a.folder, a.target, a.dtype)


if __name__ == "__main__":
    main()
