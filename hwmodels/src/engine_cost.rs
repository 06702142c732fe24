//! What a serving engine adds to the device's work: host time between steps, kernel launches,
//! CUDA graphs, and the way a request takes through its front end.
//!
//! These are properties of software, not of the accelerator, so they live in a profile of their own
//! (`engine.<kind>.<name>`) and are fitted on serving runs, never on kernel tables.

use crate::engine::EngineKind;
use crate::ops::GraphMode;
use crate::ops::collective::AllReduceImpl;
use crate::profile::Profile;

/// A parameter of [`EngineCost`]: name within `engine.<kind>.`, unit and physical bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostSpec {
    /// Name within the engine's prefix.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Smallest value that makes sense.
    pub min: f64,
    /// Largest value that makes sense.
    pub max: f64,
    /// What it is.
    pub meaning: &'static str,
}

/// Parameters that a profile may set, in the order of [`EngineCost::values`].
pub const SPECS: [CostSpec; 13] = [
    CostSpec {
        name: "step_host",
        unit: "s",
        min: 0.0,
        max: 0.05,
        meaning: "host time of a step that does not depend on its batch: scheduling, input preparation, synchronisation",
    },
    CostSpec {
        name: "seq_host",
        unit: "s",
        min: 0.0,
        max: 2e-2,
        meaning: "host time of a step per sequence in it: bookkeeping, stop tests, detokenisation",
    },
    CostSpec {
        name: "row_host",
        unit: "s",
        min: 0.0,
        max: 2e-2,
        meaning: "host time of a step per compiled row where the host chooses tokens: the logits of all rows come to it (Neuron)",
    },
    CostSpec {
        name: "prompt_token_host",
        unit: "s",
        min: 0.0,
        max: 1e-4,
        meaning: "host time of a step per prompt token in it, of a server that tokenises prompts in its steps (TGI on Neuron)",
    },
    CostSpec {
        name: "rank_seq_host",
        unit: "s",
        min: 0.0,
        max: 2e-3,
        meaning: "host time of a step per sequence and further tensor-parallel rank: every rank keeps the same books, and the slowest sets the pace",
    },
    CostSpec {
        name: "layer_launch",
        unit: "s",
        min: 0.0,
        max: 2e-3,
        meaning: "host time to launch a dense layer's kernels one by one",
    },
    CostSpec {
        name: "rank_launch",
        unit: "s",
        min: 0.0,
        max: 1e-3,
        meaning: "host time added per layer and further tensor-parallel rank: all ranks meet in two collectives, and the slowest sets the pace",
    },
    CostSpec {
        name: "mixed_launch",
        unit: "s",
        min: 0.0,
        max: 2e-3,
        meaning: "host time per layer of a step with prefill, which no whole-model graph covers",
    },
    CostSpec {
        name: "context_launch",
        unit: "s",
        min: 0.0,
        max: 2e-3,
        meaning: "host time per layer of a step with prefill whose kernels Python launches one by one (TensorRT-LLM's PyTorch executor)",
    },
    CostSpec {
        name: "kernel_gap",
        unit: "s",
        min: -3e-6,
        max: 1e-5,
        meaning: "device time between consecutive kernels of a graph or a full launch queue; negative where they overlap, which kernels timed one by one do not",
    },
    CostSpec {
        name: "request_in",
        unit: "s",
        min: 0.0,
        max: 0.5,
        meaning: "from the client's send to the scheduler, per request: HTTP, validation, hand-over",
    },
    CostSpec {
        name: "prompt_token_in",
        unit: "s",
        min: 0.0,
        max: 1e-4,
        meaning: "the same per prompt token: tokenisation",
    },
    CostSpec {
        name: "token_out",
        unit: "s",
        min: 0.0,
        max: 0.5,
        meaning: "from a finished step to the client: detokenisation, streaming",
    },
];

