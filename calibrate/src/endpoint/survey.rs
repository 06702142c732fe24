//! The first requests of a measurement: how fast the endpoint is.

use bench::endpoint::RequestTrace;
use futures_util::future::join_all;

use super::drive::{Lengths, MeasureError, Stand};
use super::plan::{CROWDING, Shape, Speed, tokens_of};

/// A short prompt with some output.
const SHORT: Lengths = Lengths {
    prompt: 16,
    output: 8,
};
/// Short prompts that are sent at once, to see how much they hold each other up.
const CROWD: u32 = 4;
/// Share of the budget that a short prompt may take for more of them to be sent at once before the plan is made [ratio].
const QUICK: f64 = 0.05;

/// How fast the endpoint answers: a short prompt with some output, a longer one, and short ones at once.
pub(super) async fn survey(stand: &Stand, shape: &Shape) -> Result<Speed, MeasureError> {
    let long = Lengths {
        prompt: shape.repeated_prompt(),
        output: 1,
    };
    let (short, long_trace) = (surveyed(stand, SHORT).await?, surveyed(stand, long).await?);
    let s = |ns: Option<u64>| ns.unwrap_or(0) as f64 * 1e-9;
    let first_s = s(short.first_token_ns());
    let pace = |t: &RequestTrace| {
        let tokens = t.output_tokens().max(2);
        (s(t.last_token_ns()) - s(t.first_token_ns())).max(0.0) / f64::from(tokens - 1)
    };
    let output_token_s = pace(&short);
    let further = long.prompt.saturating_sub(SHORT.prompt).max(1);
    let mut speed = Speed {
        first_s,
        prompt_token_s: (s(long_trace.first_token_ns()) - first_s).max(0.0) / f64::from(further),
        output_token_s,
        crowding: CROWDING,
        max_rate: stand.ledger.budget().max_rate,
    };
    let quick = QUICK * stand.ledger.budget().time.as_secs_f64();
    if shape.users >= CROWD && s(short.last_token_ns()) <= quick && output_token_s > 0.0 {
        let all = join_all((0..CROWD).map(|_| surveyed(stand, SHORT))).await;
        let traces = all.into_iter().collect::<Result<Vec<_>, _>>()?;
        let slowest = traces.iter().map(pace).fold(0.0, f64::max);
        speed.crowding = crowding(slowest / output_token_s, f64::from(CROWD));
    }
    Ok(speed)
}

/// What each further request adds, where `n` at once have `ratio` times the time per output token of one alone [ratio].
pub(super) fn crowding(ratio: f64, n: f64) -> f64 {
    ((ratio - 1.0) / (n - 1.0)).clamp(0.0, 2.0)
}

/// One request of the survey.
async fn surveyed(stand: &Stand, lengths: Lengths) -> Result<RequestTrace, MeasureError> {
    let prompt = stand.prompt(lengths.prompt).await;
    let most = tokens_of(lengths) as u32 - lengths.output;
    let sent = stand.send_prompt(prompt, most, lengths.output).await;
    if let Some(e) = stand.failure() {
        return Err(e);
    }
    sent.filter(|t| t.first_token_ns().is_some())
        .ok_or_else(|| MeasureError::Budget {
            missing: format!(
                "not even a prompt of {} tokens with {} output tokens was answered",
                lengths.prompt, lengths.output
            ),
            needed: format!(
                "allow more time or tokens; the last failure of a request: {}",
                stand.last_error()
            ),
        })
}
