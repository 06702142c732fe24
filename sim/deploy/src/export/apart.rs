//! Prefill and decode apart: each side of such a scenario as a scenario of its own.

use sim::cluster::pools::Role;
use sim::scenario::Scenario;

/// A scenario whose prefill and decode are apart.
pub struct Sides {
    /// The replicas that prefill.
    pub prefill: Scenario,
    /// The replicas that decode.
    pub decode: Scenario,
}

/// Both sides; none where replicas do both.
///
/// # Errors
/// Pools that are something else, in words.
pub fn sides(s: &Scenario) -> Result<Option<Sides>, String> {
    let Some(first) = s.pools.first() else {
        return Ok(None);
    };
    let of = |role: Role| {
        let mut all = s.pools.iter().filter(|p| p.role == role);
        all.next().filter(|_| all.next().is_none())
    };
    let (Some(prefill), Some(decode), 2) = (of(Role::Prefill), of(Role::Decode), s.pools.len())
    else {
        let why = "the scenario has pools that are not one that prefills and one that decodes, and files are written for one deployment; export each [[pool]] as a scenario of its own";
        return Err(why.into());
    };
    let alike = |p: &&sim::scenario::PoolChoice| {
        (&p.model, &p.hardware) == (&first.model, &first.hardware)
            && p.min_prompt.is_none()
            && p.max_prompt.is_none()
    };
    if !s.pools.iter().all(|p| alike(&p)) {
        let why = "the pools that prefill and decode differ in model, machine or the prompts that they take, which no target says; export each [[pool]] as a scenario of its own";
        return Err(why.into());
    }
    let side = |p: &sim::scenario::PoolChoice| {
        let mut own = s.clone();
        own.pools = Vec::new();
        own.kv_transfer = None;
        own.model = p.model.clone();
        own.hardware = p.hardware.clone();
        own.step = p.step;
        own.layout = p.layout;
        own.replicas = p.replicas;
        own.engine = p.engine.clone();
        own
    };
    Ok(Some(Sides {
        prefill: side(prefill),
        decode: side(decode),
    }))
}