/// Tokenising a prompt in TGI's router, per token [s], and in a Python server: the `tokenizers` library encodes 4.0 MiB/s of English on a
/// core of 5.4 GHz, and 2.7 MiB/s called from Python (benchmark of IREE's tokenizers, February 2026); at 4.5 bytes to a token, and 1.7 times as
/// long on servers' cores of about 3.2 GHz.
const ROUTER_TOKEN: f64 = 1.8e-6;
/// See [`ROUTER_TOKEN`].
const PYTHON_TOKEN: f64 = 2.7e-6;
/// TGI's `--validation-workers`: prompts that its router tokenises at once.
const VALIDATION_WORKERS: u32 = 2;

/// What is left of a request's way through a Python API server where Dynamo's Rust front end takes its place: the hop to the worker and its Python
/// handler. Nobody has published it. It decides one thing: whether the next request of a user in a closed loop arrives within the decode step that runs when
/// the last one ends. On Qwen3-32B TTFT is the same for any share up to 0.4 (2.7 ms).
const DYNAMO_SHARE: f64 = 0.3;

/// Device time between kernels of a captured graph, before any profile [s]: an order of magnitude.
const GRAPH_GAP: f64 = 0.5e-6;

/// Launching a layer's attention and a graph of the rest, from Python [s]. Of a pair of runs with and without whole graphs (vLLM pull request 25444: ten
/// requests to a mixture of 48 layers on one H100, 4.07 and 5.98 requests a second) 0.36 ms; a dense model of 32 layers on a PCIe H100 decodes in
/// 10.6 ms under vLLM 0.8.5, which is at most 0.31 ms a layer.
const PIECE_LAUNCH: f64 = 300e-6;

/// Launching the dozen kernels of a dense layer from Python [s]: 37 us each, which fits published steps of three models and what TGI's rows were
/// fitted to ([`launches`](crate::launches)).
const PYTHON_LAYER: f64 = 440e-6;

/// Replaying a layer of a step with prefill as a captured piece and an attention kernel of its own [s]: vLLM of 2026 takes 5.9 ms for a step of 59 such
/// parts (vLLM pull request 51167), two a layer.
const LAYER_IN_PIECES: f64 = 200e-6;

/// Which part of taking a request in is done for a few requests at a time; others wait for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// None: any number at once.
    Unlimited,
    /// Tokenising, by so many workers (TGI's router).
    Tokenizers(u32),
    /// All of it, by so many processes: vLLM's API server, one process unless told otherwise, does HTTP and tokenising (vLLM's architecture
    /// overview, "V1 process architecture").
    Processes(u32),
}

/// Host and launch costs of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineCost {
    /// Host time of a step that does not depend on its batch [s].
    pub step_host: f64,
    /// Host time of a step per sequence in it [s].
    pub seq_host: f64,
    /// Host time of a step per compiled row whose logits come to the host [s].
    pub row_host: f64,
    /// Host time of a step per prompt token in it [s].
    pub prompt_token_host: f64,
    /// Host time of a step per sequence and further tensor-parallel rank [s].
    pub rank_seq_host: f64,
    /// Host time to launch a dense layer's kernels one by one [s].
    pub layer_launch: f64,
    /// Host time added per layer and further tensor-parallel rank [s].
    pub rank_launch: f64,
    /// Host time per layer of a step with prefill under graphs [s].
    pub mixed_launch: f64,
    /// Host time per layer of a step with prefill that Python launches kernel by kernel [s].
    pub context_launch: f64,
    /// Device time between kernels, negative where they overlap [s].
    pub kernel_gap: f64,
    /// Front end, per request [s].
    pub request_in: f64,
    /// Front end, per prompt token [s].
    pub prompt_token_in: f64,
    /// How many requests the front end works on at once.
    pub intake: Intake,
    /// From a finished step to the client [s].
    pub token_out: f64,
    /// Decode batches up to this many sequences replay a captured graph; 0: always eager.
    pub graph_max_seqs: u32,
    /// Host time per layer of a step that replays captured graphs: 0 where one graph holds all of it [s].
    pub piece_launch: f64,
    /// Host work overlaps the device's (asynchronous scheduling).
    pub overlap: bool,
    /// Who does the all-reduce.
    pub all_reduce: AllReduceImpl,
}

