//! What a scenario is exported to.

/// Gives the targets with their names and titles.
macro_rules! targets {
    ($($variant:ident: $name:literal, $title:literal;)*) => {
        /// What a scenario is exported to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Target {
            $(#[doc = $title] $variant,)*
        }

        impl Target {
            /// Every target.
            pub const ALL: &'static [Target] = &[$(Target::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Target::$variant => $name,)*
                }
            }

            /// What it is.
            pub fn title(self) -> &'static str {
                match self {
                    $(Target::$variant => $title,)*
                }
            }
        }
    };
}

targets! {
    Vllm: "vllm", "a `vllm serve` command";
    Sglang: "sglang", "a `python -m sglang.launch_server` command";
    Kubernetes: "k8s", "a Kubernetes Deployment with a Service (vLLM, TGI, SGLang)";
    LeaderWorkerSet: "lws", "a LeaderWorkerSet, a replica over several nodes (vLLM, TensorRT-LLM)";
    TgiCompose: "tgi-compose", "docker compose with TGI's environment, nginx in front";
    TritonHelm: "triton-helm", "values of the multi-node Triton TensorRT-LLM chart, the engine's build and `config.pbtxt`";
    TrtLlm: "trtllm", "the commands that build a TensorRT-LLM engine, and Triton's `config.pbtxt`";
    LlmD: "llm-d", "Helm values of llm-d's model service, prefill and decode together or apart (vLLM)";
    Dynamo: "dynamo", "an NVIDIA Dynamo graph deployment, prefill and decode together or apart (vLLM)";
}
