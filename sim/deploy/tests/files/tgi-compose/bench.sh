aiperf profile --model meta-llama/Llama-2-7b-hf --url http://localhost:8080 --endpoint-type chat --streaming \
  --concurrency 256 --request-count 6000 --isl 256 --osl 256 --extra-inputs ignore_eos:true