impl EngineCost {
    /// Priors of `engine`, before any profile. Orders of magnitude: a captured graph is launched once; TensorRT-LLM's C++ loop costs
    /// a fraction of a Python one. Launches from Python are those of a dense layer ([`launches`](crate::launches)).
    pub fn prior(engine: EngineKind) -> EngineCost {
        let python = EngineCost {
            step_host: 1.5e-3,
            seq_host: 10e-6,
            row_host: 0.0,
            prompt_token_host: 0.0,
            rank_seq_host: 0.0,
            layer_launch: PYTHON_LAYER,
            rank_launch: 15e-6,
            mixed_launch: LAYER_IN_PIECES,
            context_launch: 300e-6,
            kernel_gap: GRAPH_GAP,
            request_in: 4e-3,
            prompt_token_in: 1e-6,
            intake: Intake::Unlimited,
            token_out: 1e-3,
            graph_max_seqs: 512,
            piece_launch: 0.0,
            overlap: false,
            all_reduce: AllReduceImpl::Vllm {
                symmetric_memory: false,
            },
        };
        let vllm = EngineCost {
            prompt_token_in: PYTHON_TOKEN,
            intake: Intake::Processes(1),
            ..python
        };
        match engine {
            EngineKind::VllmV1 => vllm,
            EngineKind::Tgi => EngineCost {
                seq_host: 50e-6,
                prompt_token_in: ROUTER_TOKEN,
                intake: Intake::Tokenizers(VALIDATION_WORKERS),
                graph_max_seqs: 0,
                all_reduce: AllReduceImpl::Nccl,
                ..python
            },
            EngineKind::TrtLlm => EngineCost {
                step_host: 0.7e-3,
                seq_host: 4e-6,
                mixed_launch: 20e-6,
                // What `servetwin calibrate serving trtllm` finds: TPOT of short prompts on four ranks.
                context_launch: 806e-6,
                layer_launch: 60e-6,
                // Without a graph a stream leaves a gap of one to two microseconds between kernels.
                kernel_gap: 1.5e-6,
                graph_max_seqs: 0,
                all_reduce: AllReduceImpl::TrtLlm,
                ..python
            },
            // A row's logits of Llama 3 are half a megabyte; choosing among them sorts the largest of them.
            EngineKind::TgiNeuron => EngineCost {
                seq_host: 1e-3,
                row_host: 0.5e-3,
                prompt_token_host: PYTHON_TOKEN,
                prompt_token_in: ROUTER_TOKEN,
                intake: Intake::Tokenizers(VALIDATION_WORKERS),
                layer_launch: 0.0,
                rank_launch: 0.0,
                mixed_launch: 0.0,
                kernel_gap: 0.0,
                graph_max_seqs: u32::MAX,
                all_reduce: AllReduceImpl::Neuron,
                ..python
            },
            EngineKind::Static => EngineCost {
                graph_max_seqs: 0,
                all_reduce: AllReduceImpl::Nccl,
                ..python
            },
            // A C++ loop without a scheduler process: assumed like TensorRT-LLM's, to be fitted on the endpoint.
            EngineKind::LlamaCpp => EngineCost {
                step_host: 0.5e-3,
                seq_host: 20e-6,
                graph_max_seqs: 0,
                all_reduce: AllReduceImpl::Nccl,
                ..python
            },
            // A Python process that does HTTP and tokenising (TokenizerManager), one request after another, before the scheduler's own, which
            // chooses a step while the device computes the one before.
            EngineKind::Sglang => EngineCost {
                overlap: true,
                all_reduce: AllReduceImpl::Sglang,
                ..vllm
            },
        }
    }

