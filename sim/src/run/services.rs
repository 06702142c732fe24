//! Which replicas a request may go to: pools that take the same requests share a router.

use crate::cluster::pools::{PoolSpec, Role, Serving};
use crate::cluster::router::{Router, RouterConfig};
use crate::request::RequestSpec;
use crate::simulation::Simulation;

/// Pools that take the same requests.
struct Service {
    /// Clients' requests come to it first; otherwise it takes those that are prefilled.
    is_entry: bool,
    /// All of its replicas prefill alone: what it takes needs a decode replica too.
    is_apart: bool,
    model: u16,
    min_prompt: u32,
    max_prompt: u32,
    config: RouterConfig,
    router: Router,
    /// Requests that were offered to it.
    offered: u64,
    /// Requests that were sent to its replicas and have not ended there.
    under_way: u64,
}

impl Service {
    fn takes(&self, model: u16, prompt: u32) -> bool {
        self.model == model && (self.min_prompt..=self.max_prompt).contains(&prompt)
    }

    fn is_for(&self, pool: &PoolSpec) -> bool {
        self.is_entry == pool.is_entry()
            && (self.model, self.min_prompt, self.max_prompt)
                == (pool.model, pool.min_prompt, pool.max_prompt)
    }
}

/// All of them.
pub struct Services {
    list: Vec<Service>,
    /// Service of each pool.
    of_pool: Vec<usize>,
    /// Service of each replica.
    of_replica: Vec<usize>,
    stream_models: Vec<u16>,
}

impl Services {
    /// Those of `sim`, in front of no replica yet.
    pub fn new(sim: &Simulation) -> Services {
        let Serving {
            pools,
            stream_models,
            ..
        } = &sim.serving;
        let mut list: Vec<Service> = Vec::new();
        let mut of_pool = Vec::new();
        for pool in pools {
            let found = list.iter().position(|s| s.is_for(pool));
            of_pool.push(found.unwrap_or(list.len()));
            if let Some(service) = found {
                list[service].is_apart &= pool.role == Role::Prefill;
            } else {
                // Each draws from a stream of its own.
                let name = match list.len() {
                    0 => "router".to_owned(),
                    n => format!("router.{n}"),
                };
                list.push(Service {
                    is_entry: pool.is_entry(),
                    is_apart: pool.role == Role::Prefill,
                    model: pool.model,
                    min_prompt: pool.min_prompt,
                    max_prompt: pool.max_prompt,
                    config: pool.router,
                    router: Router::named(pool.router, sim.seed, &name),
                    offered: 0,
                    under_way: 0,
                });
            }
        }
        if list.is_empty() {
            of_pool.push(0);
            list.push(Service {
                is_entry: true,
                is_apart: false,
                model: 0,
                min_prompt: 0,
                max_prompt: u32::MAX,
                config: sim.router,
                router: Router::new(sim.router, sim.seed),
                offered: 0,
                under_way: 0,
            });
        }
        Services {
            list,
            of_pool,
            of_replica: Vec::new(),
            stream_models: stream_models.clone(),
        }
    }

    /// The next replica belongs to `pool`.
    pub fn add(&mut self, pool: usize) {
        self.of_replica
            .push(self.of_pool.get(pool).copied().unwrap_or(0));
    }

    /// The router that chooses replica `i`.
    #[inline]
    pub fn of(&mut self, i: u32) -> &mut Router {
        let service = self.of_replica[i as usize];
        &mut self.list[service].router
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The service that a request of a client goes to; `None`: no pool takes it.
    #[inline]
    pub fn entry(&self, spec: &RequestSpec) -> Option<usize> {
        self.find(spec, true)
    }

    /// The service that decodes a request that has been prefilled; `None`: no decode pool takes it.
    pub fn decode(&self, spec: &RequestSpec) -> Option<usize> {
        self.find(spec, false)
    }

    #[inline]
    fn find(&self, spec: &RequestSpec, is_entry: bool) -> Option<usize> {
        let model = self.stream_models.get(usize::from(spec.stream));
        let model = model.copied().unwrap_or(0);
        (self.list.iter())
            .position(|s| s.is_entry == is_entry && s.takes(model, spec.prompt_tokens))
    }

    /// The router of a service.
    #[inline]
    pub fn router(&mut self, service: usize) -> &mut Router {
        &mut self.list[service].router
    }

    /// A request comes to a service.
    pub fn offer(&mut self, service: usize) {
        self.list[service].offered += 1;
    }

    /// Requests that came to a service so far.
    pub fn offered(&self, service: usize) -> u64 {
        self.list[service].offered
    }

    /// The service of pool `p`.
    pub fn of_pool(&self, p: usize) -> usize {
        self.of_pool.get(p).copied().unwrap_or(0)
    }

    /// The service of replica `i`.
    pub fn of_replica(&self, i: u32) -> usize {
        self.of_replica[i as usize]
    }

    /// Whether what `service` takes can be decoded nowhere: its replicas prefill alone, and none that decodes is ready.
    pub fn lacks_decode(&self, service: usize, spec: &RequestSpec) -> bool {
        self.list[service].is_apart
            && spec.output_tokens > 1
            && (self.decode(spec)).is_none_or(|d| self.list[d].router.ready() == 0)
    }

    /// A request is sent to replica `i`.
    #[inline]
    pub fn sent(&mut self, i: u32) {
        let service = self.of_replica(i);
        self.list[service].under_way += 1;
    }

    /// A request has ended at replica `i`, or goes on elsewhere.
    #[inline]
    pub fn ended(&mut self, i: u32) {
        let service = self.of_replica(i);
        let service = &mut self.list[service];
        service.router.ended(i);
        service.under_way = service.under_way.saturating_sub(1);
    }

    /// Whether each ready replica of `service` has `limit` requests that have not ended.
    #[inline]
    pub fn is_full(&self, service: usize, limit: u32) -> bool {
        let service = &self.list[service];
        service.under_way >= u64::from(limit).saturating_mul(service.router.ready() as u64)
    }

    /// Whether any of them looks at the engines' own state.
    #[inline]
    pub fn see_loads(&self) -> bool {
        self.list.iter().any(|s| s.router.sees_loads())
    }

    /// Whether all of them can choose many requests ahead: by no state, or by what was last scraped.
    pub fn see_no_state(&self, scraped: bool) -> bool {
        (self.list.iter()).all(|s| s.config.is_blind() || scraped && s.config.sees_loads())
    }

    /// Counts outstanding requests from now on; there are `outstanding(i)` at replica `i`.
    pub fn recount(&mut self, outstanding: impl Fn(u32) -> u32) {
        for (k, service) in self.list.iter_mut().enumerate() {
            let of = &self.of_replica;
            let here = |i: u32| {
                if of[i as usize] == k {
                    outstanding(i)
                } else {
                    0
                }
            };
            service.router.recount(of.len() as u32, here);
        }
    }
}
