//! Which replicas a request may go to: pools that take the same requests share a router.

use crate::cluster::pools::{PoolSpec, Serving};
use crate::cluster::router::{Router, RouterConfig};
use crate::request::RequestSpec;
use crate::simulation::Simulation;

/// Pools that take the same requests.
struct Service {
    /// Clients' requests come to it first; otherwise it takes those that are prefilled.
    is_entry: bool,
    model: u16,
    min_prompt: u32,
    max_prompt: u32,
    config: RouterConfig,
    router: Router,
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
            if found.is_none() {
                // Each draws from a stream of its own.
                let name = match list.len() {
                    0 => "router".to_owned(),
                    n => format!("router.{n}"),
                };
                list.push(Service {
                    is_entry: pool.is_entry(),
                    model: pool.model,
                    min_prompt: pool.min_prompt,
                    max_prompt: pool.max_prompt,
                    config: pool.router,
                    router: Router::named(pool.router, sim.seed, &name),
                });
            }
        }
        if list.is_empty() {
            of_pool.push(0);
            list.push(Service {
                is_entry: true,
                model: 0,
                min_prompt: 0,
                max_prompt: u32::MAX,
                config: sim.router,
                router: Router::new(sim.router, sim.seed),
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

    /// The router for a request that a client sends; `None`: no pool takes it.
    #[inline]
    pub fn entry(&mut self, spec: &RequestSpec) -> Option<&mut Router> {
        self.find(spec, true)
    }

    /// The router for a request that has been prefilled; `None`: no decode pool takes it.
    pub fn decode(&mut self, spec: &RequestSpec) -> Option<&mut Router> {
        self.find(spec, false)
    }

    #[inline]
    fn find(&mut self, spec: &RequestSpec, is_entry: bool) -> Option<&mut Router> {
        let model = self.stream_models.get(usize::from(spec.stream));
        let model = model.copied().unwrap_or(0);
        (self.list.iter_mut())
            .find(|s| s.is_entry == is_entry && s.takes(model, spec.prompt_tokens))
            .map(|s| &mut s.router)
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

    /// Replicas that clients' requests may go to.
    #[inline]
    pub fn ready(&self) -> usize {
        (self.list.iter().filter(|s| s.is_entry))
            .map(|s| s.router.ready())
            .sum()
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