    /// Priors of `engine` with what `profile` says under `engine.<kind>.`.
    pub fn new(engine: EngineKind, profile: &Profile) -> EngineCost {
        let mut cost = EngineCost::prior(engine);
        for (spec, slot) in SPECS.iter().zip(cost.slots()) {
            *slot = profile.get(&format!("engine.{engine}.{}", spec.name), *slot);
        }
        cost
    }

    /// With decode steps as captured graphs, of an engine that has none unless told to.
    pub fn graphed(self) -> EngineCost {
        if self.graph_max_seqs > 0 {
            return self;
        }
        EngineCost {
            graph_max_seqs: u32::MAX,
            kernel_gap: self.kernel_gap.min(GRAPH_GAP),
            ..self
        }
    }

    /// vLLM V1 with graphs of this mode, where it has graphs at all. Without whole graphs the host launches each layer's attention and a graph
    /// of the rest for decode steps, too; without pieces it launches steps with prefill kernel by kernel.
    pub fn with_graphs(self, mode: GraphMode) -> EngineCost {
        match mode {
            GraphMode::FullAndPiecewise => self,
            GraphMode::Piecewise => EngineCost {
                piece_launch: PIECE_LAUNCH,
                ..self
            },
            GraphMode::FullDecodeOnly => EngineCost {
                mixed_launch: self.layer_launch,
                ..self
            },
        }
    }

    /// For layers with so many times the kernels of a dense one ([`launches::over_dense`](crate::launches::over_dense)), where Python launches
    /// them one by one. Engines in C++ launch within their operators.
    pub fn with_launches(self, engine: EngineKind, over_dense: f64) -> EngineCost {
        match engine {
            EngineKind::TrtLlm | EngineKind::LlamaCpp | EngineKind::TgiNeuron => self,
            _ => EngineCost {
                layer_launch: self.layer_launch * over_dense,
                ..self
            },
        }
    }

    /// TensorRT-LLM with its PyTorch executor: captured graphs hold decode steps alone, and Python launches the kernels of every step with
    /// context one by one (`cuda_graph_config` covers generation only; `torch_compile_config.enable_piecewise_cuda_graph`, off by default,
    /// is there for the rest). Short prompts on many ranks take as long as their launches do.
    pub fn launched_from_python(self) -> EngineCost {
        EngineCost {
            mixed_launch: self.context_launch,
            ..self
        }
    }

    /// With NVIDIA Dynamo's front end before a Python engine: HTTP, parsing, chat template and tokenising are Rust (Dynamo's
    /// preprocessor; `aiconfigurator eval` measures through it). One Python worker hands the token ids over, one request after another; that it takes
    /// as long as the tokenising is assumed. So an idle engine starts its first step with the first request of a burst alone.
    pub fn behind_dynamo(self) -> EngineCost {
        EngineCost {
            request_in: self.request_in * DYNAMO_SHARE,
            prompt_token_in: self.prompt_token_in * (ROUTER_TOKEN / PYTHON_TOKEN),
            intake: Intake::Tokenizers(1),
            ..self
        }
    }

    /// The values that profiles can set, in the order of [`SPECS`].
    pub fn values(mut self) -> [f64; SPECS.len()] {
        self.slots().map(|s| *s)
    }

    fn slots(&mut self) -> [&mut f64; SPECS.len()] {
        [
            &mut self.step_host,
            &mut self.seq_host,
            &mut self.row_host,
            &mut self.prompt_token_host,
            &mut self.rank_seq_host,
            &mut self.layer_launch,
            &mut self.rank_launch,
            &mut self.mixed_launch,
            &mut self.context_launch,
            &mut self.kernel_gap,
            &mut self.request_in,
            &mut self.prompt_token_in,
            &mut self.token_out,
        ]
    }

