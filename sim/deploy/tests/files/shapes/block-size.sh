vllm serve Qwen/Qwen3-14B --block-size 17
