vllm serve Qwen/Qwen3-14B --tensor-parallel 2 --max-num-batched-token 4096 --gpu-memory-util 0.9 --max-model-len 8192
