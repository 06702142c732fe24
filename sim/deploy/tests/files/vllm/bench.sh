vllm bench serve --model Qwen/Qwen3-14B --dataset-name random \
  --random-input-len 986 --random-output-len 128 --random-range-ratio 0.1 \
  --request-rate 8 --num-prompts 3000 --burstiness 0.25 \
  --goodput ttft:500 tpot:50
