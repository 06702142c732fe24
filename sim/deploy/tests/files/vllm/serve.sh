#!/bin/bash
# A chat model on one H100.
set -euo pipefail
export HF_TOKEN=hf_not_a_real_token
MODEL=Qwen/Qwen3-14B
PORT=8000

vllm serve "$MODEL" \
  --port ${PORT} \
  --max-model-len 8192 \
  --max-num-seqs 256 \
  --max-num-batched-tokens 8k \
  --gpu-memory-utilization 0.9 \
  --enable-prefix-caching \
  --kv-cache-dtype fp8 \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' \
  --served-model-name chat \
  --max-nun-seqs 12
