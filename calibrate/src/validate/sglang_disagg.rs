//! DeepSeek-R1 (FP8) under SGLang 0.5.8 with prefill and decode apart, on H100, closed loop: TTFT and TPOT by concurrency and lengths.
//!
//! `serving2/sglang_deepseek_r1_h100_disagg.csv`, AIConfigurator's samples of 2026-03-25 and 2026-04-06 (Apache-2.0), of runs that InferenceX (SemiAnalysis) published on
//! 2026-02-13. Nothing is fitted on them.
//!
//! InferenceX names its recipes (`.github/configs/nvidia-master.yaml`, `dsr1-fp8-h100-dynamo-sglang`), which are public
//! (srt-slurm, `recipes/h100/{1k1k,1k8k,8k1k}/{stp,mtp}/h100-fp8-*-max-tp*.yaml`): SGLang 0.5.8 behind several Dynamo front ends; one prefill server and two
//! decode servers (one where prompts are long), each of two nodes of eight H100s with one rank of tensor parallelism on each device; NIXL; no radix cache;
//! prefill with `max-running-requests` 2, chunks of 2048 tokens and `mem-fraction-static` 0.6; decode with 0.9, 128 requests and graphs up to as many (outputs of 8192
//! tokens: 32, with drafts 64). Each point was measured without drafts and with (`EAGLE`, two drafts a step, `SGLANG_ENABLE_SPEC_V2`), ten
//! requests a user after two to warm up (`sa-bench`), lengths drawn evenly between 0.8 and 1.0 of those asked for, temperature 0.
//!
//! The table has neither the number of servers nor whether tokens were drafted; of the two runs of a point one is left in it, or in each of its two samples another. A row is taken for one with
//! drafts where its TPOT is below three quarters of that of the long prompts at the same concurrency, which have no drafts: the ratios lie
//! from 0.41 to 0.69 and from 0.87 to 1.08. The recipe without drafts for outputs of 8192 tokens has no point of 64 users any more; the table has.
//!
//! Several front ends, each of which takes the decode servers in turn, choose at random together.

use std::collections::BTreeMap;

use super::case::{Case, Measured, Source};
use super::error::SetError;
use super::sample::{ROUNDS, Sample, drawn};

/// The table.
const FILE: &str = "serving2/sglang_deepseek_r1_h100_disagg.csv";
/// Its name as a set.
const SET: &str = "sglang_deepseek_r1_disagg";
/// Outputs from which decode servers have fewer seats [tokens].
const LONG_OUTPUT: u32 = 8192;
/// Prompts from which there is one decode server [tokens].
const LONG_PROMPT: u32 = 8192;
/// Share of the TPOT without drafts below which there were some [ratio].
const WITH_DRAFTS: f64 = 0.75;

/// The deployment of a row, with drafts or without, and the load on it.
fn scenario(raw: &Sample, [prefill, decode, users]: [u32; 3], drafts: bool) -> String {
    let seats = match (raw.osl >= LONG_OUTPUT, drafts) {
        (false, _) => 128,
        (true, true) => 64,
        (true, false) => 32,
    };
    let servers = if raw.isl >= LONG_PROMPT { 1 } else { 2 };
    let speculation = match drafts {
        true => {
            "speculative_algorithm = \"EAGLE\"\nspeculative_num_steps = 2\nenable_spec_v2 = true\n"
        }
        false => "",
    };
    format!(
        "[model]\nname = \"deepseek-r1\"\n[hardware]\ninstance = \"gd-8xh100ib-i128\"\n\
         [engine]\nkind = \"sglang\"\nversion = \"0.5.8\"\nfront_end = \"dynamo\"\ndisable_radix_cache = true\n{speculation}\
         [router]\npolicy = \"random\"\n\
         [[pool]]\nname = \"prefill\"\nrole = \"prefill\"\n[pool.layout]\ntp = {prefill}\n\
         [pool.engine]\nmax_running_requests = 2\nmax_prefill_tokens = 2048\nchunked_prefill_size = 2048\nmem_fraction_static = 0.6\n\
         [[pool]]\nname = \"decode\"\nrole = \"decode\"\nreplicas = {servers}\n[pool.layout]\ntp = {decode}\n\
         [pool.engine]\nmax_running_requests = {seats}\ncuda_graph_max_bs = {seats}\nmem_fraction_static = 0.9\n\
         [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\nprompt = {}\noutput = {}\n\
         [run]\nrequests = {}\n",
        drawn(raw.isl),
        drawn(raw.osl),
        users.saturating_mul(ROUNDS),
    )
}

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let rows = source.read::<Sample>(FILE)?;
    let apart = || rows.iter().filter_map(|r| Some((r, r.apart()?)));
    // TPOT of long prompts by users.
    let plain: BTreeMap<u32, f64> = apart()
        .filter(|(r, _)| r.isl >= LONG_PROMPT)
        .map(|(r, [_, _, users])| (users, r.silicon_tpot_ms))
        .collect();
    let mut out: Vec<Case> = Vec::new();
    for (raw, servers_and_users) in apart() {
        let (isl, osl) = (raw.isl, raw.osl);
        let [_, _, users] = servers_and_users;
        let without = plain.get(&users).copied().unwrap_or(f64::INFINITY);
        let drafts = raw.silicon_tpot_ms < WITH_DRAFTS * without;
        let with = if drafts { " mtp" } else { "" };
        let mut name = format!("deepseek-r1 isl={isl} osl={osl} c={users}{with}");
        let knobs = [isl, osl, users, u32::from(drafts)]
            .map(|k| k.to_string())
            .to_vec();
        let measured = raw.measured(|_| false);
        // The two samples have most runs in common.
        let is_again = |c: &Case| {
            let same = |(a, b): (&Measured, &Measured)| (a.value - b.value).abs() < 1e-6 * b.value;
            c.knobs == knobs && c.measured.iter().zip(&measured).all(same)
        };
        if out.iter().any(is_again) {
            continue;
        }
        if out.iter().any(|c| c.knobs == knobs) {
            name.push_str(", again");
        }
        out.push(Case {
            set: SET,
            name,
            knobs,
            scenario: scenario(raw, servers_and_users, drafts),
            files: Vec::new(),
            runs: 1,
            measured,
        });
    }
    Ok(out)
}
