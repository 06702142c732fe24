//! KV kept in host memory: vLLM's offloading connector (`--kv-offloading-size`; serving-policies 1.8).
//!
//! Each full block is copied to the host as it is computed, and leaves there when others need the room, the longest unused first. A request
//! whose next blocks are not on the device but there waits, with blocks set aside, until they have been loaded (WAITING_FOR_REMOTE_KVS);
//! then it goes on behind them. So what preemption or eviction threw away is read over PCIe and not computed again. Copies to the host run on the
//! other direction of the link and beside the step: they cost nothing here.

use super::remote::Remote;
use super::{State, VllmV1};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kv::chain;
use crate::policy::StepPlan;
use crate::request::ReqId;

impl VllmV1 {
    /// Content of block `k` of `id`: told, or its own.
    fn content(&self, id: ReqId, k: u32) -> u64 {
        let seq = &self.seqs[id as usize];
        let told = seq.hashes.get(k as usize).copied();
        told.unwrap_or_else(|| chain(chain(OWN, seq.ticket), u64::from(k)))
    }

    /// The first `tokens` tokens of `id` are, or are about to be, in its blocks: the full ones go to the host, too.
    pub(super) fn offload(&mut self, id: ReqId, tokens: u32) {
        if self.host.is_none() {
            return;
        }
        let full = tokens / self.params.block_size;
        for k in self.seqs[id as usize].offloaded..full {
            let content = self.content(id, k);
            if let Some(host) = &mut self.host {
                host.touch(content);
            }
        }
        let seq = &mut self.seqs[id as usize];
        seq.offloaded = seq.offloaded.max(full);
    }

    /// Blocks of `id` behind the `hits` on the device that the host holds. The last token is always computed.
    fn host_hits(&self, id: ReqId, hits: u32) -> u32 {
        let Some(host) = &self.host else { return 0 };
        let tokens = self.seqs[id as usize].num_tokens();
        let most = tokens.saturating_sub(1) / self.params.block_size;
        let there = |k: &u32| host.holds(self.content(id, *k));
        (hits..most).take_while(there).count() as u32
    }

    /// Begins to load what the host holds of `id`. `None`: it holds nothing that the device lacks. False: there are too few blocks.
    pub(super) fn load_from_host(
        &mut self,
        id: ReqId,
        now: SimTime,
        plan: &mut StepPlan,
    ) -> Option<bool> {
        self.host.as_ref()?;
        if self.seqs[id as usize].pending > 0 {
            return None;
        }
        let all = self.seqs[id as usize].num_tokens();
        let hits = self.kv.hits(id, all);
        let blocks = self.host_hits(id, hits);
        if blocks == 0 {
            return None;
        }
        let tokens = (hits + blocks) * self.params.block_size;
        if self.set_blocks_aside(id, tokens, plan).is_none() {
            return Some(false);
        }
        for k in hits..hits + blocks {
            let content = self.content(id, k);
            if let Some(host) = &mut self.host {
                host.touch(content);
            }
        }
        let ticket = self.seqs[id as usize].ticket;
        if let Some(host) = &mut self.host {
            // It ends after it began, so that somebody is woken.
            let load = SimDuration::from_secs(host.config.block_s * f64::from(blocks));
            host.link_free = host.link_free.max(now) + load.max(SimDuration(1));
            host.loads.push((host.link_free, id, ticket));
        }
        Some(true)
    }

    /// Loads that have ended by `now`.
    pub(super) fn end_loads(&mut self, now: SimTime) {
        let Some(host) = &mut self.host else { return };
        let mut ended = Vec::new();
        host.loads.retain(|&(end, id, ticket)| {
            if end <= now {
                ended.push((id, ticket));
            }
            end > now
        });
        for (id, ticket) in ended {
            let seq = &self.seqs[id as usize];
            let waits = seq.ticket == ticket && seq.state == State::Waiting;
            if waits && matches!(seq.remote, Remote::Coming(_)) {
                self.end_reception(id);
            }
        }
    }
}

/// What sets contents that nobody else can have apart from told ones.
const OWN: u64 = 0x6b76_5f6f_776e_2121;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testkit::{Checks, Req, Run, STEP, req, run};
    use crate::policy::vllm_v1::{HostKv, VllmV1Params};

    /// Eight blocks of 16 tokens on the device, one sequence at a time.
    fn go(host_kv: Option<HostKv>, reqs: &[Req]) -> Run {
        let params = VllmV1Params {
            max_num_batched_tokens: 256,
            max_num_seqs: 2,
            max_model_len: 256,
            num_gpu_blocks: 9,
            shared_content: true,
            host_kv,
            ..VllmV1Params::default()
        };
        let mut engine = VllmV1::new(params);
        let r = run(&mut engine, reqs, Checks::default());
        engine.kv.check();
        r
    }

    fn host(blocks: u64, block_s: f64) -> Option<HostKv> {
        Some(HostKv { blocks, block_s })
    }

    /// A prompt of four blocks, another that takes the whole device, the first once more.
    fn again() -> [Req; 3] {
        let told = |at, prompt, first: u64| Req {
            hashes: (first..first + 8).collect(),
            ..req(at * STEP, prompt, 2)
        };
        [told(0, 64, 100), told(10, 112, 200), told(20, 64, 100)]
    }

    #[test]
    fn evicted_blocks_come_back_from_the_host_1_6() {
        let prefilled = |host_kv| go(host_kv, &again()).fates[2].prefilled;
        assert_eq!(prefilled(None), 64);
        // The last token is computed in any case, and with it its block.
        assert_eq!(prefilled(host(100, 1e-9)), 16);
        // The other prompt has pushed what the host no longer has room for out of it, the longest unused first.
        assert_eq!(prefilled(host(8, 1e-9)), 64);
    }

    #[test]
    fn a_request_waits_for_its_load_and_loads_for_each_other_1_6() {
        let step_s = STEP as f64 * 1e-9;
        let first = |block_s| go(host(100, block_s), &again()).fates[2].first_token;
        let (quick, slow) = (first(0.0).unwrap(), first(2.0 * step_s).unwrap());
        assert_eq!(slow - quick, 6 * STEP - 1, "three blocks of two steps each");
        let [one, other, late] = again();
        let twice = [one, other, late.clone(), late];
        let r = go(host(100, 2.0 * step_s), &twice);
        assert!(r.fates[3].finished.is_some());
    }

    #[test]
    fn the_preempted_load_what_they_had_computed_1_6() {
        // Two sequences that outgrow the device: one is preempted and comes back.
        let reqs = [req(0, 48, 40), req(0, 48, 40)];
        let (without, with) = (go(None, &reqs), go(host(100, 1e-9), &reqs));
        let lost = |r: &Run| r.fates.iter().map(|f| f.preempted).sum::<u32>();
        let computed = |r: &Run| r.fates.iter().map(|f| f.prefilled).sum::<u64>();
        assert!(lost(&without) > 0 && lost(&with) > 0);
        assert!(computed(&with) < computed(&without));
        assert!(with.fates.iter().all(|f| f.tokens == 40));
    }
}
