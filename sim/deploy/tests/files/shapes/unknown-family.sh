vllm serve acme/Zebra-9B --max-model-len 4096
