genai-perf profile -m ensemble --service-kind triton --backend tensorrtllm \
  --num-prompts 100 --random-seed 123 \
  --synthetic-input-tokens-mean 1024 --synthetic-input-tokens-stddev 0 \
  --output-tokens-mean 1024 --output-tokens-stddev 0 --output-tokens-mean-deterministic \
  --tokenizer hf-internal-testing/llama-tokenizer \
  --concurrency 16 --request-count 200 --measurement-interval 4000 \
  --profile-export-file my_profile_export.json --url localhost:8001 --generate-plots --streaming
