//! What is wrong with a policy's parameters: the start-up checks of the named systems speak through this.

/// A parameter that the named system would refuse at start-up, or that servetwin cannot model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine}: {param}: {problem}")]
pub struct ParamError {
    /// The system whose rule is broken, as in its own documentation.
    pub engine: &'static str,
    /// The parameter, as spelled in a scenario.
    pub param: &'static str,
    /// What is wrong with which value, and what would be right.
    pub problem: String,
}

impl ParamError {
    /// Error for `param` of `engine`.
    pub fn new(engine: &'static str, param: &'static str, problem: String) -> ParamError {
        ParamError {
            engine,
            param,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::super::{llama_cpp, sglang, static_batch, tgi, tgi_neuron, trt_llm};

    /// Reads `toml`, writes it and reads it again; then tries a key that no system has.
    fn round_trip<P>(toml: &str) -> P
    where
        P: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug + schemars::JsonSchema,
    {
        let params: P = toml::from_str(toml).unwrap();
        let again: P = toml::from_str(&toml::to_string(&params).unwrap()).unwrap();
        assert_eq!(params, again);
        let error = toml::from_str::<P>(&format!("{toml}\nmax_bach_size = 1")).unwrap_err();
        assert!(
            error.to_string().contains("unknown field `max_bach_size`"),
            "{error}"
        );
        let schema = schemars::schema_for!(P).to_value();
        assert_eq!(schema["additionalProperties"], false);
        params
    }

    #[test]
    fn parameters_are_read_by_their_systems_names_and_unknown_ones_refused() {
        let p: tgi::TgiParams = round_trip("version = \"v3\"\nmax_batch_prefill_tokens = 2048");
        assert_eq!(p.max_batch_prefill_tokens, Some(2048));
        let p: tgi_neuron::TgiNeuronParams =
            round_trip("server = \"optimum_vllm\"\nbatch_size = 8\nsequence_length = 4096");
        assert_eq!(p.server, tgi_neuron::NeuronServer::OptimumVllm);
        let p: trt_llm::TrtLlmParams = round_trip("batch_scheduler_policy = \"max_utilization\"");
        assert_eq!(
            p.batch_scheduler_policy,
            trt_llm::BatchSchedulerPolicy::MaxUtilization
        );
        let p: static_batch::StaticBatchParams = round_trip("max_queue_delay_microseconds = 500");
        assert_eq!(p.max_queue_delay_microseconds, 500);
        let p: llama_cpp::LlamaCppParams = round_trip("n_parallel = 8\nkv_unified = false");
        assert_eq!((p.n_parallel, p.n_batch), (8, 2048));
        let p: sglang::SglangParams =
            round_trip("version = \"0.5.1.post1\"\nschedule_policy = \"lpm\"");
        assert_eq!(
            (p.version.patch, p.schedule_policy),
            (1, sglang::SchedulePolicy::Lpm)
        );
    }
}
