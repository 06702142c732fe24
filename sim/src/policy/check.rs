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
