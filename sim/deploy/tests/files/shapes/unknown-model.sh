vllm serve acme/Llama-3-Acme-13B-chat --max-model-len 4096
