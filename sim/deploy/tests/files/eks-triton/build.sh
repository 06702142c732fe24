# The engine, for eight requests of up to 131 072 tokens.
python convert_checkpoint.py --model_dir ./Llama-3.1-405B-Instruct \
  --output_dir ./converted_checkpoint \
  --dtype bfloat16 \
  --tp_size 8 \
  --pp_size 2 \
  --load_by_shard \
  --workers 8
trtllm-build --checkpoint_dir ./converted_checkpoint \
  --output_dir ./output_engines \
  --max_num_tokens 4096 \
  --max_input_len 65536 \
  --max_seq_len 131072 \
  --max_batch_size 8 \
  --use_paged_context_fmha enable \
  --workers 8
