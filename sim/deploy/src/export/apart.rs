//! Pools: each of them as a scenario of its own.

use sim::cluster::pools::Role;
use sim::scenario::{PoolChoice, Scenario};

use super::shared::{label, label_of};

/// A scenario whose prefill and decode are apart.
pub struct Sides {
    /// The replicas that prefill.
    pub prefill: Scenario,
    /// The replicas that decode.
    pub decode: Scenario,
}

/// What a scenario's replicas are.
pub enum Parts {
    /// All alike.
    One,
    /// Prefill and decode apart.
    Sides(Box<Sides>),
    /// Pools that each get objects of their own.
    Pools(Vec<Part>),
}

/// A pool as a scenario of its own.
pub struct Part {
    /// The pool's name.
    pub name: String,
    /// How its files begin.
    pub file: String,
    /// What its replicas do of a request.
    pub role: Role,
    /// The scenario.
    pub own: Scenario,
}

/// Takes a scenario apart; with `each`, every pool gets objects of its own, whatever it does of a request.
///
/// # Errors
/// Pools that no target can say, in words.
pub fn parts(s: &Scenario, each: bool) -> Result<Parts, String> {
    let Some(first) = s.pools.first() else {
        return Ok(Parts::One);
    };
    if each || s.pools.iter().all(|p| p.role == Role::Both) {
        let mut all: Vec<Part> = Vec::new();
        for p in &s.pools {
            let mut own = alone(s, p);
            own.name = format!("{}-{}", s.name, p.name);
            let mut file = label_of(&p.name);
            // Names that differ in what neither objects nor files can say.
            while all.iter().any(|o| label(&o.own) == label(&own)) {
                own.name.push_str("-2");
            }
            while all.iter().any(|o| o.file == file) {
                file.push_str("-2");
            }
            let (name, role) = (p.name.clone(), p.role);
            all.push(Part {
                name,
                file,
                role,
                own,
            });
        }
        return Ok(Parts::Pools(all));
    }
    let of = |role: Role| {
        let mut all = s.pools.iter().filter(|p| p.role == role);
        all.next().filter(|_| all.next().is_none())
    };
    let (Some(prefill), Some(decode), 2) = (of(Role::Prefill), of(Role::Decode), s.pools.len())
    else {
        let why = "the scenario has pools that are neither one that prefills and one that decodes nor all of whole requests, which no target says; export each [[pool]] as a scenario of its own";
        return Err(why.into());
    };
    let alike = |p: &PoolChoice| {
        (&p.model, &p.hardware) == (&first.model, &first.hardware)
            && p.min_prompt.is_none()
            && p.max_prompt.is_none()
    };
    if !s.pools.iter().all(alike) {
        let why = "the pools that prefill and decode differ in model, machine or the prompts that they take, which no target says; export each [[pool]] as a scenario of its own";
        return Err(why.into());
    }
    Ok(Parts::Sides(Box::new(Sides {
        prefill: alone(s, prefill),
        decode: alone(s, decode),
    })))
}

/// The scenario with the pool's replicas alone.
fn alone(s: &Scenario, p: &PoolChoice) -> Scenario {
    let mut own = s.clone();
    own.pools = Vec::new();
    own.kv_transfer = None;
    own.model = p.model.clone();
    own.hardware = p.hardware.clone();
    own.step = p.step;
    own.layout = p.layout;
    own.replicas = p.replicas;
    own.engine = p.engine.clone();
    if p.role == Role::Both {
        own.router.policy = p.router;
    }
    if let Some(c) = &mut own.cluster {
        c.autoscaler = (p.on_cluster.as_ref()).and_then(|o| o.autoscaler.clone());
        (c.faults, c.changes) = (Vec::new(), Vec::new());
    }
    own
}
