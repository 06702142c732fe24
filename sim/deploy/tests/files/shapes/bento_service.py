import bentoml

MODEL_ID = "meta-llama/Llama-3.1-8B-Instruct"
MAX_LEN = 4096


@bentoml.service(resources={"gpu": 1, "gpu_type": "nvidia-l4"})
class Chat:
    hf_model = bentoml.models.HuggingFaceModel(MODEL_ID)

    def __command__(self) -> list[str]:
        return ["vllm", "serve", self.hf_model, "--max-model-len", str(MAX_LEN), "--port", "8000"]
