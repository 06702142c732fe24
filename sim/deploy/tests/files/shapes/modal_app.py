import modal

MODEL_NAME = "Qwen/Qwen3-8B"
N_GPU = 2
image = modal.Image.debian_slim().uv_pip_install("vllm==0.11.2")
app = modal.App("serve")


@app.function(image=image, gpu=f"H100:{N_GPU}", min_containers=2)
@modal.web_server(port=8000)
def serve():
    import subprocess

    cmd = [
        "vllm",
        "serve",
        MODEL_NAME,
        "--max-model-len",
        "8192",
    ]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    subprocess.Popen(" ".join(cmd), shell=True)