    /// Sequences that a decode batch of `seqs` is padded to: the next captured graph size (1, 2, 4, then
    /// multiples of 8 to 256, then of 16; serving-policies 1.7), or `seqs` where no graph covers it.
    pub fn graph_size(&self, seqs: u32) -> u32 {
        if seqs > self.graph_max_seqs {
            return seqs;
        }
        match seqs {
            0..=2 => seqs,
            3..=4 => 4,
            5..=256 => seqs.next_multiple_of(8),
            _ => seqs.next_multiple_of(16).min(self.graph_max_seqs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_batches_are_padded_to_captured_sizes_1_7() {
        let c = EngineCost::prior(EngineKind::VllmV1);
        let sizes: Vec<u32> = [1, 2, 3, 5, 8, 9, 250, 257, 512, 513]
            .into_iter()
            .map(|b| c.graph_size(b))
            .collect();
        assert_eq!(sizes, [1, 2, 4, 8, 8, 16, 256, 272, 512, 513]);
    }

    #[test]
    fn graphs_are_added_only_where_there_are_none() {
        let vllm = EngineCost::prior(EngineKind::VllmV1);
        assert_eq!(vllm.graphed(), vllm);
        let trt = EngineCost::prior(EngineKind::TrtLlm);
        assert_eq!(trt.graph_size(5), 5);
        assert_eq!(trt.graphed().graph_size(5), 8);
        assert!(trt.graphed().kernel_gap < trt.kernel_gap);
    }

    #[test]
    fn a_graph_mode_says_what_the_host_launches_1_7() {
        let both = EngineCost::prior(EngineKind::VllmV1);
        assert_eq!(both.with_graphs(GraphMode::FullAndPiecewise), both);
        let pieces = both.with_graphs(GraphMode::Piecewise);
        assert!(both.piece_launch == 0.0 && pieces.piece_launch > both.mixed_launch);
        let whole = both.with_graphs(GraphMode::FullDecodeOnly);
        assert_eq!(
            (whole.graph_max_seqs, whole.mixed_launch),
            (512, both.layer_launch)
        );
    }

    #[test]
    fn the_pytorch_executor_launches_contexts_from_python() {
        let trt = EngineCost::prior(EngineKind::TrtLlm).graphed();
        let python = trt.launched_from_python();
        assert_eq!(python.mixed_launch, trt.context_launch);
        assert!(python.mixed_launch > 3.0 * trt.mixed_launch);
    }

    #[test]
    fn dynamo_takes_over_what_the_api_server_does() {
        let own = EngineCost::prior(EngineKind::VllmV1);
        let dynamo = own.behind_dynamo();
        assert!(dynamo.request_in < 0.5 * own.request_in && dynamo.request_in > 0.0);
        assert!(dynamo.prompt_token_in < own.prompt_token_in);
        assert_eq!(dynamo.intake, Intake::Tokenizers(1));
        // A second request reaches the engine within a decode step of a large model on eight devices.
        assert!(dynamo.request_in + 1024.0 * dynamo.prompt_token_in < 6e-3);
    }

    #[test]
    fn a_profile_overrides_only_what_it_names() {
        let mut p = Profile::default();
        p.params.insert(
            "engine.vllm_v1.step_host".into(),
            crate::profile::Param {
                value: 0.25,
                std_error: None,
                min: 0.0,
                max: 1.0,
                unit: "s".into(),
                evidence: crate::Evidence::Fitted,
            },
        );
        let c = EngineCost::new(EngineKind::VllmV1, &p);
        let prior = EngineCost::prior(EngineKind::VllmV1);
        assert_eq!(
            c,
            EngineCost {
                step_host: 0.25,
                ..prior
            }
        );
        assert_eq!(
            EngineCost::new(EngineKind::Tgi, &p),
            EngineCost::prior(EngineKind::Tgi)
        );
    }
}
